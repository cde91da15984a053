"""Privacy loss distributions: dominating pairs, their losses on a grid, and their composition."""
