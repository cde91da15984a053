"""The part of a plan that is the same for every method: data, batches, steps and the privacy budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_epsilon
from sparsedp.accounting.calibration import calibrate
from sparsedp.accounting.events import DpEvent
from sparsedp.accounting.pld.pairs import LARGEST_SHIFT
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.core.defaults import default_delta, default_mu
from sparsedp.core.steps import steps_in, steps_per_epoch
from sparsedp.core.validation import (
    MOST_RELEASES,
    check_count,
    check_delta,
    check_epsilon,
    check_positive,
    check_scale,
)


@dataclass(frozen=True)
class RunBudget:
    """A privacy budget, and the steps on Poisson batches that it is for."""

    epsilon: float
    delta: float
    examples: int
    expected_batch_size: int
    epochs: float

    @classmethod
    def checked(
        cls, epsilon: float, delta: float | None, examples: int, expected_batch_size: int, epochs: float
    ) -> RunBudget:
        """Check the arguments; an invalid one is refused by name."""
        epsilon, examples = check_epsilon(epsilon), check_count("examples", examples)
        batch = check_count("expected_batch_size", expected_batch_size)
        if batch > examples:
            raise ValueError(
                f"expected_batch_size must be at most examples: {batch} of {examples} would be a sampling rate above 1"
            )
        delta = check_delta(default_delta(examples) if delta is None else delta)
        epochs = check_positive("epochs", epochs)
        if epochs * (examples / batch) > MOST_RELEASES:
            raise ValueError(f"epochs of {epochs:g} are too many: more than {MOST_RELEASES:g} steps")
        return cls(epsilon, delta, examples, batch, epochs)

    @property
    def sampling_rate(self) -> float:
        """The probability that an example is in a batch."""
        return self.expected_batch_size / self.examples

    @property
    def steps(self) -> int:
        """How many steps a loop over the loader takes."""
        return steps_in(self.epochs, steps_per_epoch(self.sampling_rate))

    def calibrate(
        self, *one_off_events: DpEvent, step_event: Callable[[float], DpEvent] | None = None
    ) -> float:
        """The noise multiplier at which all steps, and these events once, cost the budget.

        ``step_event``: what a step at a noise multiplier costs; default: a Gaussian on a Poisson batch.
        """
        return calibrate(
            target_epsilon=self.epsilon,
            target_delta=self.delta,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            extra_events=one_off_events,
            step_event=step_event,
        )

    def top_k_mu(self, mu: float | None) -> float:
        """The Gaussian-DP parameter of a private top-k; one that leaves nothing for training is refused."""
        if mu is None:
            return default_mu(self.examples)
        mu = check_scale("fest_mu", mu)
        cost = analytic_gaussian_epsilon(self.delta, min(mu, LARGEST_SHIFT))
        if cost >= self.epsilon:
            raise ValueError(
                f"fest_mu of {mu:g} leaves nothing for training: it costs {cost:.4g} of epsilon {self.epsilon:g}"
            )
        return mu

    def statement(self) -> PrivacyStatement:
        """What a run that follows the plan guarantees."""
        return PrivacyStatement(
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=ADD_OR_REMOVE_ONE,
            unit="example",
            released=f"the model after each of {self.steps} steps, and which rows each step changed",
            notes=("planned for Poisson batches; holds for a run that follows the plan",),
        )
