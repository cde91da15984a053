"""Float32 sums of clipped gradients stay within the slack that clipping leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import sparsedp as sdp
from sparsedp.clipping import Captured
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.core.tables import TableShape
from sparsedp.rows import EmbeddingLookups, RowSpace
from sparsedp.selection import Selected
from sparsedp.training.batch import CLIP_SLACK, LogicalBatch, clip_share, most_in_float32
from sparsedp.training.step import StepSums

CLIP = 0.3


def signs(kind: str, examples: int, generator: torch.Generator) -> Tensor:
    """One sign an example."""
    ones = torch.ones(examples)
    if kind == "alternating":
        ones[1::2] = -1.0
    elif kind == "cancelling":
        ones[examples // 2 :] = -1.0
    elif kind == "random":
        ones[torch.rand(examples, generator=generator) < 0.5] = -1.0
    return ones


def clipped_sums(
    inputs: Tensor, grads: Tensor, row_grads: Tensor, batch_size: int
) -> tuple[np.ndarray, Tensor]:
    """A step's sums of a matrix, its bias and a row that every example reads; and the examples' weights."""
    examples = len(inputs)
    space = RowSpace(selectable=(), always_on=(TableShape("table", 4, row_grads.shape[1]),))
    weight, bias = torch.empty(grads.shape[1], inputs.shape[1]), torch.empty(grads.shape[1])
    read = EmbeddingLookups(torch.zeros(examples, dtype=torch.int64), torch.arange(examples), row_grads)
    captured = Captured(
        examples,
        1.0,
        {"weight": OuterProducts(inputs, grads), "bias": Materialised(grads)},
        {"table": read},
        {},
    )
    rule = sdp.DPSGD().rule(
        space, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=float(batch_size)
    )
    selected = Selected(np.empty(0, dtype=np.int64))
    batch, sums = LogicalBatch([captured], space), StepSums(rule, selected, {"weight": weight, "bias": bias})
    survivors = batch.surviving(selected)
    weights = batch.clip_weights(batch.squared_norms(survivors), CLIP * clip_share(batch_size))
    sums.add(batch, survivors, weights)
    return np.concatenate([sums._flat, sums._touched[0][1].ravel()]), torch.from_numpy(weights)


def exact_sums(inputs: Tensor, grads: Tensor, row_grads: Tensor, weights: Tensor, batch: int) -> np.ndarray:
    """The same with float64 products and sums, each example's norm after clipping checked on the way."""
    a, g, r, w = inputs.double(), grads.double(), row_grads.double(), weights.double()
    norms = w * torch.sqrt(g.square().sum(1) * (a.square().sum(1) + 1.0) + r.square().sum(1))
    torch.testing.assert_close(
        norms, torch.full_like(norms, CLIP * clip_share(batch)), rtol=2.0**-19, atol=0.0
    )
    return np.concatenate([((g * w[:, None]).T @ a).numpy().ravel(), (g.T @ w).numpy(), (r.T @ w).numpy()])


def factors(examples: int, kind: str, shape: str) -> tuple[Tensor, Tensor]:
    """Layer inputs and output gradients of examples that are all longer than C."""
    generator = torch.Generator().manual_seed(examples)
    inputs, grads = torch.rand(7, generator=generator) + 0.1, torch.rand(5, generator=generator) + 0.1
    if shape == "one coordinate large":
        inputs[3], grads[2] = 3e4, 1e3
    inputs, grads = inputs.expand(examples, 7).clone(), grads.expand(examples, 5).clone()
    if shape == "other factors":  # no two examples alike, in four orders of magnitude
        inputs *= 10.0 ** (4 * torch.rand(examples, 1, generator=generator) - 2)
        grads *= 1 + torch.rand(examples, 5, generator=generator)
    return inputs, 1e3 * grads * signs(kind, examples, generator)[:, None]


@pytest.mark.parametrize("shape", ["even", "one coordinate large", "other factors"])
@pytest.mark.parametrize("kind", ["equal", "alternating", "cancelling", "random"])
@pytest.mark.parametrize("examples", [1024, 8192, 65536])
def test_float32_sums_stay_within_the_clip_slack(examples: int, kind: str, shape: str) -> None:
    """One more example, all of them of norm C: the sum moves by its own gradient, to 2^-11 C."""
    inputs, grads = factors(examples + 1, kind, shape)
    rows = grads[:, :3].clone()
    found, _ = clipped_sums(inputs[1:], grads[1:], rows[1:], examples)
    more, weights = clipped_sums(inputs, grads, rows, examples)
    own = exact_sums(inputs[:1], grads[:1], rows[:1], weights[:1], examples)
    assert np.linalg.norm(more - found - own) < 2.0**-11 * CLIP
    assert 0.98 * CLIP < np.linalg.norm(more - found) <= CLIP


