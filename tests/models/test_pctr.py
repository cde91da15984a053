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


def test_the_table_scale_moves_the_share_of_the_tables_in_the_gradient():
    """The same function of scaled-down rows, whose gradients are as many times longer."""
    numeric, ids = torch.randn(5, 2), torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [2, 1]])
    gradients = []
    for scale in (1.0, 20.0):
        torch.manual_seed(0)
        model = PCTR([3, 4], 2, dims=[2, 2], hidden=[8], table_scale=scale)
        logits = model(numeric, ids)
        gradients.append(torch.autograd.grad(logits.sum(), model.embeddings[0].weight)[0].to_dense())
        if scale == 1.0:
            first = logits
    assert torch.allclose(logits, first, atol=1e-6)
    assert torch.allclose(gradients[1], 20 * gradients[0], rtol=1e-4)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^table_scale must be"):
            PCTR([3], 2, table_scale=scale)
    with pytest.raises(
        ValueError, match=r"^table_scale must be one number, or one for each of 1 tables, got 2$"
    ):
        PCTR([3], 2, table_scale=[1.0, 2.0])


def test_each_table_may_have_a_scale_of_its_own():
    numeric, ids = torch.randn(5, 2), torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [2, 1]])
    model = PCTR([3, 4], 2, dims=[2, 1], hidden=[8], table_scale=[1.0, 3.0])
    one_scale = PCTR([3, 4], 2, dims=[2, 1], hidden=[8])
    one_scale.load_state_dict(model.state_dict())
    with torch.no_grad():
        one_scale.embeddings[1].weight.mul_(3.0)
    assert torch.equal(model(numeric, ids), one_scale(numeric, ids))


@pytest.mark.parametrize("scale", [1.0, 20.0, list(range(1, 27))])
def test_scores_are_those_of_forward_bit_for_bit(scale):
    data = GeneratedClicks(300)
    batch = data.take(np.arange(300))
    model = PCTR.from_schema(data.schema, hidden=(16, 8), table_scale=scale)
    with torch.no_grad():
        pieces = [
            model(*batch.between(start, start + 128).tensors()[0]) for start in range(0, len(batch), 128)
        ]
    scores = model.score(batch.numeric, batch.ids, 128)
    assert torch.equal(scores, torch.cat(pieces))
    assert not scores.requires_grad


def test_an_engine_that_is_attached_forbids_scores_from_arrays():
    model = PCTR([20, 30], 0, hidden=(4,))
    assert model.can_score
    model.embeddings[1].register_forward_hook(lambda module, given, found: found + 1)
    assert not model.can_score
