"""The studies of the three papers: a script for each table or figure, run by ``sparsedp reproduce``."""
