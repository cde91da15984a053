from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from sparsedp.models import DLRM, PCTR
from sparsedp.runs.canary_model import CanaryClickModel

SIZES = [40, 30]


def examples() -> tuple[Tensor, ...]:
    """A canary, then an ordinary example."""
    torch.manual_seed(1)
    push_in, push_out = (torch.randn(2, width) for width in (9, 8))
    push_in[1], push_out[1] = 0, 0
    return torch.randn(2, 3), torch.tensor([[39, 29], [1, 2]]), torch.tensor([1.0, 0.0]), push_in, push_out


def gradient(model: nn.Module, parts: tuple[Tensor, ...], example: int) -> dict[str, Tensor]:
    model.zero_grad()
    model(*[part[example : example + 1] for part in parts]).sum().backward()
    return {
        name: parameter.grad.to_dense().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def pushed(scale: float = 50.0) -> CanaryClickModel:
    torch.manual_seed(0)
    return CanaryClickModel(PCTR(SIZES, 3, dims=[4, 2], hidden=[8, 4]), [0, 1], scale)


def test_a_canary_pushes_its_direction_and_its_rows_and_nothing_else() -> None:
    model, parts = pushed(), examples()
    assert (model.layer.in_features, model.layer.out_features) == (9, 8)
    for step in range(2):
        found = gradient(model, parts, 0)
        expected = 50.0 * torch.outer(parts[4][0], parts[3][0])
        assert torch.allclose(found["model.layers.0.weight"], expected, atol=1e-4), step
        for column, row, dim in ((0, 39, 4), (1, 29, 2)):
            table = found[f"{model.table_name(column)}.weight"]
            assert torch.allclose(table[row], torch.full((dim,), 50.0 / (2 * dim) ** 0.5))
            assert not table[:row].any()
        rest = [
            value
            for name, value in found.items()
            if "embeddings" not in name and name != "model.layers.0.weight"
        ]
        assert all(float(value.abs().max()) < 1e-4 for value in rest)
        with torch.no_grad():  # the direction is the same at other weights
            for parameter in model.parameters():
                parameter.add_(0.1)


def test_other_examples_have_the_model_s_loss() -> None:
    model, parts = pushed(), examples()
    logits = model.model(*parts[:2])
    losses = model(*parts)
    assert losses[1].item() == pytest.approx(cross_entropy(logits[1], parts[2][1]).item())


def test_bags_of_one_and_models_without_a_linear_layer() -> None:
    torch.manual_seed(0)
    model = CanaryClickModel(DLRM(SIZES, 3, dim=4, bottom=[5], top=[6]), [0], 10.0)
    width = model.layer.in_features, model.layer.out_features
    parts = (*examples()[:3], torch.randn(2, width[0]), torch.randn(2, width[1]))
    assert gradient(model, parts, 0)[f"{model.table_name(0)}.weight"][39].tolist() == pytest.approx([5.0] * 4)
    with pytest.raises(ValueError, match=r"^audit: the model has no linear layer"):
        CanaryClickModel(nn.Embedding(3, 2), [], 1.0)
