"""The engine: one call makes a model, its optimiser and its loader private, and keeps the account."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from sparsedp.accounting import BudgetExceeded, PrivacyStatement, calibrate, epsilon_of, max_steps
from sparsedp.accounting.events import DpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.ledger import Ledger
from sparsedp.clipping import Capture
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace, TableShape
from sparsedp.selection import DPSGD, Rule, Selection
from sparsedp.training import checkpoint
from sparsedp.training.counting import count_rows
from sparsedp.training.lazy import LazyNoise
from sparsedp.training.loader import PoissonLoader, check_loader
from sparsedp.training.optimizer import PrivateOptimizer, check_optimizers
from sparsedp.training.private import Private

_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True)
class Terms:
    """The public terms of a run: what is sampled, clipped, divided by and noised."""

    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: float
    sampling_rate: float
    """1 where batches are the user's own."""
    poisson: bool
    steps_per_epoch: int
    max_steps: int | None
    """Where the budget ends; None without a budget."""

    def event(self, selection: Selection) -> DpEvent:
        """What one step spends."""
        if self.noise_multiplier == 0:
            return NonPrivateDpEvent()
        inner = selection.step_event(self.noise_multiplier)
        return PoissonSampledDpEvent(self.sampling_rate, inner) if self.poisson else inner


class PrivacyEngine:
    """Differentially private training with sparse gradients.

    Guarantee: add-or-remove-one example, for all steps together and everything that was spent once before
    them, by one privacy loss distribution; ``statement`` says it in words. The step that would pass the
    budget is refused. ``seed`` makes a run reproducible and *not private*; the statement then says so.

    ``ledger`` is a file (or an open ``Ledger``) on which every step is written before its noise is drawn;
    one file may be shared by all runs on the same data, and its budget then holds for them together.
    """

    def __init__(
        self,
        accountant: Literal["pld"] = "pld",
        secure: bool = True,
        seed: int | None = None,
        ledger: str | os.PathLike[str] | Ledger | None = None,
    ) -> None:
        if accountant != "pld":
            raise ValueError(f"accountant must be 'pld', got {accountant!r}")
        if secure == (seed is not None):
            if seed is None:
                raise ValueError("secure=False needs a seed: without one the OS-seeded source is used anyway")
            secure = False
        self.source = NoiseSource(seed)
        if isinstance(ledger, str | os.PathLike):
            ledger = Ledger.open(ledger, private=self.source.is_private)
        self.ledger = ledger
        self._run: _Run | None = None

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
    ) -> Private:
        """Train at a given *effective* noise multiplier; the selection splits it."""
        if not noise_multiplier >= 0 or noise_multiplier == float("inf"):
            raise ValueError(f"noise_multiplier must be zero or more and finite, got {noise_multiplier}")
        sampling = _sampling(data_loader, expected_batch_size, poisson)
        terms = Terms(noise_multiplier, _positive("max_grad_norm", max_grad_norm), *sampling, max_steps=None)
        return self._start(
            module, optimizer, data_loader, selection or DPSGD(), terms, loss_reduction, physical_batch_size
        )

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
    ) -> Private:
        """Train so that ``epochs`` (or ``steps``) and all one-off events together cost ``target_epsilon``."""
        selection = selection or DPSGD()
        clip = _positive("max_grad_norm", max_grad_norm)
        sampling = _sampling(data_loader, expected_batch_size, poisson)
        total = _total_steps(epochs, steps, sampling[3])
        one_off = selection.one_off_events()

        def step_event(sigma: float) -> DpEvent:
            return Terms(sigma, clip, *sampling, max_steps=None).event(selection)

        sigma = calibrate(
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            sampling_rate=sampling[1],
            steps=total,
            extra_events=one_off,
            step_event=step_event,
        )
        allowed = max_steps(
            step_event=step_event(sigma),
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            extra_events=one_off,
        )
        terms = Terms(sigma, clip, *sampling, max_steps=max(allowed, total))
        return self._start(
            module, optimizer, data_loader, selection, terms, loss_reduction, physical_batch_size
        )

    def _start(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        data_loader: Any,
        selection: Selection,
        terms: Terms,
        loss_reduction: Literal["mean", "sum"],
        physical_batch_size: int | None,
    ) -> Private:
        if self._run is not None:
            raise ValueError(
                "make_private: this engine already has a run; make another engine for another model"
            )
        if any(part in _WATCHED for part in module.modules()):
            raise ValueError("make_private: this module is already private; call engine.detach() first")
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        capture = Capture(module, loss_reduction=loss_reduction)
        try:
            run = _Run(self, module, capture, optimizers, data_loader, selection, terms, physical_batch_size)
        except BaseException:
            capture.detach()
            raise
        _WATCHED.add(module)
        self._run = run
        return Private(module, run.optimizer, run.loader or data_loader)

    @property
    def run(self) -> _Run:
        """The run under way."""
        if self._run is None:
            raise ValueError("this engine has no run yet: call make_private first")
        return self._run

    @property
    def noise_multiplier(self) -> float:
        """The effective noise multiplier of a step."""
        return self.run.terms.noise_multiplier

    def events(self) -> list[tuple[DpEvent, int]]:
        """Everything spent so far: the ledger's account where there is one, this run's otherwise."""
        if self.ledger is not None:
            return list(self.ledger.events())
        return self.run.spent()

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything spent so far."""
        return epsilon_of(self.events(), delta)

    def statement(self, delta: float) -> PrivacyStatement:
        """What was spent, under which adjacency, for which unit, and what was released."""
        run = self.run
        notes = []
        if not self.source.is_private:
            notes.append("the noise is seeded: reproducible, not private")
        if run.terms.noise_multiplier == 0:
            notes.append("the noise multiplier is zero")
        if not run.terms.poisson:
            notes.append("batches are the user's own: accounted without amplification by sampling")
        if self.ledger is not None:
            notes.append(f"spent by all runs on the ledger {self.ledger.path.name}")
        return PrivacyStatement(
            epsilon=self.epsilon(delta),
            delta=delta,
            adjacency="add-or-remove-one",
            unit="example",
            released="the final model only" if run.lazy is not None else "the model after every step",
            private=self.source.is_private and run.terms.noise_multiplier > 0,
            notes=tuple(notes),
        )

    def flush(self) -> None:
        """Add all noise that rows still owe (``DPSGD(lazy=True)``; nothing to do otherwise)."""
        if self.run.lazy is not None:
            self.run.lazy.flush()

    def detach(self) -> None:
        """Give the module back as it was: noise flushed, hooks removed, ledger closed."""
        if self._run is None:
            return
        self.flush()
        self._run.capture.detach()
        self._run.remove_hooks()
        _WATCHED.discard(self._run.module)
        self._run = None
        if self.ledger is not None:
            self.ledger.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, as tensors and plain values. Private: keep it in the run's folder."""
        return checkpoint.state_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``state_dict`` to a file, atomically, readable without unpickling objects."""
        checkpoint.save(self, Path(path))

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved file. Steps taken since it was written stay paid for on the ledger."""
        checkpoint.resume(self, Path(path))

    def export(self, path: str | os.PathLike[str], *, delta: float, allow_not_private: bool = False) -> None:
        """Write the weights for release (safetensors, the statement in its metadata): lazy noise paid, no
        stream state. Refused for a run that is not private, unless that is acknowledged."""
        checkpoint.export(self, Path(path), delta=delta, allow_not_private=allow_not_private)


