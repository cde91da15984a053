"""Click models: the FEST paper's pCTR network, a DLRM-like one, and any other by its import path."""

from sparsedp.core.criteo import embedding_dim
from sparsedp.models.dlrm import DLRM
from sparsedp.models.loading import load_model
from sparsedp.models.pctr import PCTR

__all__ = ["DLRM", "PCTR", "embedding_dim", "load_model"]
