"""Private empirical risk minimisation for linear models (SGO section 5)."""
