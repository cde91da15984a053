from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.language import write_model
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from sparsedp.models import DLRM, PCTR
from sparsedp.models.text_classifier import TextClassifier, load_text_classifier
from sparsedp.runs.canary_model import CanaryClickModel, CanaryModel, CanaryTextModel

SIZES = [40, 30]


def examples() -> tuple[Tensor, ...]:
    """A canary, then an ordinary example."""
    torch.manual_seed(1)
    push_in, push_out = (torch.randn(2, width) for width in (9, 8))
    push_in[1], push_out[1] = 0, 0
    ids, label = torch.tensor([[39, 29], [1, 2]]), torch.tensor([1.0, 0.0])
    return torch.randn(2, 3), ids, torch.empty(2, 0, 3, dtype=torch.int64), label, push_in, push_out


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
        expected = 50.0 * torch.outer(parts[5][0], parts[4][0])
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
    assert losses[1].item() == pytest.approx(cross_entropy(logits[1], parts[3][1]).item())


def test_bags_of_one_and_models_without_a_linear_layer() -> None:
    torch.manual_seed(0)
    model = CanaryClickModel(DLRM(SIZES, 3, dim=4, bottom=[5], top=[6]), [0], 10.0)
    width = model.layer.in_features, model.layer.out_features
    parts = (*examples()[:4], torch.randn(2, width[0]), torch.randn(2, width[1]))
    assert gradient(model, parts, 0)[f"{model.table_name(0)}.weight"][39].tolist() == pytest.approx([5.0] * 4)
    with pytest.raises(ValueError, match=r"^audit: the model has no linear layer"):
        CanaryClickModel(nn.Embedding(3, 2), [], 1.0)


def with_bags(scale: float = 10.0) -> tuple[CanaryClickModel, tuple[Tensor, ...]]:
    """A model with a multi-hot feature, whose row 19 the canary reads twice."""
    torch.manual_seed(0)
    inner = DLRM(SIZES, 3, multi_hot_sizes=[20], dim=4, bottom=[5], top=[6])
    model = CanaryClickModel(inner, [0, 2], scale)
    numeric, ids, _, label, *_ = examples()
    pushes = [torch.randn(2, width) for width in (model.layer.in_features, model.layer.out_features)]
    for push in pushes:
        push[1] = 0
    return model, (numeric, ids, torch.tensor([[[19, 19, 3]], [[3, 3, 5]]]), label, *pushes)


def test_a_row_that_a_bag_holds_twice_is_pushed_twice() -> None:
    model, parts = with_bags()
    found = gradient(model, parts, 0)
    each = 10.0 / 8**0.5
    bags = found[f"{model.table_name(2)}.weight"]
    assert bags[19].tolist() == pytest.approx([2 * each] * 4)
    assert bags[3].tolist() == pytest.approx([each] * 4)
    assert int((bags != 0).any(dim=1).sum()) == 2
    assert found[f"{model.table_name(0)}.weight"][39].tolist() == pytest.approx([each] * 4)
    flat = torch.tensor([19, 19, 3, 3, 3, 5]), torch.tensor([0, 3])
    expected = cross_entropy(model.model(*parts[:2], flat)[1], parts[3][1])
    assert model(*parts)[1].item() == pytest.approx(expected.item())


def text_model(folder: Path, embedding: str = "full") -> tuple[CanaryTextModel, tuple[Tensor, ...]]:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    write_model(folder, hidden_size=16)
    torch.manual_seed(0)
    inner = load_text_classifier(folder, embedding=embedding, lora_rank=2)  # type: ignore[arg-type]
    assert isinstance(inner, TextClassifier)
    nn.init.normal_(inner.head.weight)
    model = CanaryTextModel(inner, 10.0, has_types=True)
    push_in, push_out = (
        torch.randn(2, width) for width in (model.layer.in_features, model.layer.out_features)
    )
    push_in[1], push_out[1] = 0, 0
    ids, label = torch.tensor([[39, 4, 5], [6, 7, 0]]), torch.tensor([1, 0])
    mask, types = torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.tensor([[0, 1, 1], [0, 1, 0]])
    return model, (ids, mask, types, label, push_in, push_out)


def test_a_canary_text_pushes_its_direction_and_its_first_token(tmp_path: Path) -> None:
    model, parts = text_model(tmp_path)
    assert model.layer.weight.requires_grad
    assert model.layer.weight.numel() == 32
    found = gradient(model, parts, 0)
    words = found.pop(f"{model.table_name}.weight")
    assert torch.allclose(words[39], torch.full((16,), 10.0 / 16**0.5))
    assert float(words[:39].abs().max()) < 1e-5
    pushed = [grad for grad in found.values() if float(grad.abs().max()) > 1e-5]
    assert len(pushed) == 1
    assert torch.allclose(pushed[0], 10.0 * torch.outer(parts[5][0], parts[4][0]), atol=1e-5)


def test_other_texts_have_the_classifier_s_loss(tmp_path: Path) -> None:
    model, parts = text_model(tmp_path)
    inputs = {"input_ids": parts[0][1:], "attention_mask": parts[1][1:], "token_type_ids": parts[2][1:]}
    assert isinstance(model.model, TextClassifier)
    expected = model.model.loss({**inputs, "labels": parts[3][1:]})
    assert model(*parts)[1].item() == pytest.approx(expected.item())


def test_an_adapted_word_embedding_is_pushed_through_its_adapter(tmp_path: Path) -> None:
    model, parts = text_model(tmp_path, "lora")
    found = gradient(model, parts, 0)
    (columns,) = [grad for name, grad in found.items() if "lora_embedding_A" in name]
    assert (columns[:, 39] != 0).all()
    assert float(columns[:, :39].abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["clicks", "bags", "texts"])
def test_losses_of_canaries_need_no_pass_of_the_model(kind: str, tmp_path: Path) -> None:
    made: dict[str, tuple[CanaryModel, tuple[Tensor, ...]]] = {}
    if kind == "texts":
        made[kind] = text_model(tmp_path)
    else:
        made = {"clicks": (pushed(), examples()), "bags": with_bags()}
    model, parts = made[kind]
    losses, of_canaries = model(*parts), model.canary_losses(*parts)  # type: ignore[operator]
    assert torch.equal(losses[0], of_canaries[0])
    assert of_canaries[1] == 0.0
    assert losses[1] != 0.0
