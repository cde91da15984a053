"""The studies of SGO: Differentially Private Optimization with Sparse Gradients."""
