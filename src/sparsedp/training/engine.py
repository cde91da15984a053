"""The engine: one call makes a model, its optimiser and its loader private, and keeps the account."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from sparsedp.accounting import EpsilonCap, Ledger, PrivacyStatement, calibrate, epsilon_of, trade_off_curve
from sparsedp.accounting.events import DpEvent, SelfComposedDpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, ZERO_OUT
from sparsedp.clipping import Capture
from sparsedp.randomness import NoiseSource
from sparsedp.selection import DPSGD, Selection
from sparsedp.training import checkpoint
from sparsedp.training.account import Account, merge_accounts, released
from sparsedp.training.allocator import keep_freed_memory
from sparsedp.training.opacus_names import EpsilonReader, accept_opacus_names, secure_by
from sparsedp.training.private import Private
from sparsedp.training.session import TrainingSession
from sparsedp.training.step_config import (
    Sampling,
    StepConfig,
    Unit,
    positive,
    sampling_of,
    total_steps,
    unit_of,
)

_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class PrivacyEngine:
    """Differentially private training with sparse gradients.

    Guarantee: add-or-remove-one example (with ``unit="user"``: one user with all its rows), for all steps and one-off
    events together, by one privacy loss distribution; ``statement`` says it in words. The step that would exceed the
    budget is refused. ``seed`` makes a run reproducible and *not private*; the statement then says so.

    ``ledger`` is a file (or an open ``Ledger``) to which every step is written before its noise is drawn. All
    runs on the same data may share one file; its budget then covers them together.

    After ``detach`` the engine keeps the run's account: ``epsilon`` and ``statement`` still work, and another
    run with the same engine adds to it.

    Opacus's names are accepted where they mean the same: ``secure_mode``, ``get_epsilon``,
    ``accountant.get_epsilon``, and in ``make_private`` ``poisson_sampling``, ``batch_first``, ``grad_sample_mode``.
    """

    def __init__(
        self,
        accountant: Literal["pld", "prv"] = "pld",
        secure: bool = True,
        seed: int | None = None,
        ledger: str | os.PathLike[str] | Ledger | None = None,
        secure_mode: bool | None = None,
    ) -> None:
        if accountant not in ("pld", "prv"):
            raise ValueError(f"accountant must be 'pld' (or 'prv', another name of it), got {accountant!r}")
        secure = secure_by(secure, secure_mode, seed)
        if secure == (seed is not None):
            if seed is None:
                raise ValueError("secure=False needs a seed: without one the OS-seeded source is used anyway")
            secure = False
        self.source = NoiseSource(seed)
        self._new_ledger: Path | None = None
        """A ledger that is made with the first run, which knows its unit."""
        if isinstance(ledger, str | os.PathLike):
            if Path(ledger).exists():
                ledger = Ledger.open(ledger, private=self.source.is_private)
            else:
                self._new_ledger, ledger = Path(ledger), None
        self.ledger = ledger
        self.earlier: list[Account] = []
        """The accounts of runs that have ended, here or before a resume."""
        self._session: TrainingSession | None = None

    @accept_opacus_names
    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        data_loader: Any,
        noise_multiplier: float,
        max_grad_norm: float,
        selection: Selection | None = None,
        expected_batch_size: float | None = None,
        poisson: bool = True,
        loss_reduction: Literal["mean", "sum"] = "mean",
        physical_batch_size: int | None = None,
        unit: Unit = "example",
        cap: EpsilonCap | None = None,
    ) -> Private:
        """Train at a given *effective* noise multiplier; the selection splits it.

        ``unit="user"`` protects all rows of a user together; the loader then has a ``UserSampler``. The step that would
        pass ``cap`` raises ``BudgetExceeded``; what counts is what counts for the target of
        ``make_private_with_epsilon``.
        """
        if not noise_multiplier >= 0 or noise_multiplier == float("inf"):
            raise ValueError(f"noise_multiplier must be zero or more and finite, got {noise_multiplier}")
        protected = unit_of(data_loader, unit, poisson)
        sampling = self._sampling_of(data_loader, expected_batch_size, poisson)
        clip = positive("max_grad_norm", max_grad_norm)
        limit = () if cap is None else (cap.target_epsilon, cap.target_delta, cap.planned_steps or None)
        step_config = StepConfig(noise_multiplier, clip, *sampling, *limit, **protected)
        return self._start(
            module,
            optimizer,
            data_loader,
            selection or DPSGD(),
            step_config,
            loss_reduction,
            physical_batch_size,
        )

    @accept_opacus_names
    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        data_loader: Any,
        target_epsilon: float,
        target_delta: float,
        max_grad_norm: float,
        epochs: float | None = None,
        steps: int | None = None,
        selection: Selection | None = None,
        expected_batch_size: float | None = None,
        poisson: bool = True,
        loss_reduction: Literal["mean", "sum"] = "mean",
        physical_batch_size: int | None = None,
        unit: Unit = "example",
        reserve: Sequence[DpEvent] = (),
    ) -> Private:
        """Train so that ``epochs`` (or ``steps``) and all one-off events together cost ``target_epsilon``.

        The target is a cap: the step that would pass it raises ``BudgetExceeded`` before its noise is drawn.
        With a ledger everything entered under its run name counts, also steps that were charged and then lost
        in a crash: an interrupted run takes fewer steps, and never spends more.
        What earlier runs of this engine have spent counts too. The steps also leave room for the events in ``reserve``,
        which will be spent on the same data after training, by whoever makes them (on the ledger, before the noise is drawn).
        """
        selection = selection or DPSGD()
        clip = positive("max_grad_norm", max_grad_norm)
        protected = unit_of(data_loader, unit, poisson)
        sampling = self._sampling_of(data_loader, expected_batch_size, poisson)
        total = total_steps(epochs, steps, sampling)
        one_off = [*selection.one_off_events(), *self._spent_earlier(), *reserve]

        def step_event(sigma: float) -> DpEvent:
            return StepConfig(sigma, clip, *sampling, **protected).event(selection)

        sigma = calibrate(
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            sampling_rate=sampling[1],
            steps=total,
            extra_events=one_off,
            step_event=step_event,
        )
        step_config = StepConfig(sigma, clip, *sampling, target_epsilon, target_delta, total, **protected)
        return self._start(
            module, optimizer, data_loader, selection, step_config, loss_reduction, physical_batch_size
        )

    def _start(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        data_loader: Any,
        selection: Selection,
        step_config: StepConfig,
        loss_reduction: Literal["mean", "sum"],
        physical_batch_size: int | None,
    ) -> Private:
        if self._session is not None:
            raise ValueError(
                "make_private: this engine already has a run; detach() it first (its account stays), or make "
                "another engine"
            )
        if any(part in _WATCHED for part in module.modules()):
            raise ValueError("make_private: this module is already private; call engine.detach() first")
        self._check_unit(step_config.unit)
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        capture = self._new_capture(module, loss_reduction)
        try:
            session = self._new_session(
                module,
                capture,
                optimizers,
                data_loader,
                selection,
                step_config,
                physical_batch_size,
                earlier=self.earlier,
            )
        except BaseException:
            capture.detach()
            raise
        _WATCHED.add(module)
        self._session = session
        keep_freed_memory()
        return Private(module, session.optimizer, session.data_loader)

    def _check_unit(self, unit: str) -> None:
        """One account, one unit: the earlier runs and the ledger must have the same."""
        for account in self.earlier:
            if account.unit != unit:
                raise ValueError(
                    f"unit={unit!r}: an earlier run of this engine has the unit {account.unit!r}, and the costs of "
                    "different units do not add up; make another engine"
                )
        if self.ledger is not None and self.ledger.unit != unit and "user" in (unit, self.ledger.unit):
            raise ValueError(
                f"unit={unit!r}: the ledger {self.ledger.path} is for the unit {self.ledger.unit!r}, and the costs of "
                "different units do not add up; give another ledger"
            )
        if self.ledger is not None and self.ledger.adjacency != ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"ledger: {self.ledger.path} is for {self.ledger.adjacency} adjacency, and training steps are charged for "
                f"{ADD_OR_REMOVE_ONE}; give another ledger"
            )
        if self._new_ledger is not None:
            self.ledger = Ledger.open(self._new_ledger, unit=unit, private=self.source.is_private)
            self._new_ledger = None

    def _sampling_of(self, data_loader: Any, expected_batch_size: float | None, poisson: bool) -> Sampling:
        return sampling_of(data_loader, expected_batch_size, poisson)

    def _new_capture(self, module: nn.Module, loss_reduction: Literal["mean", "sum"]) -> Capture:
        return Capture(module, loss_reduction=loss_reduction)

    def _new_session(self, *args: Any, **kwargs: Any) -> TrainingSession:
        return TrainingSession(self.source, self.ledger, *args, **kwargs)

    @property
    def session(self) -> TrainingSession:
        """The current run."""
        if self._session is None:
            raise ValueError("this engine has no run: call make_private first")
        return self._session

    @property
    def noise_multiplier(self) -> float:
        """The effective noise multiplier of a step."""
        return self.session.step_config.noise_multiplier

    def account(self) -> Account:
        """What the current run has spent, and under which conditions."""
        session = self.session
        faults, notes = [], [*session.step_config.notes]
        if not self.source.is_private:
            faults.append("the noise is seeded: reproducible, not private")
        if session.step_config.noise_multiplier == 0:
            faults.append("the noise multiplier is zero")
        if not session.stated.is_private:
            faults.append(f"selection {type(session.stated).__name__} is not private at any noise level")
        if not session.step_config.poisson:
            notes.append(
                "batches are the user's own, each example at most once in each: accounted without amplification by "
                "sampling, for neighbours of which one has an empty record in place of an example"
            )
        top_k = getattr(session.stated, "within", session.stated)
        if session.step_config.unit == "user" and getattr(top_k, "event", None) is not None:
            notes.append(
                "the price of rows that were chosen before the run was given, and is taken as one for users"
            )
        if changed := session.buffers.changed():
            notes.append(
                f"without the buffers {', '.join(changed)}, which training passes change; nothing is claimed "
                "if such a pass also reads them"
            )
        return Account(
            tuple(session.spent()),
            tuple(faults),
            tuple(notes),
            final_model_only=session.lazy is not None,
            adjacency=ADD_OR_REMOVE_ONE if session.step_config.poisson else ZERO_OUT,
            unit=session.step_config.unit,
        )

    def _accounts(self) -> list[Account]:
        current = [] if self._session is None and self.earlier else [self.account()]
        return [*self.earlier, *current]

    def _spent_earlier(self) -> list[DpEvent]:
        return [
            SelfComposedDpEvent(event, count) for account in self.earlier for event, count in account.events
        ]

    def events(self) -> list[tuple[DpEvent, int]]:
        """Everything spent so far: the ledger's account where there is one, this engine's runs otherwise."""
        if self.ledger is not None:
            return list(self.ledger.events())
        earlier = merge_accounts(self.earlier).events
        return [*earlier, *([] if self._session is None and self.earlier else self.session.spent())]

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything spent so far."""
        return epsilon_of(self.events(), delta)

    def get_epsilon(self, delta: float) -> float:
        """``epsilon(delta)``, as Opacus calls it."""
        return self.epsilon(delta)

    @property
    def accountant(self) -> EpsilonReader:
        """Has ``get_epsilon(delta)``."""
        return EpsilonReader(self)

    def statement(self, delta: float, *, at_most: float | None = None) -> PrivacyStatement:
        """What was spent, under which adjacency, for which unit, and what was released.

        ``at_most`` is an upper bound on epsilon where one is known: it is stated, and nothing is computed.
        """
        accounts = self._accounts()
        total = merge_accounts(accounts)
        faults, notes = [*total.faults], [*total.notes]
        if self.ledger is not None:
            notes.append(f"spent by all runs on the ledger {self.ledger.path.name}")
            if not total.faults and not all(run.private for run in self.ledger.runs):
                faults.append("another run on the ledger was seeded or had no noise")
        return PrivacyStatement(
            epsilon=self.epsilon(delta) if at_most is None else at_most,
            delta=delta,
            adjacency=total.adjacency,
            unit=total.unit,
            released=released(accounts),
            private=not faults,
            notes=(*faults, *notes),
            trade_off=trade_off_curve(self.events()),
        )

    def flush(self) -> None:
        """Before the final model is read: apply the pending noise of a selection with ``lazy=True``; with
        ``update_every`` update the rows that wait for their turn, with the learning rate of the last step and at no price
        beyond that of the steps taken."""
        self.session.flush()

    def detach(self) -> None:
        """End the run: flush the noise, restore the module, close the ledger. What was spent stays on the account.

        Gradients of rows that wait for their turn (``update_every``) are dropped: ``flush()`` before.
        """
        if self._session is None:
            return
        session = self._session
        self.earlier.append(self.account())
        session.end()
        _WATCHED.discard(session.module)
        self._session = None
        if self.ledger is not None:
            self.ledger.close()

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything a resumed run needs, as tensors and plain values.

        Not for release: keep it in the run's folder.
        """
        return copy.deepcopy(checkpoint.state_of(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``state_dict`` to a file, atomically, readable without unpickling objects."""
        checkpoint.save(self, Path(path))

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved file. Steps taken since it was written stay charged on the ledger."""
        checkpoint.resume(self, Path(path))

    def export(self, path: str | os.PathLike[str], *, delta: float, allow_not_private: bool = False) -> None:
        """Write the weights for release (safetensors, the statement in its metadata): pending noise applied, no
        stream state. Refused for a run that is not private, unless that is acknowledged."""
        checkpoint.export(self, Path(path), delta=delta, allow_not_private=allow_not_private)
