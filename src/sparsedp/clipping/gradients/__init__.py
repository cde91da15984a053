"""Per-example gradients, factored or materialised, with their norms and weighted sums."""
