"""Per-example gradients, kept as factors or made, with their norms and weighted sums."""
