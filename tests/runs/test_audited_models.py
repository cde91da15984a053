from __future__ import annotations

import numpy as np
import pytest

from sparsedp.audit.case import run_cases
from sparsedp.randomness import NoiseSource
from sparsedp.runs import audited_models
from sparsedp.selection import DPSGD

CASES = {case.name: case for case in audited_models.cases()}


def advantage(scores: np.ndarray, included: np.ndarray) -> float:
    """The chance that a canary that was in scores above one that was not."""
    ranks = np.argsort(np.argsort(scores))
    return float((ranks[included].mean() - ranks[~included].mean()) / scores.size + 0.5)


@pytest.mark.parametrize(
    "training", [audited_models.click_training, audited_models.pushed_training, audited_models.text_training]
)
def test_less_noise_shows_more_to_every_attack(training: object) -> None:
    found = {}
    for budget in (1.0, None):
        scores = training(DPSGD(), budget, 300).run(NoiseSource(1).noise, 1e-6)  # type: ignore[operator]
        found[budget] = {name: advantage(each, scores.included) for name, each in scores.by_attack.items()}
    for attack in ("rows", "loss"):
        assert found[None][attack] > 0.7
        assert found[None][attack] > found[1.0][attack] + 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_claims_stand(name: str) -> None:
    """The bounds are far below the claims: they would pass them with a probability below 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-3)
    assert found.is_expected, str(found)


@pytest.mark.slow
def test_bounds_grow_with_the_claim() -> None:
    budgets = [name for name in CASES if name.startswith("click model, DP-SGD, gradient canaries")]
    bounds = [found.lower_bound for found in run_cases([CASES[name] for name in budgets], error=1e-2)]
    assert 0.0 < bounds[0] < bounds[1] < bounds[2]
