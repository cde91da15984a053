"""The private minimisers as scikit-learn estimators."""
