"""Click models (the FEST paper's pCTR network, a DLRM-like one, any other by its import path), and CBOW word vectors."""

from sparsedp.core.criteo import embedding_dim
from sparsedp.models.cbow import CBOW, WordVectors, negative_sampling_loss
from sparsedp.models.dlrm import DLRM
from sparsedp.models.loading import load_model
from sparsedp.models.pctr import PCTR

__all__ = ["CBOW", "DLRM", "PCTR", "WordVectors", "embedding_dim", "load_model", "negative_sampling_loss"]
