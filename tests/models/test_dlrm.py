import pytest
import torch
from torch import nn

from sparsedp.data.schema import Feature, Schema
from sparsedp.models import DLRM

SCHEMA = Schema(
    "label", "", ("x", "y"), "", (Feature("a", 5, ""), Feature("b", 6, "")), (Feature("m", 7, ""),)
)
NUMERIC = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
IDS = torch.tensor([[0, 1], [2, 3]])
BAG = (torch.tensor([1, 1, 4]), torch.tensor([0, 2]))


def test_vectors_and_their_products_are_what_the_top_sees():
    model = DLRM.from_schema(SCHEMA, dim=3)
    seen = []
    model.top = nn.Sequential(nn.Identity(), nn.Linear(model.top[0].in_features, 1))
    model.top.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(NUMERIC, IDS, BAG)
    a, b, m = (table.weight for table in model.embeddings)
    vectors = [a[2], b[3], m[4], model.bottom(NUMERIC)[1]]
    products = [vectors[i] @ vectors[j] for i in range(4) for j in range(i + 1, 4)]
    expected = torch.cat([*vectors, torch.stack(products)])
    assert torch.allclose(seen[0][1], expected, atol=1e-6)


def test_a_bag_is_summed_with_its_repetitions():
    model = DLRM.from_schema(SCHEMA, dim=3)
    twice = model.embeddings[2](*BAG)
    assert torch.allclose(twice[0], 2 * model.embeddings[2].weight[1])


def test_gradients_are_sparse_and_an_empty_batch_passes():
    model = DLRM.from_schema(SCHEMA)
    model(NUMERIC, IDS, BAG).sum().backward()
    assert all(table.weight.grad.is_sparse for table in model.embeddings)
    nothing = torch.empty(0, dtype=torch.int64)
    assert model(NUMERIC[:0], IDS[:0], (nothing, nothing)).shape == (0,)


def test_numbers_may_be_absent():
    model = DLRM([5, 6], 0)
    assert model.bottom is None
    assert model(torch.empty(2, 0), IDS).shape == (2,)


def test_bags_must_be_as_many_as_the_features():
    with pytest.raises(ValueError, match=r"^bags must be 1 multi-hot features, got 0"):
        DLRM.from_schema(SCHEMA)(NUMERIC, IDS)
    with pytest.raises(ValueError, match=r"^vocabulary_sizes must be positive"):
        DLRM([0])
    with pytest.raises(ValueError, match=r"^dim, bottom and top must be positive"):
        DLRM([5], dim=0)
