"""What a run will cost, before it has seen data: the events of its steps and of its one-off choices."""

from __future__ import annotations

from dataclasses import dataclass

from sparsedp.accounting import calibrate, epsilon_of, split_sigma, trade_off_curve
from sparsedp.accounting.events import DpEvent, Events, PoissonSampledDpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.core.steps import steps_in, steps_per_epoch
from sparsedp.runs.algorithms import selection_of
from sparsedp.runs.calibration import calibration_events
from sparsedp.runs.config import RunConfig, left_open
from sparsedp.runs.read_shares import read_share_events
from sparsedp.selection import FEST, AdaFEST, PrivateTopK, Selection


@dataclass(frozen=True)
class RunCost:
    """A run of `steps` steps at a noise multiplier, as the ledger will see it."""

    selection: Selection
    noise_multiplier: float
    sampling_rate: float
    steps: int
    beside: tuple[DpEvent, ...] = ()
    """What is spent once beside the selection: see ``events_beside_steps``."""

    @property
    def events(self) -> Events:
        """The one-off choices and all steps: what an uninterrupted run enters in its ledger."""
        step = PoissonSampledDpEvent(self.sampling_rate, self.selection.step_event(self.noise_multiplier))
        once = (*self.selection.one_off_events(), *self.beside)
        return [*((event, 1) for event in once), (step, self.steps)]

    @property
    def noise_multipliers(self) -> dict[str, float]:
        """The effective noise multiplier of a step, and for AdaFEST its two parts."""
        parts = {"noise_multiplier": self.noise_multiplier}
        if isinstance(self.selection, AdaFEST):
            sigma1, sigma2 = split_sigma(self.noise_multiplier, self.selection.noise_ratio)
            parts |= {"map_noise_multiplier": sigma1, "gradient_noise_multiplier": sigma2}
        return parts

    def statement(self, delta: float) -> PrivacyStatement:
        """What the whole run costs at `delta`."""
        final = getattr(self.selection, "lazy", False)
        released = f"the model after each of {self.steps} steps on Poisson batches"
        return PrivacyStatement(
            epsilon=epsilon_of(self.events, delta),
            delta=delta,
            adjacency=ADD_OR_REMOVE_ONE,
            unit="example",
            released=f"the model after {self.steps} steps on Poisson batches" if final else released,
            notes=("valid for the final model only",) if final else (),
            trade_off=trade_off_curve(self.events),
        )


def events_beside_steps(config: RunConfig) -> tuple[DpEvent, ...]:
    """What a run spends once beside its selection: the shares of reads before, the calibration of the output after."""
    return (*read_share_events(config.read_share_mu), *calibration_events(config.calibration_mu))


def unseen_selection(config: RunConfig, period: int = 0) -> Selection:
    """The selection of a private run as far as its settings decide it; its row set is still to be chosen.

    Rows that are not chosen by counts of the examples (of this period of a stream) cost them nothing.
    """
    if not config.method.row_set:
        return selection_of(config, None)
    if config.rows is None:
        raise left_open("rows", config.method.name)
    if not config.counts_rows(period):
        return selection_of(config, FEST({}, config.always_on_rows))
    top_k = PrivateTopK({}, config.rows, config.fest_mu, always_on_rows=config.always_on_rows)
    return selection_of(config, top_k)


def run_cost(config: RunConfig, sampling_rate: float, steps: int, delta: float) -> RunCost:
    """The cost of a run with these settings at the noise that `config.epsilon` asks for.

    The noise multiplier is the one that training will use: both come from `calibrate` with the same arguments.
    """
    assert config.epsilon is not None
    selection = unseen_selection(config)
    beside = events_beside_steps(config)
    sigma = calibrate(
        target_epsilon=config.epsilon,
        target_delta=delta,
        sampling_rate=sampling_rate,
        steps=steps,
        extra_events=[*selection.one_off_events(), *beside],
        step_event=lambda sigma: PoissonSampledDpEvent(sampling_rate, selection.step_event(sigma)),
    )
    return RunCost(selection, sigma, sampling_rate, steps, beside)


def cost_on(config: RunConfig, examples: int, delta: float) -> RunCost:
    """The cost of a run on so many training examples."""
    rate = min(config.choices.expected_batch_size, examples) / examples
    return run_cost(config, rate, steps_in(config.choices.epochs, steps_per_epoch(rate)), delta)
