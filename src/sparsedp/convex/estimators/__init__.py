"""The private minimisers as scikit-learn estimators."""

from sparsedp.core.extras import require

require("sklearn")
