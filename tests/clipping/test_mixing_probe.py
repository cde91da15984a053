"""When the mixing probe looks, at which examples, and what uses it up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture
from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.mixing import BATCHES, _cut, _halves


class Mixes(nn.Module):
    """Mixes the examples once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(3, 3), nn.Linear(3, 1)
        self.mixes = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.out(h - h.mean(0) if self.mixes else h)


@pytest.mark.parametrize("examples", range(2, 30))
def test_halves_divide_the_examples_with_the_ends_apart(examples: int) -> None:
    for seed in (1, 2):
        first, second = _halves(examples, seed)
        assert sorted(first + second) == list(range(examples))
        assert 0 in first
        assert examples - 1 in second
        assert abs(len(first) - len(second)) <= 3
    if examples > 6:
        assert _halves(examples, 1) != _halves(examples, 2)


def test_any_two_examples_are_parted_by_one_of_the_batches_mostly() -> None:
    """A pair that mixes hides only where both are in one half each time."""
    examples = 24
    hidden = 0
    for one in range(examples):
        for two in range(one):
            hidden += all(
                (one in _halves(examples, seed)[0]) == (two in _halves(examples, seed)[0]) for seed in (1, 2)
            )
    assert hidden / (examples * (examples - 1) / 2) < 0.35


@pytest.mark.parametrize(
    ("before", "caught"),
    [
        ([], True),
        ([torch.randn(4, 3)], True),
        ([torch.randn(4, 3)] * BATCHES, False),  # which is how long it looks
        ([torch.full((4, 3), float("nan"))] * 5, True),
        ([torch.randn(0, 3)] * 5, True),
        ([torch.randn(1, 3)] * 5, True),
    ],
)
def test_only_batches_that_show_something_count(before: list[Tensor], caught: bool) -> None:
    model = Mixes()
    capture = Capture(model, loss_reduction="sum")
    for number, batch in enumerate(before):
        capture.begin_piece(number, len(batch))
        model(batch).sum().backward()
        capture.take()
    model.mixes = True
    capture.begin_piece(9, 5)
    if caught:
        with pytest.raises(UnsupportedLayerError, match="examples"):
            model(torch.randn(5, 3))
    else:
        model(torch.randn(5, 3))
    capture.detach()


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("examples", [1, 6])
def test_state_that_only_training_carries_is_refused(examples: int, draws: bool) -> None:
    """A running mean that is used while training: a look in evaluation mode alone would not see it."""

    class RunningMean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(3, 4), nn.Linear(4, 1)
            self.mean: Tensor = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            if self.training:
                if draws:
                    h = h + torch.randn_like(h)
                h = h + self.mean
                self.mean = 0.5 * self.mean + h.detach().mean(0)
            return self.out(h).squeeze(1)

    torch.manual_seed(0)
    model = RunningMean()
    capture = Capture(model, loss_reduction="sum")
    capture.begin_piece(1, examples)
    with pytest.raises(UnsupportedLayerError, match="carries something over"):
        model(torch.randn(examples, 3))
    capture.detach()


def test_state_is_looked_for_in_single_examples_too() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.calls = nn.Linear(3, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.out(x) * self.calls

    model = Counts()
    capture = Capture(model, loss_reduction="sum")
    capture.begin_piece(1, 1)
    with pytest.raises(UnsupportedLayerError, match="carries something over"):
        model(torch.randn(1, 3))
    capture.detach()


def test_arguments_are_cut_along_the_examples_where_that_is_plain() -> None:
    chosen = torch.tensor([0, 2])
    x, flat, lengths = torch.randn(4, 3), torch.arange(9), torch.arange(4)
    (cut, scalar, word), named = _cut(((x, 2.5, "a"), {"n": lengths}), 4, chosen)  # type: ignore[misc]
    assert torch.equal(cut, x[chosen])
    assert (scalar, word) == (2.5, "a")
    assert named["n"].tolist() == [0, 2]
    assert _cut(((x, flat), {}), 4, chosen) is None  # ids without examples
    assert _cut(((x, object()), {}), 4, chosen) is None
    other = torch.randn(9)
    kept = _cut(((x, other, torch.tensor(1)), {}), 4, chosen)
    assert kept is not None
    assert kept[0][1] is other


def test_every_buffer_mode_and_switch_is_given_back() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 1)
            for name in ("first", "second", "third"):
                self.register_buffer(name, torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.first += 1
            self.second.mul_(2).add_(1)
            self.third[0] = self.third[0] + 1
            return self.out(x)

    model = nn.Sequential(Writes(), nn.Dropout(0.0), nn.Sequential(nn.Dropout(0.5)))
    model[2].eval()
    capture = Capture(model, loss_reduction="sum")
    fast = torch.backends.mha.get_fastpath_enabled()
    capture.begin_piece(1, 4)
    model(torch.randn(4, 3))
    assert [buffer.tolist() for buffer in model.buffers()] == [[1, 1], [1, 1], [1, 0]]
    assert [module.training for module in model.modules()] == [True, True, True, True, False, False]
    assert torch.backends.mha.get_fastpath_enabled() == fast
    capture.detach()


class HiddenByDropout(nn.Module):
    """Mixes in training only, hidden from gradients, beside dropout."""

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.first, self.dropout, self.out = nn.Linear(3, 3), dropout, nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(self.first(x))
        return self.out(h - h.mean(0).detach() if self.training else h)


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.AlphaDropout(0.5), nn.Identity()])
def test_dropout_does_not_hide_what_mixes_in_training_only(dropout: nn.Module) -> None:
    model = HiddenByDropout(dropout)
    capture = Capture(model, loss_reduction="sum")
    capture.begin_piece(1, 6)
    with pytest.raises(UnsupportedLayerError, match="examples"):
        model(torch.randn(6, 3))
    capture.detach()
