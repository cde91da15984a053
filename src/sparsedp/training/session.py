"""One model in training: the parts that the engine connects."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sparsedp.accounting import Ledger
from sparsedp.accounting.events import DpEvent
from sparsedp.clipping import Capture
from sparsedp.core.counts import SparseCounts
from sparsedp.core.observing import note_charge
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import Rule, Selection
from sparsedp.training.account import Account
from sparsedp.training.batch_owner import BatchOwner
from sparsedp.training.buffers import BufferWatch
from sparsedp.training.counting import count_rows
from sparsedp.training.identity import ParameterIdentity
from sparsedp.training.last_step import LastStep
from sparsedp.training.lazy import LazyNoise
from sparsedp.training.loader import FixedLoader, PoissonLoader
from sparsedp.training.noise import Noise, step_lattice
from sparsedp.training.optimizer import PrivateOptimizer
from sparsedp.training.optimizer_check import check_optimizers
from sparsedp.training.pending_sums import PendingSums
from sparsedp.training.step import PrivateStep
from sparsedp.training.step_config import StepConfig


class TrainingSession:
    """A module with its capture, private optimiser, loader, selection and the events of this run."""

    def __init__(
        self,
        source: NoiseSource,
        ledger: Ledger | None,
        module: nn.Module,
        capture: Capture,
        optimizers: list[Optimizer],
        data_loader: Any,
        selection: Selection,
        step_config: StepConfig,
        physical_batch_size: int | None,
        earlier: Sequence[Account] = (),
    ) -> None:
        self.module, self.capture, self.step_config, self.selection = module, capture, step_config, selection
        self.stated = selection
        """The selection as the user gave it, before its one-off choices."""
        self._source = source
        self._ledger = ledger
        self._cap = step_config.cap()
        self._earlier = earlier
        """The accounts of the engine's runs before this one; a resume adds those before the saved one."""
        self._rule: Rule | None = None
        self._step_event = step_config.event(selection)
        self._spent_once: tuple[DpEvent, ...] = ()
        self._step_charger: Any = None
        self._charged_choice = False
        self._lost_choices: tuple[DpEvent, ...] = ()
        """What was paid for choices that are not in use: they failed after their noise was drawn, or a resume replaced them."""
        self._ended = False
        self.has_resumed = False
        """A saved run was loaded, or a part of one."""
        self.lazy: LazyNoise | None = None
        space = selection.partition_tables(self.shapes)
        sparse = [table.name for table in (space.tables if selection.lazy else space.selectable)]
        check_optimizers(optimizers, module, capture, sparse)
        owner = BatchOwner(capture)
        if selection.lazy:
            self.lazy = LazyNoise(capture, optimizers, source)
        self.loader = self._poisson_loader(data_loader, owner, physical_batch_size)
        self._warn_of_kept_pieces(physical_batch_size)
        self.data_loader = self.loader or FixedLoader(data_loader, owner, self._start)
        """What the user iterates over."""
        self.optimizer = PrivateOptimizer(
            optimizers,
            config=self.step_config,
            capture=capture,
            rule=self.rule,
            source=source,
            charge=self.charge,
            owner=owner,
            lazy=self.lazy,
            new_step=self._new_step,
        )
        self.identity = ParameterIdentity(module)
        self.buffers = BufferWatch(module)
        if self.lazy is not None:
            self.lazy.attach()

    def _new_step(self, *args: Any, **kwargs: Any) -> PrivateStep:
        return PrivateStep(*args, **kwargs)

    def _part_of(self, data_loader: Any) -> range | None:
        """The examples of the data set that this process samples from; None: all."""
        return None

    def _count_rows(self, loader: Any, norm: float) -> Mapping[str, SparseCounts]:
        stream = self._source.sampling.fork(1) if self.step_config.unit == "user" else None
        return count_rows(self.module, self.capture, loader, norm, self.space, stream)

    def _resolve(self) -> Selection:
        """Make the one-off choices of the selection."""
        top_k = getattr(self.selection, "within", self.selection)
        if self.step_config.unit == "user" and isinstance(getattr(top_k, "source", None), Mapping):
            raise ValueError(
                "private_top_k: with unit='user' each user counts once, which finished counts do not show; give a loader "
                "with the run's UserSampler"
            )
        return self.selection.resolve(
            self.shapes, self._count_rows, self._source.selection, self._charge_choice
        )

    def _poisson_loader(
        self, data_loader: Any, owner: BatchOwner, physical_batch_size: int | None
    ) -> PoissonLoader | None:
        if self.step_config.poisson:
            return PoissonLoader(
                data_loader,
                sampling_rate=self.step_config.sampling_rate,
                stream=self._source.sampling.fork(0),
                physical_batch_size=physical_batch_size,
                owner=owner,
                on_start=self._start,
                part=self._part_of(data_loader),
            )
        if physical_batch_size is not None:
            raise ValueError(
                "physical_batch_size: needs poisson=True; with poisson=False a batch is one piece"
            )
        return None

    @property
    def shapes(self) -> list[TableShape]:
        """The model's tables."""
        return [TableShape(t.name, t.rows, t.dim) for t in self.capture.tables.values()]

    def without_pending_noise(self) -> AbstractContextManager[None]:
        """Read parameters without their pending noise, for a checkpoint that saves the two separately."""
        return nullcontext() if self.lazy is None else self.lazy.without_pending_noise()

    def end(self) -> None:
        """Apply pending noise and restore the module; no step can follow."""
        self._ended = True
        if self.lazy is not None:
            self.lazy.detach()
        self.capture.detach()
        self.buffers.detach()
        self.optimizer.release()

    def finalize_selection(self, selection: Selection) -> None:
        """Use a selection whose one-off choices are made (fresh, or from a checkpoint)."""
        rule, pending = self._checked_rule(selection), None
        if rule.schedule is not None:
            pending = PendingSums(rule.schedule, [table.dim for table in rule.space.selectable])
        self.selection, self.optimizer.pending = selection, pending
        self._spent_once = selection.one_off_events()
        self._step_event = self.step_config.event(selection)
        if rule.looks_at == "ids":
            self.capture.watch_reads([table.name for table in rule.space.selectable])
        self._rule = rule
        if self.lazy is not None:
            self.lazy.train(selection.sorted_rows)

    def _checked_rule(self, selection: Selection) -> Rule:
        """The rule of a selection; refuses noise that its lattice does not hold."""
        rule = self._rule_of(selection)
        step_lattice(rule, self._coordinates(rule))
        if rule.schedule is not None:
            Noise(rule, self._coordinates(rule), self._source).check_steps()
        return rule

    def _coordinates(self, rule: Rule) -> int:
        return rule.space.coordinates + sum(parameter.numel() for parameter in self.capture.dense.values())

    def _noise(self) -> Noise:
        assert self._rule is not None
        return Noise(self._rule, self._coordinates(self._rule), self._source)

    @property
    def pending(self) -> PendingSums | None:
        """Gradients of rows that wait for their turn, once the rows are chosen."""
        return self.optimizer.pending

    def flush(self) -> LastStep | None:
        """Apply pending noise; update the rows that wait for their turn, and say what that released."""
        if self.lazy is not None:
            self.lazy.flush()
        if self.pending is None:
            return None
        if self.optimizer.is_mid_batch or self.optimizer.is_updating:
            raise RuntimeError(
                "flush: in the middle of a step or of a logical batch, whose number of pieces is private; call it between "
                "two steps"
            )
        return self.optimizer.release_pending(self.rule(), self._noise())

    def pending_state(self) -> dict[str, Any] | None:
        """The gradients that wait, with noise from here on; None where none do."""
        if self.pending is None:
            return None
        return self.pending.state_dict(self._noise() if self._source.is_private else None)

    def load_pending_state(self, state: Mapping[str, Any] | None) -> None:
        """The reverse."""
        if (state is None) != (self.pending is None):
            raise ValueError(
                "pending sums: saved by a run whose rows take turns, or by one whose rows do not"
            )
        if self.pending is not None and state is not None:
            self.pending.load_state_dict(state)

    def _rule_of(self, selection: Selection) -> Rule:
        return selection.rule(
            selection.partition_tables(self.shapes),
            noise_multiplier=self.step_config.noise_multiplier,
            max_grad_norm=self.step_config.max_grad_norm,
            expected_batch_size=self.step_config.expected_batch_size,
        )

    def _warn_of_kept_pieces(self, physical_batch_size: int | None) -> None:
        """Say at once that pieces save no memory where a rule looks at gradients of the whole batch."""
        if physical_batch_size is None or physical_batch_size >= self.step_config.expected_batch_size:
            return
        if self.stated.one_off_events():  # its rule is made after a choice of its own, which looks at ids
            return
        if self._rule_of(self.stated).looks_at == "gradients":
            warnings.warn(
                f"physical_batch_size: {type(self.stated).__name__} scores rows by the gradient of a whole batch, so "
                "the layer inputs and output gradients of all pieces are kept until the last one: memory is that of "
                "the whole batch",
                stacklevel=7,
            )

    @property
    def is_selection_final(self) -> bool:
        """Have the one-off choices been made?"""
        return self._rule is not None

    def choose_once(self) -> None:
        """Make the one-off choices and charge for them, unless that was done."""
        if self._rule is None:
            if (stand_in := self.stated.stand_in(self.shapes)) is not None:
                self._checked_rule(stand_in)
            try:
                with torch.enable_grad():
                    chosen = self._resolve()
                self._charge_choice()
                self.finalize_selection(chosen)
            except BaseException:
                if self._charged_choice:  # what was drawn stays paid for; the next attempt draws anew
                    self._lost_choices += self.stated.one_off_events()
                    self._charged_choice = False
                raise

    @property
    def lost_choices(self) -> tuple[DpEvent, ...]:
        """What was paid for one-off choices that are not in use."""
        return self._lost_choices

    def resume_choice(self, selection: Selection | None, lost: Sequence[DpEvent]) -> None:
        """Use the one-off choices of a saved run (None: it had made none), and take over what it lost.

        Choices that this session made itself were released: they stay on the account.
        """
        if selection is not None:
            self._lost_choices += self._own_choice()
            self.finalize_selection(selection)
        self._lost_choices += tuple(lost)

    def _own_choice(self) -> tuple[DpEvent, ...]:
        """What was paid for a choice that this session drew itself."""
        return self._spent_once if self._charged_choice and self.selection is not self.stated else ()

    def check_resume(self, saved: Sequence[tuple[DpEvent, int]]) -> None:
        """Refuse to go on with a run that has spent ``saved``, if with what was drawn here it would pass the cap."""
        if self._cap is None or self._ledger is not None:
            return
        account = [*(spent for own in self._earlier for spent in own.events), *saved]
        for event in (*self._lost_choices, *self._own_choice()):
            self._cap.require(account, event, "choice")
            account.append((event, 1))

    def take_choice(self, selection: Selection) -> None:
        """Use the one-off choices that this run made, and paid for, before it was interrupted."""
        self.finalize_selection(selection)
        self._charged_choice = True

    def _start(self) -> None:
        """An epoch begins."""
        self.choose_once()
        if self.loader is not None:
            assert self._rule is not None
            self.loader.whole_batches = self._rule.looks_at == "ids"

    def _charge_choice(self) -> None:
        """Charge for the one-off choices, those made earlier (``FEST(rows, event=...)``) too, once a run.

        Another run that paid for an equal event paid for rows of its own.
        """
        if self._charged_choice:
            return
        for event in self.selection.one_off_events():
            note_charge(event)
            if self._ledger is not None:
                self._ledger.spend(event, cap=self._cap)
            elif self._cap is not None:
                self._cap.require(self._all_spent(), event, "choice")
        self._charged_choice = True

    def rule(self) -> Rule:
        """The rule of the next step; refuses the step if the model's parameters were replaced."""
        if self._ended:
            raise RuntimeError("step() after engine.detach(): the run has ended; call make_private again")
        if self._rule is None:
            raise RuntimeError(
                "step() without a batch of private.data_loader: iterate over it, and step once a batch"
            )
        self.identity.check()
        if self.lazy is not None:
            self.lazy.check()
        if (pending := self.optimizer.pending) is not None:
            pending.check()
        return self._rule

    @property
    def chosen_rule(self) -> Rule | None:
        """The rule, once its one-off choices are made."""
        return self._rule

    def rule_state(self) -> dict[str, Any]:
        """What the rule keeps from step to step; nothing before its one-off choices are made."""
        return {} if self._rule is None else self._rule.state_dict()

    def load_rule_state(self, state: Mapping[str, Any]) -> None:
        """The reverse, for a rule whose one-off choices are made."""
        if state:
            self.choose_once()
            assert self._rule is not None
            self._rule.load_state_dict(state)

    def take_over_rule(self, other: Rule) -> None:
        """Go on where the rule of an earlier session ends, in the same process."""
        if other.state_dict():
            self.choose_once()
            assert self._rule is not None
            self._rule.take_over(other)

    @property
    def space(self) -> RowSpace:
        """The selectable and always-on tables."""
        return self.selection.partition_tables(self.shapes)

    def charge(self) -> None:
        """Charge the next step before its noise is drawn, or refuse it."""
        note_charge(self._step_event)
        if self._ledger is not None:
            if self._step_charger is None:
                self._step_charger = self._ledger.step_reserver(self._step_event, cap=self._cap)
            self._step_charger()
        elif self._cap is not None:
            self._cap.require(self._all_spent(), self._step_event)

    def _all_spent(self) -> list[tuple[DpEvent, int]]:
        """With the engine's earlier runs."""
        return [*(spent for account in self._earlier for spent in account.events), *self.spent()]

    def spent(self) -> list[tuple[DpEvent, int]]:
        """The events of this run, with their counts."""
        once = [(event, 1) for event in (*self._lost_choices, *self._spent_once)]
        taken = self.optimizer.steps_taken
        return [*once, (self._step_event, taken)] if taken else once