class _Run:
    """One model in training: what the engine wires together."""

    def __init__(
        self,
        engine: PrivacyEngine,
        module: nn.Module,
        capture: Capture,
        optimizers: list[Optimizer],
        data_loader: Any,
        selection: Selection,
        terms: Terms,
        physical_batch_size: int | None,
    ) -> None:
        self.module, self.capture, self.terms, self.selection = module, capture, terms, selection
        self._engine = engine
        self._data_loader = data_loader
        self._rule: Rule | None = None
        self._spent_once: tuple[DpEvent, ...] = ()
        self._step_charger: Any = None
        self._hooks: list[Any] = []
        self._keep_debts = False
        self.lazy: LazyNoise | None = None
        lazy = isinstance(selection, DPSGD) and selection.lazy
        space = selection.divide(self.shapes)
        sparse = [table.name for table in (space.tables if lazy else space.selectable)]
        whole = [] if lazy else [table.name for table in space.always_on]
        check_optimizers(optimizers, capture, sparse, whole)
        if lazy:
            self.lazy = LazyNoise(capture, optimizers, engine.source)
            capture.before_read = self.lazy.before_read
            hook = module.register_state_dict_pre_hook(lambda *_: self._flush())  # type: ignore[no-untyped-call]
            self._hooks.append(hook)
        self.loader: PoissonLoader | None = None
        if terms.poisson:
            self.loader = PoissonLoader(
                data_loader,
                sampling_rate=terms.sampling_rate,
                stream=engine.source.sampling.fork(0),
                physical_batch_size=physical_batch_size,
            )
        self.optimizer = PrivateOptimizer(
            optimizers,
            capture=capture,
            rule=self.rule,
            source=engine.source,
            charge=self.charge,
            loader=self.loader,
            lazy=self.lazy,
        )

    @property
    def shapes(self) -> list[TableShape]:
        """The model's tables."""
        return [TableShape(t.name, t.rows, t.dim) for t in self.capture.tables.values()]

    def _flush(self) -> None:
        if self.lazy is not None and not self._keep_debts:
            self.lazy.flush()

    @contextmanager
    def unflushed(self) -> Iterator[None]:
        """Read the state dict with debts unpaid, for a checkpoint that keeps them."""
        self._keep_debts = True
        try:
            yield
        finally:
            self._keep_debts = False

    def remove_hooks(self) -> None:
        """Take back what was registered on the module."""
        for hook in self._hooks:
            hook.remove()

    def settle(self, selection: Selection) -> None:
        """Use a selection whose one-off choices are made (fresh, or from a checkpoint)."""
        self.selection = selection
        self._spent_once = selection.one_off_events()
        self._rule = selection.rule(
            selection.divide(self.shapes),
            noise_multiplier=self.terms.noise_multiplier,
            clip=self.terms.max_grad_norm,
            batch=self.terms.expected_batch_size,
        )

    @property
    def settled(self) -> bool:
        """Are the one-off choices made?"""
        return self._rule is not None

    def rule(self) -> Rule:
        """The rule of a step. One-off choices are made (and paid for) when it is first asked for."""
        if self._rule is None:
            for event in self.selection.one_off_events():
                if self._engine.ledger is not None:
                    self._engine.ledger.spend(event)
            self.settle(
                self.selection.resolve(
                    self.shapes,
                    lambda loader, norm: count_rows(self.module, self.capture, loader, norm, self.space),
                    self._engine.source.selection,
                )
            )
        assert self._rule is not None
        return self._rule

    @property
    def space(self) -> RowSpace:
        """The division of the tables."""
        return self.selection.divide(self.shapes)

    def charge(self) -> None:
        """Pay for the next step before its noise is drawn, or refuse it."""
        taken, allowed = self.optimizer.steps_taken, self.terms.max_steps
        if allowed is not None and taken >= allowed:
            raise BudgetExceeded(
                f"step {taken + 1} would pass the budget: {allowed} steps at noise multiplier "
                f"{self.terms.noise_multiplier:.4g} use it up"
            )
        if self._engine.ledger is not None:
            if self._step_charger is None:
                self._step_charger = self._engine.ledger.stepper(self.terms.event(self.selection))
            self._step_charger()

    def spent(self) -> list[tuple[DpEvent, int]]:
        """This run's own account."""
        once = [(event, 1) for event in self._spent_once]
        taken = self.optimizer.steps_taken
        return [*once, (self.terms.event(self.selection), taken)] if taken else once


