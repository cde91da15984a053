from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sparsedp.clipping import Capture
from sparsedp.clipping.mixing import BATCHES


class Clicks(nn.Module):
    """One-hot and multi-hot tables under a small network, with a dict for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Embedding(7, 3, sparse=True)
        self.many = nn.EmbeddingBag(9, 4, mode="sum")
        self.top = nn.Sequential(nn.Linear(9, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        read = [batch["numbers"], self.one(batch["one"]), self.many(batch["many"])]
        return self.top(torch.cat(read, 1)).squeeze(1)


def clicks(size: int) -> dict[str, Tensor]:
    return {
        "numbers": torch.randn(size, 2),
        "one": torch.randint(0, 7, (size,)),
        "many": torch.randint(0, 9, (size, 5)),
    }


def per_click(output: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output, (output.detach() > 0).float(), reduction="none")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_micro_batches_are_passes_of_their_own(reference, agree, reduction):
    model = Clicks()
    batches = [clicks(size) for size in (4, 1, 6)]
    expected = [reference(model, (b,), len(b["one"]), per_click) for b in batches]
    capture = Capture(model, loss_reduction=reduction)
    assert set(capture.tables) == {"one", "many"}
    assert capture.tables["many"].parameter is model.many.weight
    for batch in batches:
        getattr(per_click(model(batch)), reduction)().backward()
    passes = capture.take()
    assert [captured.batch_size for captured in passes] == [4, 1, 6]
    for captured, want in zip(passes, expected, strict=True):
        agree(captured, capture, want)
    assert capture.take() == []


@pytest.mark.parametrize("examples", [3, 41, 1493, 8193])
def test_a_mean_is_undone_to_the_last_bit(examples):
    """Else one more example would scale the gradients of all others, by the rounding of 1 / n to float32."""
    model = nn.Linear(1, 1, bias=False)
    capture = Capture(model, loss_reduction="mean")
    model(torch.ones(examples, 1)).mean().backward()
    [captured] = capture.take()
    found = captured.scale * captured.dense["weight"].instantiate().double()
    assert float((found - 1.0).abs().max()) < 2.0**-50
    rounded = float(torch.tensor(1.0) / examples)
    assert abs(examples * rounded - 1.0) > 2.0**-30, "the rounding of 1 / n must show"


def test_an_empty_batch():
    model = Clicks()
    capture = Capture(model, loss_reduction="sum")
    per_click(model(clicks(0))).sum().backward()
    [captured] = capture.take()
    assert captured.batch_size == 0
    assert set(captured.dense) == set(capture.dense)
    assert set(captured.tables) == set(capture.tables)
    for name, gradient in captured.dense.items():
        assert gradient.squared_norms().shape == (0,)
        out = torch.ones_like(capture.dense[name])
        gradient.accumulate(out, torch.zeros(0))
        assert torch.equal(out, torch.ones_like(out))
    assert len(captured.tables["many"]) == 0


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.body = nn.Linear(4, 4)
        self.out = nn.Linear(4, 9, bias=False)
        self.out.weight = self.words.weight
        self.twice = twice

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.body(self.words(ids)))
        if self.twice:
            h = torch.tanh(self.body(h + self.words(ids.flip(1))))
        return self.out(h)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("length", [1, 6])
def test_tied_weights_have_their_cross_terms(check, twice, length):
    capture = check(Tied(twice), torch.randint(0, 9, (5, length)))
    assert capture.tables == {}
    assert set(capture.dense) == {"words.weight", "body.weight", "body.bias"}


def test_a_tied_pair_of_linear_layers(check):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    assert set(check(model, torch.randn(5, 4)).dense) == {"0.weight", "0.bias", "2.bias"}


def test_tables_that_share_a_parameter_are_one_table(check):
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Embedding(6, 3), nn.Embedding(6, 3, padding_idx=2)
            self.bag = nn.EmbeddingBag(6, 3, mode="mean")
            self.right.weight = self.bag.weight = self.left.weight

        def forward(self, ids: Tensor) -> Tensor:
            read = self.left(ids).sum(1) * self.right(ids).sum(1) + self.bag(ids)
            return read + self.left(ids[:, 0])

    capture = check(Pair(), torch.randint(0, 6, (5, 4)))
    assert set(capture.tables) == {"left"}
    assert capture.tables["left"].parameter_name == "left.weight"


def test_a_module_called_several_times(check):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.norm = nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(4):
                x = self.norm(torch.tanh(self.layer(x)))
            return x + self.layer(x.unsqueeze(1)).sum(1)

    check(Recurrent(), torch.randn(5, 3), tolerance=3e-5)


def test_one_module_under_two_names(check):
    layer = nn.Linear(3, 3)
    both = nn.Sequential(layer, nn.Tanh(), layer)
    assert set(check(both, torch.randn(4, 3)).dense) == {"0.weight", "0.bias"}


def test_what_receives_no_gradient_contributes_nothing():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "unused": nn.Linear(3, 2)})
    capture = Capture(model, loss_reduction="sum")
    x = torch.randn(4, 3)
    model["unused"](x)
    model["used"](x).sum().backward()
    [captured] = capture.take()
    assert set(captured.dense) == {"used.weight", "used.bias"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_in_a_narrow_type_is_refused(dtype):
    model = nn.Linear(3, 2, dtype=dtype)
    for reduction in ("mean", "sum"):
        capture = Capture(model, loss_reduction=reduction)
        model(torch.ones(4, 3, dtype=dtype)).sum().backward()
        if reduction == "mean":
            with pytest.raises(ValueError, match="loss_reduction='sum'"):
                capture.take()
        else:
            assert len(capture.take()) == 1
        capture.detach()


def test_one_backward_pass_through_two_pieces_is_refused():
    model = nn.Linear(3, 2)
    capture = Capture(model, loss_reduction="sum")
    losses = []
    for piece in (1, 2):
        capture.begin_piece(piece, 4)
        losses.append(model(torch.randn(4, 3)).sum())
    sum(losses).backward()
    with pytest.raises(RuntimeError, match="two batches"):
        capture.take_pieces({1: 4, 2: 4})


def test_an_input_changed_in_place_after_the_backward_pass_is_refused():
    model = nn.Linear(3, 2)
    capture = Capture(model, loss_reduction="sum")
    x = torch.randn(4, 3)
    model(x).sum().backward()
    x.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        capture.take()


@pytest.mark.parametrize("examples", [3, 5])
def test_a_layer_must_have_the_examples_that_were_handed_out(examples):
    model = nn.Linear(3, 2)
    capture = Capture(model, loss_reduction="sum")
    capture.begin_piece(1, examples)
    model(torch.randn(4, 3)).sum().backward()
    with pytest.raises(ValueError, match=f"where the batch has {examples} examples"):
        capture.take_pieces({1: examples})


def test_batch_sizes_must_agree():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.words(ids).flatten(0, 1))

    model = Flat()
    capture = Capture(model, loss_reduction="mean")
    model(torch.randint(0, 5, (4, 3))).sum().backward()
    with pytest.raises(
        ValueError, match=r"batch: dimension 0 .*'words' gives \[4, 3, 3\] where 'out' has 12"
    ):
        capture.take()
    assert capture.take() == []


def test_positions_without_a_batch_dimension_are_named():
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(5, 3), nn.Embedding(6, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.words(ids) + self.places(torch.arange(ids.shape[1]))

    model = Positions()
    capture = Capture(model, loss_reduction="mean")
    model(torch.randint(0, 5, (4, 6))).sum().backward()
    with pytest.raises(ValueError, match=r"'(words|places)' gives"):
        capture.take()


def test_a_parameter_used_outside_its_module_is_named():
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.words(ids) @ self.words.weight.T

    model = Outside()
    Capture(model, loss_reduction="mean")
    with pytest.raises(RuntimeError, match=r"parameter 'words.weight': is used outside"):
        model(torch.tensor([1, 2])).sum().backward()
    assert model.words.weight.grad is None


def test_nothing_is_captured_in_evaluation_or_without_gradients():
    model = nn.Linear(3, 2)
    capture = Capture(model, loss_reduction="mean")
    with torch.no_grad():
        model(torch.randn(4, 3))
    model.eval()
    x = torch.randn(4, 3, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
    assert model.weight.grad is not None
    with pytest.raises(RuntimeError, match=r"evaluation mode.*train\(\)"):
        capture.take()
    model.train()
    model(x).sum().backward()
    assert len(capture.take()) == 1


def test_a_part_in_evaluation_mode_is_captured():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].eval()
    capture = Capture(model, loss_reduction="mean")
    model(torch.randn(4, 3)).sum().backward()
    assert set(capture.take()[0].dense) == set(capture.dense)


def test_freezing_later_is_seen_and_thawing_is_refused():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    capture = Capture(model, loss_reduction="mean")
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    model(torch.randn(4, 3)).sum().backward()
    assert set(capture.take()[0].dense) == {"1.bias"}
    assert not model[0].weight.requires_grad
    model[1].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"parameter '1.weight': was frozen"):
        capture.take()


def test_hooks_of_the_users_see_and_change_what_they_always_did(reference, agree):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    seen = []
    model[0].register_forward_hook(lambda module, args, output: 2 * output)
    x = torch.randn(5, 3)

    def attach() -> None:
        model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        model[2].register_full_backward_hook(lambda module, grads, outs: seen.append(outs[0].shape))

    capture = Capture(model, loss_reduction="sum")
    attach()
    for _ in range(BATCHES):  # the first batches are probed, which hooks see too
        model(x)
    seen.clear()
    model(x).sin().sum().backward()
    [captured] = capture.take()
    assert seen == [(5, 2)]
    capture.detach()
    agree(captured, capture, reference(model, (x,), 5, lambda out: out.sin().sum(1)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reference, agree, reentrant):
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 4)
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
            self.save = False

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return checkpoint(self.block, h, use_reentrant=reentrant) if self.save else self.block(h)

    model, x = Deep(), torch.randn(5, 3)
    expected = reference(model, (x,), 5)
    model.save = True
    capture = Capture(model, loss_reduction="sum")
    from_output = model(x)
    ramp = torch.linspace(0.5, 1.5, 4)
    ((from_output * ramp).sin().sum() + 0.1 * from_output.square().sum()).backward()
    [captured] = capture.take()
    assert set(captured.dense) == set(capture.dense)
    agree(captured, capture, expected)


def test_a_second_capture_is_refused_until_the_first_is_detached():
    model = nn.Sequential(nn.Linear(3, 2))
    capture = Capture(model, loss_reduction="mean")
    with pytest.raises(ValueError, match=r"module: .*captured already"):
        Capture(model, loss_reduction="mean")
    capture.detach()
    Capture(model, loss_reduction="mean").detach()
    model(torch.randn(4, 3)).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize(
    ("module", "reduction", "message"),
    [(nn.Linear(2, 2), "none", "loss_reduction: .*'none'"), (torch.relu, "mean", "module: .*nn.Module")],
)
def test_bad_arguments(module, reduction, message):
    with pytest.raises(ValueError, match=message):
        Capture(module, loss_reduction=reduction)