def periodic(seed: int) -> Tensor:
    """Gradients that repeat: an example in front shifts the rounding of all sums."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 64, (256,), generator=generator)
    return 1 - 2.0**-9 - 2.0**-18 * steps


def hovering() -> list[Tensor]:
    """Sums climb to a power of two, where the spacing of float32 doubles, and stay there.

    One example in front moves all of them to its other side, where they round otherwise.
    """
    blocks = []
    for size, top in ((128, 32), (128, 63), (128, 64), (256, 64), (256, 127), (512, 255)):
        for up, down in ((2.0**-18, 0.0), (3 * 2.0**-19, 2.0**-19), (3 * 2.0**-19, 3 * 2.0**-19)):
            stay = torch.tensor([1 - up, down - 1]).repeat(size)
            blocks.append(torch.cat([torch.ones(top), stay[: size - top - 1], torch.ones(1)]))
    return blocks


def moved_beyond(values: Tensor, batch: float, in_float32: bool = False, side: int = 2) -> float:
    """By how much of C the sum of a matrix's first number moves further than the example that is put in front."""
    space, ones = RowSpace(selectable=()), torch.eye(side)[0].repeat(len(values) + 1, 1)
    rule = sdp.DPSGD().rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch)
    totals = []
    for grads in (values, torch.cat([values[:1], values])):
        captured = Captured(
            len(grads), 1.0, {"weight": OuterProducts(ones[: len(grads)], grads[:, None] * ones[0])}, {}, {}
        )
        sums = StepSums(rule, Selected(np.empty(0, dtype=np.int64)), {"weight": torch.empty(side, side)})
        if in_float32:
            sums._float32_left = len(grads)
        sums.add(LogicalBatch([captured], space), np.empty(0, np.int64), np.ones(len(grads), np.float32))
        totals.append(float(sums._flat[0]))
    return abs(totals[1] - totals[0] - float(values[0]))


ROUNDED_AGAINST = {"periodic": [periodic(seed) for seed in (8, 14)], "hovering": hovering()}


@pytest.mark.parametrize("kind", ROUNDED_AGAINST)
@pytest.mark.parametrize("examples", [512, 1024, 2048, 8192, 65536])
@pytest.mark.parametrize("side", [1, 2, 64])
def test_an_example_does_not_move_the_rounding_of_the_others(examples: int, kind: str, side: int) -> None:
    """Beyond its own gradient by no more than is kept free below C. From 64 on, sums are added by ``addmm_``."""
    free = CLIP_SLACK - clip_share(examples)
    for block in ROUNDED_AGAINST[kind]:
        values = block.repeat(examples // len(block))
        assert moved_beyond(values, float(examples), side=side) <= max(free, 2.0**-20)


def test_float32_sums_need_what_is_kept_free() -> None:
    """The controls: with 2^-10 C kept free, hovering sums of a batch that is small enough for float32 would pass it;
    and those of a large batch pass what is kept free for a small one."""
    blocks = ROUNDED_AGAINST["hovering"]
    assert max(moved_beyond(block.repeat(2048 // len(block)), 2048.0) for block in blocks) > 2.0**-9
    free = CLIP_SLACK - clip_share(256)
    moved = max(moved_beyond(block.repeat(65536 // len(block)), 1.0, in_float32=True) for block in blocks)
    assert moved > free


def test_examples_beyond_those_allowed_are_summed_in_float64() -> None:
    """A batch much larger than expected, and one that grows piece by piece."""
    allowed = most_in_float32(256)
    block = max(ROUNDED_AGAINST["hovering"], key=lambda block: moved_beyond(block.repeat(16), 2048.0))
    assert moved_beyond(block.repeat(8), 8.0) <= 2.0**-20 < moved_beyond(block.repeat(8), 1024.0)
    rule = sdp.DPSGD().rule(
        RowSpace(selectable=()), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=256.0
    )
    sums = StepSums(rule, Selected(np.empty(0, dtype=np.int64)), {"weight": torch.empty(1, 1)})
    dtypes = []
    for _ in range(4):
        piece = LogicalBatch([Captured(128, 1.0, {}, {}, {})], rule.space)
        piece.accumulate_dense = lambda name, out, weights: dtypes.append(weights.dtype)  # type: ignore[method-assign, misc]
        sums.add(piece, np.empty(0, np.int64), np.ones(128, np.float32))
    assert 2 * 128 <= allowed < 3 * 128
    assert dtypes == [np.float32, np.float32, np.float64, np.float64]
