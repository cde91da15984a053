"""Layers that mix the examples of a batch are named; those that do not are left alone, and as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture
from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.mixing import BATCHES


class Between(nn.Module):
    """Something between two linear layers."""

    def __init__(self, middle: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x))).squeeze(1)


def passes(model: nn.Module, *batches: Tensor) -> None:
    """Training passes under a capture."""
    capture = Capture(model, loss_reduction="sum")
    try:
        for number, batch in enumerate(batches):
            capture.begin_piece(number, len(batch))
            model(batch).sum().backward()
            capture.take()
    finally:
        capture.detach()


MIXING = {
    "batch mean": lambda h: h - h.mean(0),
    "batch mean, hidden from gradients": lambda h: h - h.mean(0).detach(),
    "largest of the batch": lambda h: h / h.abs().amax().detach(),
    "rolled": lambda h: h + 0.5 * h.roll(1, 0),
    "sorted": lambda h: h.sort(0).values,
    "a little": lambda h: h + 0.05 * h.sum(0),
    "those before it, hidden from gradients": lambda h: h + h.detach().cumsum(0),
    "those after it, hidden from gradients": lambda h: h + h.detach().flip(0).cumsum(0).flip(0),
    "overflows where one is large": lambda h: h * torch.where(h.detach().abs().amax() < 1e3, 1.0, torch.inf),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_examples_is_refused(name: str) -> None:
    torch.manual_seed(0)
    batch = torch.randn(5, 3)
    if name.startswith("overflows"):
        batch[3] *= 1e6
    with pytest.raises(UnsupportedLayerError, match="examples"):
        passes(Between(MIXING[name]), batch)


@pytest.mark.parametrize("hidden", [False, True])
def test_examples_in_the_middle_that_mix_are_seen(hidden: bool) -> None:
    """The first two and the last example of a batch stand for themselves, and small batches do."""

    def mix(h: Tensor) -> Tensor:
        others = h[2:-1].detach() if hidden else h[2:-1]
        return h if len(h) < 4 else torch.cat([h[:2], h[2:-1] + others.flip(0), h[-1:]])

    torch.manual_seed(0)
    with pytest.raises(UnsupportedLayerError, match="examples"):
        passes(Between(mix), torch.randn(12, 3))


def test_gradients_show_what_random_numbers_hide() -> None:
    """Noise in the forward leaves no two calls alike, in training and evaluation."""
    torch.manual_seed(0)
    with pytest.raises(UnsupportedLayerError, match="depends on others"):
        passes(Between(lambda h: h + 0.3 * torch.randn_like(h) - h.mean(0)), torch.randn(5, 3))


def test_positions_without_examples_are_refused_where_their_number_is_the_batch_size() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.out = nn.Embedding(8, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x + self.positions(torch.arange(x.shape[1]))).sum((1, 2))

    torch.manual_seed(0)
    with pytest.raises(UnsupportedLayerError, match="positions"):
        passes(Positions(), torch.randn(5, 5, 4))


def test_state_carried_from_call_to_call_is_refused() -> None:
    class Carries(Between):
        last_mean: Any = 0.0

        def forward(self, x: Tensor) -> Tensor:
            out = self.last(self.first(x) + self.last_mean).squeeze(1)
            type(self).last_mean = type(self).last_mean + 1.0
            return out

    for examples in (1, 5):
        with pytest.raises(UnsupportedLayerError, match="carries something over"):
            passes(Carries(None), torch.randn(examples, 3))


@pytest.mark.parametrize(
    "middle", [nn.Identity(), nn.Dropout(0.5), nn.LayerNorm(4), nn.GELU(), lambda h: h + torch.randn_like(h)]
)
def test_models_that_do_not_mix_pass(middle: Any) -> None:
    torch.manual_seed(0)
    passes(Between(middle), *(torch.randn(size, 3) for size in (5, 2, 1, 3)))


def test_only_the_first_batches_are_probed_and_empty_ones_do_not_count() -> None:
    calls: list[int] = []

    def middle(h: Tensor) -> Tensor:
        calls.append(len(h))
        return h

    model = Between(middle)
    passes(model, torch.randn(0, 3), *(torch.randn(4, 3) for _ in range(BATCHES)))
    probed = len(calls)
    assert calls[0] == 0
    assert calls[1] == 4
    assert probed > 1 + BATCHES
    calls.clear()
    passes(model, *(torch.randn(4, 3) for _ in range(BATCHES + 3)))
    assert len(calls) - 3 == probed - 1


def test_the_probe_leaves_buffers_modes_and_random_numbers_alone() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, h: Tensor) -> Tensor:
            self.calls += 1
            return h + 0.0 * torch.rand_like(h)

    model = Between(Counts())
    model.last.eval()
    torch.manual_seed(3)
    torch.rand_like(torch.empty(4, 4))
    expected = torch.rand(3)
    torch.manual_seed(3)
    batch = torch.ones(4, 3)
    passes(model, batch)
    assert float(model.middle.calls) == 1.0
    assert (model.training, model.first.training, model.last.training) == (True, True, False)
    assert torch.equal(torch.rand(3), expected)


class Cancelling(nn.Module):
    """Its outputs are zero but for rounding, which differs with the size of the batch as a processor's may."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(1, 4096, dtype=dtype), nn.LayerNorm(4096, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        values = self.norm(self.linear(x))
        if len(x) < 3:
            values = values.sort(1).values
        total = values.new_zeros(len(x))
        for part in values.split(64, 1):
            total = total + part.sum(1)
        return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_rounding_is_not_mixing(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    model = Cancelling(dtype)
    x = torch.randn(5, 1, dtype=dtype)
    with torch.no_grad():
        together, apart = model(x)[:2], model(x[:2])
    assert (together - apart).abs().amax() > 0.01 * together.abs().amax(), "the rounding must show"
    passes(model, x)


@pytest.mark.parametrize("name", ["batch mean, hidden from gradients", "largest of the batch"])
def test_mixing_is_seen_beside_rounding(name: str) -> None:
    """Outputs that cancel do not hide a layer before them that mixes."""
    torch.manual_seed(0)
    with pytest.raises(UnsupportedLayerError, match="examples"):
        passes(
            nn.Sequential(Between(MIXING[name]), nn.Unflatten(0, (-1, 1)), Cancelling(torch.float32)),
            torch.randn(5, 3),
        )


class OneOfMany(nn.Module):
    """One of very many outputs of an example looks at the others."""

    def __init__(self) -> None:
        super().__init__()
        self.many = nn.Linear(3, 4000)

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.many(x)
        return torch.cat([outputs[:, :1] + 0.3 * outputs[:, :1].detach().sum(0), outputs[:, 1:]], 1)


def test_one_mixed_output_among_thousands_is_seen() -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedLayerError, match="examples"):
        passes(OneOfMany(), torch.randn(5, 3))


