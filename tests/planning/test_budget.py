from __future__ import annotations

import math

import pytest

from sparsedp.accounting.calibration import epsilon_of
from sparsedp.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.core.defaults import default_delta, default_mu
from sparsedp.core.steps import steps_in, steps_per_epoch
from sparsedp.planning.budget import RunBudget


def budget(examples: int = 50_000, epochs: float = 1.5) -> RunBudget:
    return RunBudget.checked(1.0, None, examples, 1000, epochs)


def test_steps_and_rate_are_those_of_poisson_batches() -> None:
    made = budget()
    assert (made.sampling_rate, made.steps, made.delta) == (0.02, 75, default_delta(50_000))
    assert RunBudget.checked(1.0, 1e-6, 1001, 1000, 1.0).steps == 2  # the last batch counts as well


@pytest.mark.parametrize(
    ("examples", "batch", "epochs"),
    [(364, 46, 16.0), (1001, 1000, 3.0), (10, 3, 2.5), (7, 7, 4.0), (100, 51, 0.3), (50, 10, 1.0)],
)
def test_a_plan_has_the_steps_that_a_loader_takes(examples: int, batch: int, epochs: float) -> None:
    """Each epoch rounds up by itself: noise for fewer steps than are taken would cost more than was planned."""
    planned = RunBudget.checked(1.0, 1e-6, examples, batch, epochs)
    assert planned.steps == steps_in(epochs, steps_per_epoch(batch / examples))
    assert planned.steps >= epochs * math.ceil(examples / batch)


@pytest.mark.parametrize("once", [(), (GaussianDpEvent(20.0),)])
def test_the_noise_spends_the_budget_and_no_more(once: tuple[GaussianDpEvent, ...]) -> None:
    made = budget()
    step = PoissonSampledDpEvent(made.sampling_rate, GaussianDpEvent(made.calibrate(*once)))
    assert 0.99 < epsilon_of([(step, made.steps), *((event, 1) for event in once)], made.delta) <= 1.0


def test_the_top_k_has_the_default_of_its_data_or_what_is_asked() -> None:
    for examples in (50_000, 500_000):
        assert budget(examples).top_k_mu(None) == default_mu(examples)
    assert budget().top_k_mu(0.07) == 0.07
    with pytest.raises(ValueError, match="fest_mu of 3 leaves nothing for training"):
        budget().top_k_mu(3.0)


def test_the_statement_is_the_budget() -> None:
    said = budget().statement()
    assert (said.epsilon, said.delta, said.unit) == (1.0, default_delta(50_000), "example")
