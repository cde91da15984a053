"""The studies: a script for each table or figure of the three papers, and one on users, run by ``sparsedp reproduce``."""