class PaddedEncoder(nn.Module):
    """In evaluation mode torch packs the examples of such a model into one nested tensor."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x, src_key_padding_mask=x[:, :, 0] > 1).mean(1))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
def test_a_transformer_encoder_with_padding_and_dropout_passes() -> None:
    torch.manual_seed(0)
    passes(PaddedEncoder(), torch.randn(5, 4, 8))
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("becomes", ["another layer", "not finite", "another shape"])
def test_mixing_is_seen_where_the_last_bits_decide_what_comes_out(becomes: str) -> None:
    """How far rounding moves such a model's outputs cannot be told: nothing is taken for rounding."""

    class Decides(Between):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            exact = nn.functional.linear(x, self.first.weight.detach(), self.first.bias.detach())
            mixed = h - h.mean(0).detach()
            if not torch.equal(h, exact):
                if becomes == "another layer":
                    mixed = mixed + 0.0 * self.last(mixed)
                elif becomes == "not finite":
                    mixed = mixed * torch.nan
                else:
                    mixed = torch.cat([mixed, mixed])
            return self.last(mixed).squeeze(1)

    torch.manual_seed(0)
    with pytest.raises(UnsupportedLayerError, match="gives another output"):
        passes(Decides(None), torch.randn(5, 3))


def test_mixing_is_seen_in_small_outputs_beside_the_rounding_of_large_ones() -> None:
    """Every output is held to its own size and its own rounding."""

    class Beside(Between):
        def __init__(self, size: float) -> None:
            super().__init__(MIXING["batch mean, hidden from gradients"])
            self.large, self.last = nn.Linear(3, 4), nn.Linear(4, 1, bias=False)
            self.size = size

        def forward(self, x: Tensor) -> Tensor:
            unused = self.large(self.size * x)
            return (self.last(self.middle(1e-6 * self.first(x))) + 0.0 * unused[:, :1]).squeeze(1)

    torch.manual_seed(0)
    batch = torch.randn(5, 3)
    for size in (1.0, 1e9):
        with pytest.raises(UnsupportedLayerError, match="gives another output"):
            passes(Beside(size), batch)
