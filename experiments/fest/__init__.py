"""The studies of FEST: Sparsity-Preserving Differentially Private Training of Large Embedding Models."""
