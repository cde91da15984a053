import numpy as np
import pytest
import torch
from torch import nn

from sparsedp.data import VOCABULARY_SIZES, GeneratedClicks
from sparsedp.data.schema import Feature, Schema
from sparsedp.models import PCTR, embedding_dim


def test_the_shape_is_that_of_the_paper():
    model = PCTR(VOCABULARY_SIZES)
    widths = [table.embedding_dim for table in model.embeddings]
    assert widths[:5] == [12, 9, 33, 23, 8]
    assert (
        widths
        == [int(2 * rows**0.25) for rows in VOCABULARY_SIZES]
        == [embedding_dim(v) for v in VOCABULARY_SIZES]
    )
    linears = [layer for layer in model.layers if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in linears] == [598, 598, 598, 598, 1]
    assert linears[0].in_features == 13 + sum(widths)
    assert sum(isinstance(layer, nn.ReLU) for layer in model.layers) == 4
    assert all(table.sparse for table in model.embeddings)
    assert sum(table.num_embeddings for table in model.embeddings) == 338_782


def test_one_logit_an_example_and_sparse_gradients():
    data = GeneratedClicks(64)
    model = PCTR.from_schema(data.schema, hidden=(16,))
    features, label = data.__getitems__(np.arange(64))
    logits = model(*features)
    assert logits.shape == label.shape
    nn.functional.binary_cross_entropy_with_logits(logits, label).backward()
    assert all(table.weight.grad.is_sparse for table in model.embeddings)
    empty, _ = data.__getitems__([])
    assert model(*empty).shape == (0,)


def test_the_first_predictions_are_alike():
    """A model that starts out sure of something has to be talked out of it through noise."""
    data = GeneratedClicks(256)
    features, _ = data.__getitems__(np.arange(256))
    assert PCTR.from_schema(data.schema)(*features).abs().max() < 1


def test_sizes_are_checked():
    with pytest.raises(ValueError, match=r"^dims must be one a feature"):
        PCTR([10, 20], dims=[4])
    with pytest.raises(ValueError, match=r"^vocabulary_sizes must be positive"):
        PCTR([10, 0])
    with pytest.raises(ValueError, match=r"^hidden must be positive"):
        PCTR([10], hidden=(0,))
    assert [t.embedding_dim for t in PCTR([10, 20], dims=[4, 5], hidden=(8,)).embeddings] == [4, 5]


def test_multi_hot_features_are_refused_by_name():
    schema = Schema("label", "", (), "", (Feature("a", 5, ""),), (Feature("genres", 5, ""),))
    with pytest.raises(ValueError, match=r"^model pctr has no multi-hot features \(genres\); use dlrm"):
        PCTR.from_schema(schema)


def test_private_rows_start_small():
    torch.manual_seed(0)
    assert PCTR([1000], hidden=(4,)).embeddings[0].weight.std().item() == pytest.approx(0.01, rel=0.1)
