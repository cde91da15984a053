from __future__ import annotations

import math

import numpy as np

from sparsedp.audit import one_run
from sparsedp.audit.canary_run import CanaryScores
from sparsedp.audit.case import Claim
from sparsedp.audit.cases.trainings import rare_rows
from sparsedp.audit.one_run_case import OneRunCase, ideal_bound, jointly
from sparsedp.randomness import NoiseSource
from sparsedp.selection import DPSGD

STREAM = NoiseSource(0).noise


def test_attacks_share_the_error_rate() -> None:
    coins = np.arange(200) % 2 == 0
    scores = CanaryScores(coins, {"gradient": 1.0 * coins, "loss": np.zeros(200)}, None)  # type: ignore[arg-type]
    found = jointly(scores, Claim(math.inf, 0.0, "x"), 0.9)
    alone = one_run(1.0 * coins, coins, delta=0.0, claimed=1.0, confidence=0.95)
    assert found["gradient"].lower_bound == alone.lower_bound > 3.0
    assert found["loss"].lower_bound < 1.0
    assert found["gradient"].confidence == 0.95


def test_the_ideal_grows_with_epsilon_and_canaries_and_stays_below_epsilon() -> None:
    options = {"delta": 1e-6, "confidence": 0.95, "stream": STREAM}
    small, large, more = (
        ideal_bound(epsilon, canaries=canaries, **options)  # type: ignore[arg-type]
        for epsilon, canaries in ((1.0, 400), (4.0, 400), (4.0, 2000))
    )
    assert 0.0 <= small < large < more < 4.0
    everything = ideal_bound(math.inf, canaries=400, **options)  # type: ignore[arg-type]
    assert everything > large


def test_a_control_has_the_claim_of_what_it_copies() -> None:
    def quiet(canaries: int) -> object:
        return rare_rows(DPSGD(), canaries, steps=2, sampling_rate=1.0, noise_multiplier=0.05)

    case = OneRunCase("quiet", "training", quiet, 1e-12, "x", 200, lambda: 1.5, is_control=True)  # type: ignore[arg-type]
    found = case.run(STREAM, 1 - 1e-8)
    assert found.claim.epsilon == 1.5
    assert found.is_refuted
    assert found.is_expected
    assert found.runs == "1, 200 canaries"
    right = OneRunCase("loud", "training", lambda n: rare_rows(DPSGD(), n, steps=2), 1e-12, "x", 200)
    found = right.run(STREAM, 1 - 1e-8)
    assert found.claim.epsilon > 1.0
    assert found.is_expected
