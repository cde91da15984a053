"""What the training loop drives, and the trainer with the privacy engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from typing_extensions import override

from sparsedp.accounting import BudgetExceeded, Ledger, PrivacyStatement
from sparsedp.accounting.event_json import event_key
from sparsedp.data import ClickData, TextData
from sparsedp.runs.algorithms import selection_of
from sparsedp.runs.calibration import calibrate_output, calibration_events
from sparsedp.runs.config import RunConfig
from sparsedp.runs.cost import events_beside_steps
from sparsedp.runs.optimizers import optimizers_of
from sparsedp.runs.read_shares import largest_counts, lower_rates, read_share_events, read_shares
from sparsedp.runs.row_counts import private_rows
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.saved_choice import choose_or_take, shares_or_take
from sparsedp.runs.shared_budget import BudgetShare
from sparsedp.runs.users import batch_size, loader_of, population, units, user_sampler
from sparsedp.selection import FEST, PrivateTopK, Rule, Selection
from sparsedp.selection.adafest import ContributionMap
from sparsedp.training import EpsilonMeter, LastStep, PrivacyEngine
from sparsedp.training.checkpoint import state_of, whole_state, write_state

STATS = "run_stats"


class Trainer(Protocol):
    """Batches, steps and checkpoints, as the training loop sees them."""

    total_steps: int
    ranks: int
    """How many processes train together."""
    stopped: str | None
    """Why the run ended before its planned steps, if it did."""

    @property
    def steps_taken(self) -> int:
        """Steps of the run so far."""

    def batches(self) -> Iterator[Any]:
        """The rest of the current epoch."""

    def zero_grad(self) -> None:
        """Clear the gradients, before a batch."""

    def weight(self) -> float:
        """What the mean loss of the current piece is multiplied by."""

    def step(self) -> None:
        """Update the model, after a backward pass."""

    @property
    def is_mid_batch(self) -> bool:
        """More pieces of the logical batch will follow: its step comes with the last one."""

    def last_step(self) -> LastStep | None:
        """What the last step released about itself; None without privacy."""

    def flush(self) -> LastStep | None:
        """After the last step: release what waits for a row's turn; None if nothing does."""

    def spent(self) -> PrivacyStatement | None:
        """An upper bound on what was spent so far, cheap enough for every step; None without privacy."""

    def statement(self) -> PrivacyStatement | None:
        """What was spent; None without privacy."""

    def lost_steps(self) -> int:
        """Steps on the ledger that are not in the model: lost in a crash."""

    def choose_once(self, saved: Path | None = None) -> bool:
        """Make the one-off choices before the first step, charged to the ledger; False if there are none.

        Where ``saved`` is given they are written there, and taken from there when the run is started again.
        """

    def lower_rates(self, config: RunConfig, data: ClickData | TextData, saved: Path) -> bool:
        """Before the first step: lower the rates of tables whose rows are read often, where the config says so; whether
        it was done. The shares of reads are saved where the choices are (``choose_once``)."""

    def calibrate(self, config: RunConfig, data: ClickData | TextData) -> bool:
        """After the last step: fit the output's bias and scale where the config says so; whether it was done."""

    def save(self, path: Path, run_stats: RunStats) -> None:
        """Write a checkpoint. The statistics are in the same file: a kill between two would leave one of them old."""

    def resume(self, path: Path) -> RunStats:
        """Restore a checkpoint and return the statistics up to it."""

    def withheld(self) -> list[str]:
        """Buffers that training passes changed without noise: they are not released."""

    def rule_state(self) -> dict[str, Any]:
        """What the selection rule keeps from step to step."""

    def load_rule_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what the rule of an earlier period kept."""

    @property
    def rule(self) -> Rule | None:
        """The selection rule, if there is one."""

    def take_over_rule(self, other: Rule) -> None:
        """Go on where the rule of the period before ends, in the same process."""

    def close(self) -> None:
        """Detach from the model."""


def open_ledger(config: RunConfig, default: Path, run_name: str) -> Ledger:
    """The ledger of a run: the shared one of the config, or ``default``."""
    unit = "user" if config.unit == "user" else None
    return Ledger.open(config.ledger or default, run=run_name, unit=unit, private=config.seed is None)


def check_ledger(config: RunConfig) -> None:
    """Refuse a shared ledger that cannot be opened, before anything is made for the run."""
    if config.ledger is not None:
        open_ledger(config, Path(config.ledger), "run")


class PrivateTrainer(Trainer):
    """Training with the privacy engine.

    ``selection`` is by default built from the config; for an explicit one the one-off events must be on the ledger.
    With a ``share`` the training is a part of a run: its noise is given, and the whole run's cap holds on the ledger.
    """

    ranks = 1

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        data: ClickData | TextData,
        ledger: Ledger | None,
        selection: Selection | None = None,
        share: BudgetShare | None = None,
    ) -> None:
        assert config.epsilon is not None
        self.stopped: str | None = None
        sampler = user_sampler(config, data)
        self.delta = config.delta_for(units(data, sampler)) if share is None else share.cap.target_delta
        self.ledger = ledger
        self.engine = self._new_engine(config)
        self._optimizers = optimizers_of(config, model)
        given: dict[str, Any] = {
            "module": model,
            "optimizer": self._optimizers,
            "data_loader": loader_of(config, data, sampler),
            "expected_batch_size": batch_size(config, population(data, sampler)),
            "unit": config.unit,
            "max_grad_norm": config.choices.max_grad_norm,
            "selection": selection or selection_of(config, self._private_rows(config, model, data)),
            "physical_batch_size": config.physical_batch_size,
        }
        if share is not None:
            self.private = self.engine.make_private(
                **given, noise_multiplier=share.noise_multiplier, cap=share.cap
            )
        else:
            self.private = self.engine.make_private_with_epsilon(
                **given,
                target_epsilon=config.epsilon,
                target_delta=self.delta,
                epochs=config.choices.epochs,
                reserve=events_beside_steps(config),
            )
        if selection is not None and selection.one_off_events():
            self.engine.session.finalize_selection(selection)
        planned = self.engine.session.step_config.planned_steps if share is None else share.steps
        assert planned is not None
        self.total_steps = planned
        self._charged_earlier = 0 if share is None else share.charged_earlier
        self._meter = EpsilonMeter(self.engine, self.delta)

    def _new_engine(self, config: RunConfig) -> PrivacyEngine:
        return PrivacyEngine(secure=config.seed is None, seed=config.seed, ledger=self.ledger)

    def _private_rows(
        self, config: RunConfig, model: nn.Module, data: ClickData | TextData
    ) -> FEST | PrivateTopK | None:
        return private_rows(config, model, data)

    @property
    @override
    def steps_taken(self) -> int:
        return self.private.optimizer.steps_taken

    @override
    def batches(self) -> Iterator[Any]:
        return iter(self.private.data_loader)

    @override
    def zero_grad(self) -> None:
        self.private.optimizer.zero_grad()

    @override
    def weight(self) -> float:
        return 1.0

    @override
    def step(self) -> None:
        self.private.optimizer.step()

    @property
    @override
    def is_mid_batch(self) -> bool:
        return self.private.optimizer.is_mid_batch

    @override
    def last_step(self) -> LastStep | None:
        return self.private.optimizer.last_step

    @override
    def flush(self) -> LastStep | None:
        return self.engine.session.flush() if self.engine.session.pending is not None else None

    @override
    def spent(self) -> PrivacyStatement | None:
        return self.engine.statement(self.delta, at_most=self._meter())

    @override
    def statement(self) -> PrivacyStatement | None:
        return self.engine.statement(self.delta)

    def step_figures(self) -> dict[str, float]:
        """The public constants of a step, by the names that a result has for them."""
        step_config = self.engine.session.step_config
        figures = {
            "noise_multiplier": step_config.noise_multiplier,
            "sampling_rate": step_config.sampling_rate,
        }
        if not self.engine.session.is_selection_final:  # not a single step was taken
            return figures
        rule = self.engine.session.rule()
        figures["gradient_noise_multiplier"] = rule.gradient_noise_multiplier
        if isinstance(rule, ContributionMap):
            figures |= {"map_noise_multiplier": rule.map_noise_multiplier, "threshold": rule.threshold}
        return figures

    @override
    def lost_steps(self) -> int:
        run = self.engine.session
        step = event_key(run.step_config.event(run.selection))
        assert self.ledger is not None
        charged = sum(count for event, count in self.ledger.own_events() if event_key(event) == step)
        lost = charged - self._charged_earlier - self.steps_taken
        if lost < 0:
            raise ValueError(
                f"resume: the model has {-lost} more steps than the ledger {self.ledger.path} has for it; start a new run"
            )
        return lost

    @override
    def choose_once(self, saved: Path | None = None) -> bool:
        if saved is not None:
            return choose_or_take(self.engine, saved)
        self.engine.session.choose_once()
        return bool(self.engine.session.selection.one_off_events())

    @override
    def lower_rates(self, config: RunConfig, data: ClickData | TextData, saved: Path) -> bool:
        if config.read_share_mu is None:
            return False
        assert isinstance(data, ClickData)
        shares = shares_or_take(self.engine, saved, partial(self._read_shares, config, data))
        scales = getattr(self.private.module, "table_scales", [1.0] * len(shares))
        lower_rates(self._optimizers[-1], shares, scales)
        return True

    def _read_shares(self, config: RunConfig, data: ClickData) -> list[float]:
        """Pay for the shares of reads, then draw them."""
        assert config.read_share_mu is not None
        assert self.ledger is not None
        largest = largest_counts(data, config.unit)
        (event,) = read_share_events(config.read_share_mu)
        self.ledger.spend(event, cap=self.engine.session.step_config.cap())
        protected = units(data, user_sampler(config, data))
        found: list[float] = read_shares(
            largest, protected, config.read_share_mu, self.engine.source.noise
        ).tolist()
        return found

    @override
    def calibrate(self, config: RunConfig, data: ClickData | TextData) -> bool:
        if config.calibration_mu is None:
            return False
        assert isinstance(data, ClickData)
        assert self.ledger is not None
        (event,) = calibration_events(config.calibration_mu)
        try:
            self.ledger.spend(event, cap=self.engine.session.step_config.cap())
        except BudgetExceeded:  # crashes have used up what was reserved for it
            return False
        calibrate_output(
            self.private.module, data, config.calibration_mu, self.engine.source.noise, unit=config.unit
        )
        return True

    @override
    def save(self, path: Path, run_stats: RunStats) -> None:
        write_state({**state_of(self.engine), STATS: run_stats.to_record()}, path)

    @override
    def resume(self, path: Path) -> RunStats:
        self.engine.resume(path)
        with whole_state(path):
            return RunStats.from_record(torch.load(path, weights_only=True, mmap=True)[STATS])

    @override
    def withheld(self) -> list[str]:
        return self.engine.session.buffers.changed()

    @override
    def rule_state(self) -> dict[str, Any]:
        return self.engine.session.rule_state()

    @override
    def load_rule_state(self, state: Mapping[str, Any]) -> None:
        self.engine.session.load_rule_state(state)

    @property
    @override
    def rule(self) -> Rule | None:
        return self.engine.session.chosen_rule

    @override
    def take_over_rule(self, other: Rule) -> None:
        self.engine.session.take_over_rule(other)

    @override
    def close(self) -> None:
        self.engine.detach()