def _sampling(
    data_loader: Any, expected_batch_size: float | None, poisson: bool
) -> tuple[float, float, bool, int]:
    """(B, q, poisson, steps per epoch): public constants."""
    if not poisson:
        batch = expected_batch_size or getattr(data_loader, "batch_size", None)
        if batch is None:
            raise ValueError("expected_batch_size must be given: the divisor of the gradient is public")
        return _positive("expected_batch_size", batch), 1.0, False, len(data_loader)
    check_loader(data_loader)
    examples = len(data_loader.dataset)
    batch = expected_batch_size or data_loader.batch_size
    if batch is None:
        raise ValueError("expected_batch_size must be given: the loader has no batch_size")
    batch = _positive("expected_batch_size", batch)
    if batch > examples:
        raise ValueError(f"expected_batch_size {batch:g} is larger than the dataset of {examples} examples")
    return batch, batch / examples, True, max(1, round(examples / batch))


def _total_steps(epochs: float | None, steps: int | None, per_epoch: int) -> int:
    if (epochs is None) == (steps is None):
        raise ValueError("epochs or steps: give one of them")
    if epochs is not None:
        return max(1, round(_positive("epochs", epochs) * per_epoch))
    assert steps is not None
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return int(steps)


def _positive(name: str, value: float) -> float:
    if not (value > 0 and value != float("inf")):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)
