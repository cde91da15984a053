from __future__ import annotations

import numpy as np
import pytest

from sparsedp.audit.case import run_cases
from sparsedp.audit.cases import epochs
from sparsedp.randomness import NoiseSource


@pytest.mark.slow
def test_shuffled_batches_are_caught_and_poisson_batches_are_not() -> None:
    """At delta 0.7, an epoch of Poisson batches costs nothing. Ten more of 150 epochs would have to show."""
    right, wrong = run_cases(epochs.cases(), error=2e-4)
    assert right.claim.epsilon == wrong.claim.epsilon == pytest.approx(0.0, abs=1e-9)
    assert right.claim.adjacency == "add-or-remove-one"
    assert wrong.claim.adjacency == "zero-out"
    assert not right.is_refuted, str(right)
    assert wrong.is_refuted, str(wrong)


def test_an_epoch_has_one_score_and_shuffling_misses_nobody() -> None:
    """Ten epochs: by shuffling the canary is in each of them, by Poisson sampling in about two of three."""
    found = [epochs.Epochs(is_shuffled=True)(canaries, NoiseSource(1).noise, 10) for canaries in (0, 1)]
    assert found[0].shape == found[1].shape == (10,)
    assert found[1].min() > found[0].max()
    poisson = epochs.Epochs(is_shuffled=False)(1, NoiseSource(1).noise, 10)
    assert 0 < np.count_nonzero(poisson > found[0].max()) < 10
