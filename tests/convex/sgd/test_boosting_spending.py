"""What the parts of a boosted run are handed adds up to its statement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse
from support.spies import spy
from support.tabled_risk import Table

from sparsedp.accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    epsilon_of,
)
from sparsedp.accounting.renyi import renyi_epsilon
from sparsedp.convex.sgd import boosting
from sparsedp.convex.sgd.batch_schedule import step_events
from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD
from sparsedp.convex.sgd.boosting import boost, repetition_mean
from sparsedp.randomness import NoiseSource


def _spied_boost(
    monkeypatch: pytest.MonkeyPatch, selection: boosting.Selection, *, convex: bool
) -> tuple[boosting.Boosted, dict[str, list[dict[str, object]]]]:
    names = (
        "pld_schedule",
        "repetition_schedule",
        "report_noisy_max",
        "permute_and_flip",
        "gaussian",
        "_poisson",
    )
    calls = {name: spy(monkeypatch, boosting, name) for name in names}
    calls["minimise"] = spy(monkeypatch, BiasReducedSGD, "minimise")
    calls["score"] = spy(monkeypatch, boosting._Task, "score")
    rng = np.random.default_rng(4)
    loss = Table(rng.uniform(0, 1, (32, 4)), sparse.csr_array(rng.choice([0.0, 0.3], (32, 4))))
    result = boost(
        BiasReducedSGD(l2_bound=0.5, sparsity=1, step_size=0.1, convex=convex),
        loss,
        np.zeros(4),
        size=40,
        epsilon=1.5,
        delta=1e-4,
        loss_range=0.6 if convex else None,
        failure=0.2,
        selection=selection,
        max_steps=40,
        source=NoiseSource(5),
    )
    assert (result.statement.epsilon, result.statement.delta) == (1.5, 1e-4)
    return result, calls


@pytest.mark.parametrize("convex", [True, False])
@pytest.mark.parametrize(
    ("selection", "chooser"), [("laplace", "report_noisy_max"), ("permute-and-flip", "permute_and_flip")]
)
def test_what_a_split_hands_down_adds_up_to_the_statement(
    monkeypatch: pytest.MonkeyPatch, selection: boosting.Selection, chooser: str, convex: bool
) -> None:
    """K runs and one choice: their epsilons and deltas, as handed down, sum to no more than is stated."""
    result, calls = _spied_boost(monkeypatch, selection, convex=convex)
    (made,), (choice,) = calls["pld_schedule"], calls[chooser]
    runs = len(calls["minimise"])
    assert runs == len(calls["score"]) == result.runs == math.ceil(math.log2(2 / 0.2))
    assert runs * made["epsilon"] + choice["epsilon"] == pytest.approx(1.5, rel=1e-12)
    assert runs * made["delta"] <= 1e-4
    assert (runs + 1) * made["delta"] == pytest.approx(1e-4, rel=1e-12)
    # Every run has the schedule that was paid for, in an order of its own.
    for run in calls["minimise"]:
        assert sorted(run["schedule"].levels) == sorted(made["returned"].levels)
        assert run["schedule"].noise == made["returned"].noise
        assert (run["schedule"].epsilon, run["schedule"].delta) == (made["epsilon"], made["delta"])
    # One example is worth B in a mean of `size`, or 2 L in the norm of a gradient.
    assert choice["sensitivity"] == pytest.approx((0.6 if convex else 2 * 0.5) / 40, rel=1e-12)
    assert list(choice["scores"]) == [score["returned"] for score in calls["score"]]
    assert made["size"] == 40
    events = step_events(made["returned"].levels, size=40, noise=made["returned"].noise)
    assert epsilon_of(events, made["delta"]) <= made["epsilon"]
    assert not calls["gaussian"]


@pytest.mark.parametrize("convex", [True, False])
def test_what_a_repetition_hands_down_adds_up_to_the_statement(
    monkeypatch: pytest.MonkeyPatch, convex: bool
) -> None:
    """Steps, the noise on a score and the mean number of runs, as they were used, priced anew as one event."""
    result, calls = _spied_boost(monkeypatch, "repetition", convex=convex)
    (made,), (counted,) = calls["repetition_schedule"], calls["_poisson"]
    schedule = made["returned"]
    assert (
        len(calls["minimise"])
        == len(calls["score"])
        == len(calls["gaussian"])
        == result.runs
        == counted["returned"]
    )
    sensitivity = (0.6 if convex else 2 * 0.5) / 40
    for score, noisy in zip(calls["score"], calls["gaussian"], strict=True):
        assert list(noisy["values"]) == [score["returned"]]
        assert noisy["std"] / sensitivity == pytest.approx(made["score_multiplier"], rel=1e-12)
    steps = step_events(schedule.levels, size=40, noise=schedule.noise)
    run = [SelfComposedDpEvent(event, count) for event, count in steps]
    multiplier = calls["gaussian"][0]["std"] / sensitivity
    repeated = RepeatAndSelectDpEvent(
        ComposedDpEvent([*run, GaussianDpEvent(multiplier)]), counted["mean"], math.inf
    )
    assert renyi_epsilon([(repeated, 1)], 1e-4) <= 1.5
    assert repetition_mean(0.2) == counted["mean"]
    assert not calls["pld_schedule"]
