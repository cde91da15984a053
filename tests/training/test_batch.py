"""How far below C gradients are clipped, and how many of them float32 sums may hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from support.batches import one_table, scores_of

import sparsedp as sdp
from sparsedp.clipping import Captured
from sparsedp.clipping.gradients.base import float32_sums_move
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.rows import EmbeddingLookups, RowSpace
from sparsedp.selection import Selected
from sparsedp.training.batch import CLIP_SLACK, LogicalBatch, clip_share, most_in_float32
from sparsedp.training.step import StepSums

BATCHES = [0.3, 1.0, 17.5, 128.0, 256.0, 1000.0, 2047.9, 2048.0, 2048.5, 4096.0, 1e6]


@pytest.mark.parametrize("batch", BATCHES)
def test_what_is_kept_free_covers_every_example_that_a_step_sums_in_float32(batch: float) -> None:
    rule = sdp.DPSGD().rule(
        RowSpace(selectable=()), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
    )
    allowed = StepSums(rule, Selected(np.empty(0, np.int64)), {})._float32_left
    assert CLIP_SLACK - clip_share(batch) == pytest.approx(float32_sums_move(allowed), abs=1e-15)


@pytest.mark.parametrize("batch", [batch for batch in BATCHES if batch <= 2048])
def test_hardly_a_batch_is_too_large_for_float32(batch: float) -> None:
    """One Poisson batch in 10^8 has more examples."""
    assert stats.poisson.sf(most_in_float32(batch), batch) < 1e-8


def test_what_is_kept_free_is_small() -> None:
    """As the documentation has it: 0.3% at 256, 2% at 2048, nothing beyond."""
    assert 1 - clip_share(256.0) == pytest.approx(2.0**-10 + 0.003, abs=5e-4)
    assert 1 - clip_share(2048.0) == pytest.approx(2.0**-10 + 0.02, abs=5e-4)
    assert [clip_share(batch) for batch in (2048.5, 4096.0, 1e6)] == [CLIP_SLACK] * 3
    assert [most_in_float32(batch) for batch in (2048.5, 4096.0, 1e6)] == [0] * 3


@pytest.mark.parametrize("length", [3.0, 7.0, 11.0, 100.0, 1e4])
@pytest.mark.parametrize("batch", [1.0, 4.0, 2048.0])
def test_the_score_of_one_long_example_stays_below_the_bound(length: float, batch: float) -> None:
    """Clipped like a gradient: no rounding of a weight to float32 takes it past C / B."""
    space = one_table(6, dim=3)
    rule = sdp.ExponentialSelection(4, 1.0, 10.0).rule(
        space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
    )
    scores = scores_of(rule, torch.tensor([[2]]), torch.tensor([[[length, 0.0, 0.0]]]))
    assert scores[2] == pytest.approx(clip_share(batch) / batch, rel=1e-6)
    assert scores[2] < 1.0 / batch


def test_every_pass_has_the_scale_of_its_own_mean() -> None:
    """A pass over 2 examples and one over 1, of mean losses: norms, weights and sums are of the true gradients."""
    space = one_table(6, dim=1)
    passes = []
    for scale, grads in ((2.0, [1.5, 2.0]), (1.0, [4.0])):
        values = torch.tensor(grads).unsqueeze(1) / scale
        read = EmbeddingLookups(torch.zeros(len(grads), dtype=torch.int64), torch.arange(len(grads)), values)
        passes.append(Captured(len(grads), scale, {"bias": Materialised(values)}, {"table": read}, {}))
    batch = LogicalBatch(passes, space)
    assert batch.scales.tolist() == [2.0, 2.0, 1.0]
    assert batch.squared_norms(batch.touched) == pytest.approx([2 * 1.5**2, 2 * 2.0**2, 2 * 4.0**2])
    weights = batch.clip_weights(batch.squared_norms(batch.touched), 100.0)
    out = torch.zeros(1).double()
    batch.accumulate_dense("bias", out, weights)
    [(_, _, sums)] = batch.row_sums(batch.touched, weights)
    assert (float(out), float(sums[0, 0])) == (7.5, 7.5)
