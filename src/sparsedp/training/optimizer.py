"""The private optimiser: turns captured backward passes into private gradients for any torch optimiser."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsedp.clipping import Capture
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowGradient
from sparsedp.selection import Rule
from sparsedp.training.batch_owner import BatchOwner, Piece
from sparsedp.training.id_sources import IdSources
from sparsedp.training.last_step import Diagnostics, LastStep
from sparsedp.training.lazy import LazyNoise
from sparsedp.training.noise import Noise
from sparsedp.training.pending_sums import PendingSums, Rows
from sparsedp.training.step import PrivateStep, StepGradient
from sparsedp.training.step_config import StepConfig


class PrivateOptimizer(Optimizer):
    """One or several torch optimisers whose ``step`` first makes the gradient private.

    ``step`` takes the logical batch from its owner, charges the step to the ledger and counts it, computes the
    private gradient, stores it on ``.grad`` (dense parameters dense, tables as coalesced sparse tensors,
    always-on tables dense unless their optimiser requires sparse) and lets the wrapped optimisers update.
    Schedulers, parameter groups, gradient hooks and step hooks work as in torch.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        config: StepConfig,
        capture: Capture,
        rule: Callable[[], Rule],
        source: NoiseSource,
        charge: Callable[[], None],
        owner: BatchOwner,
        lazy: LazyNoise | None,
        new_step: Callable[..., PrivateStep] = PrivateStep,
    ) -> None:
        self.optimizers = list(optimizers)
        self.last_step: LastStep | None = None
        self._last_private_step: PrivateStep | None = None
        self.callbacks: list[Callable[[LastStep], None]] = []
        self.steps_taken = 0
        """Steps that were charged; the last of them may still be running."""
        self._config = config
        self._capture = capture
        self._rule = rule
        self._source = source
        self._charge = charge
        self._owner = owner
        self._lazy = lazy
        self.pending: PendingSums | None = None
        """Gradients of rows that wait for their turn, once the rows are chosen."""
        self._new_step = new_step
        self._current: tuple[int, PrivateStep] | None = None
        self._id_sources: IdSources | str | None = None
        self._parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self._requires_sparse = _parameters_of(optimizers, torch.optim.SparseAdam)
        self._is_updating = False
        self.last_rates: list[float | None] = []
        """The learning rates of the last step, by group, where rows take turns; None: a group has none."""
        self._handles = [optimizer.register_step_pre_hook(self._refuse_bare_step) for optimizer in optimizers]
        # torch's schedulers and hooks look for these on the optimiser they are given.
        self._optimizer_step_pre_hooks = optimizers[0]._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = optimizers[0]._optimizer_step_post_hooks

    @property
    def diagnostics(self) -> Diagnostics | None:
        """NOT PRIVATE: batch size, clipping and non-finite gradients of the last step."""
        if self._last_private_step is None:
            return None
        factors = np.concatenate([np.empty(0), *self._last_private_step.clip_factors])
        return Diagnostics(
            batch_size=factors.size,
            clipped_fraction=float(np.mean(factors < 1.0)) if factors.size else 0.0,
            non_finite_examples=sum(int((~finite).sum()) for finite in self._last_private_step.finite),
        )

    @property
    def noise_multiplier(self) -> float:
        """The effective noise multiplier of a step, selection and gradient together."""
        return self._config.noise_multiplier

    @property
    def max_grad_norm(self) -> float:
        """Clipping norm of an example's gradient (C2)."""
        return self._config.max_grad_norm

    @property
    def expected_batch_size(self) -> float:
        """What the noisy sums are divided by; public."""
        return self._config.expected_batch_size

    @property
    def is_mid_batch(self) -> bool:
        """More pieces of the current logical batch will follow: ``step`` has not updated anything yet."""
        return self._owner.has_batch

    @property
    def is_updating(self) -> bool:
        """The private gradient is being assigned, or the wrapped optimisers are stepping."""
        return self._is_updating

    @property
    def is_last_piece(self) -> bool:
        """All pieces of the current logical batch were handed out: the next ``step`` updates."""
        return self._owner.is_complete

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all wrapped optimisers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the wrapped optimiser (of several: merged)."""
        if len(self.optimizers) == 1:
            return self.optimizers[0].state
        return {
            parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()
        }

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The defaults of the first wrapped optimiser."""
        return self.optimizers[0].defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: parameters must be known when the model is made private."""
        raise RuntimeError("add_param_group: give the optimiser all its parameters before make_private")

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimiser's state dict (of several: a list under ``optimizers``)."""
        if len(self.optimizers) == 1:
            return self.optimizers[0].state_dict()
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""
        states = state_dict["optimizers"] if len(self.optimizers) > 1 else [state_dict]
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a private optimizer is not copied or pickled, a copy would draw the same noise again: keep state_dict(), or "
            "engine.save() to resume a run"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, and discard the backward passes that no ``step`` has used."""
        self._owner.discard_passes()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one private step. Before the last piece of a logical batch it only accumulates the piece."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        try:
            rule = self._rule()
            step = self._accumulate(self._owner.take(), rule)
            if not self._owner.is_complete:
                return loss
        except BaseException:
            self._owner.finish()
            raise
        self._owner.finish()
        gradient = step.release()
        if self.pending is not None:
            self.last_rates = [None if rate is None else float(rate) for rate in self._rates()]
        self._update(rule, gradient)
        reported = self._report(rule, gradient)
        self._last_private_step = step
        for callback in self.callbacks:
            callback(reported)
        return loss

    def _accumulate(self, pieces: Sequence[Piece], rule: Rule) -> PrivateStep:
        """The step of the current batch, with these pieces added to it."""
        if self._current is None or self._current[0] != self._owner.batch:
            step = self._new_step(
                rule,
                self._capture.dense,
                self._source,
                self._charge_step,
                lazy=self._lazy is not None,
                pending=self.pending,
            )
            self._current = (self._owner.batch, step)
        step = self._current[1]
        if not step.has_selected and not self._owner.is_complete:
            self._select_early(step, pieces, rule)
        for contents, captured, _ in pieces:
            if captured is not None:
                if step.has_selected and isinstance(self._id_sources, IdSources):
                    self._id_sources.check(captured, contents)
                step.add(captured)
        return step

    def _select_early(self, step: PrivateStep, pieces: Sequence[Piece], rule: Rule) -> None:
        """Choose the rows before all pieces have arrived, where the rule can: no piece is then stored."""
        if rule.looks_at == "nothing":
            step.select_unseen()
        elif rule.looks_at == "ids":
            if self._id_sources is None:
                self._id_sources = self._learn_sources(pieces, rule)
            if isinstance(self._id_sources, IdSources):
                contents = [*(piece.contents for piece in pieces[:-1]), *self._owner.contents]
                earlier = [piece.units for piece in pieces[:-1] if piece.units is not None]
                ids = self._id_sources.batch(contents, rule.space, [*earlier, *self._owner.units])
                if ids is not None:
                    step.select_by_ids(ids)

    def _learn_sources(self, pieces: Sequence[Piece], rule: Rule) -> IdSources | str | None:
        contents, captured, _ = pieces[0]
        if captured is None:
            return None
        tables = [table.name for table in rule.space.selectable]
        sources = IdSources.learn(captured, contents, tables)
        if isinstance(sources, str):
            warnings.warn(
                f"physical_batch_size: the ids of table {sources!r} are not a tensor of the batch as the loader gave "
                "it, so the layer inputs of all pieces of a batch are stored until its last one",
                stacklevel=4,
            )
        return sources

    def _charge_step(self) -> None:
        """Charge and count the step before its noise is drawn: a later failure does not refund it."""
        self._charge()
        self.steps_taken += 1

    @torch.no_grad()
    def release_pending(self, rule: Rule, noise: Noise) -> LastStep | None:
        """Update the rows whose gradients wait for their turn; not a step of its own. None: there are none.

        The learning rates are those of the last step: a schedule may have brought them to zero since.
        """
        assert self.pending is not None
        self._check_parameters()
        rates = self._rates()
        with self.pending.flushed(noise) as due:
            gradient = _gradient_of(rule, due)
            if not gradient.tables:
                return None
            try:
                self._set_rates(self.last_rates or rates)
                self._update(rule, gradient)
            finally:
                self._set_rates(rates)
        return self._report(rule, gradient)

    def _rates(self) -> list[Any]:
        """The learning rate of each group, as the optimiser has it: a number, a tensor, or None."""
        return [group.get("lr") for group in self.param_groups]

    def _set_rates(self, rates: Sequence[Any]) -> None:
        for group, rate in zip(self.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate

    def _update(self, rule: Rule, gradient: StepGradient) -> None:
        """Let the wrapped optimisers update; tables with lazy noise update themselves."""
        try:
            self._is_updating = True
            self.assign(gradient if self._lazy is None else gradient._replace(tables={}))
            checks = torch.sparse.check_sparse_tensor_invariants  # torch's Adagrad warns unless they are set
            with checks(enable=checks.is_enabled()):  # type: ignore[no-untyped-call]
                for optimizer in self.optimizers:
                    optimizer.step()
        finally:
            self._is_updating = False
        if self._lazy is not None:
            std = rule.gradient_noise_multiplier * rule.sensitivity / rule.expected_batch_size
            self._lazy.step(std, gradient.tables)  # type: ignore[arg-type]

    def _refuse_bare_step(self, *_: Any) -> None:
        if not self._is_updating:
            raise RuntimeError(
                "optimizer: step() of the optimiser that was given to make_private, whose gradients may have no noise; "
                "call private.optimizer.step()"
            )

    def release(self) -> None:
        """Detach from the wrapped optimisers: they may step by themselves again."""
        for handle in self._handles:
            handle.remove()

    def _check_parameters(self) -> None:
        held = [parameter for group in self.param_groups for parameter in group["params"]]
        if len(held) != len(self._parameters) or any(
            a is not b for a, b in zip(held, self._parameters, strict=True)
        ):
            raise RuntimeError(
                "optimizer: its parameters changed after make_private; give it all of them before make_private"
            )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler reads this before it steps.
        raise RuntimeError(
            "GradScaler scales the loss by a factor that depends on the data, and skips steps by it; train in "
            "float32, or in bfloat16 autocast without a GradScaler"
        )

    def assign(self, gradient: StepGradient) -> None:
        """Set ``.grad`` to the private gradient, and to None on every other parameter of the optimisers.

        A pass in evaluation mode or before ``make_private`` leaves gradients without noise, also on parameters that
        were frozen later or that have no gradient here.
        """
        for parameter in self._parameters:
            parameter.grad = None
        for name, values in gradient.dense.items():
            _set_grad(self._capture.dense[name], values)
        for name, rows in gradient.tables.items():
            parameter = self._capture.tables[name].parameter
            held = parameter.shape[0]
            if isinstance(rows, Tensor) and parameter in self._requires_sparse:
                rows = RowGradient(torch.arange(held), rows)
            rows = rows.to(parameter.device)
            _set_grad(parameter, rows if isinstance(rows, Tensor) else rows.to_sparse(held))

    def _report(self, rule: Rule, gradient: StepGradient) -> LastStep:
        self.last_step = last = LastStep(
            step=self.steps_taken,
            rows=sum(gradient.rows_per_table.values()),
            gradient_size=gradient.gradient_size,
            dense_size=gradient.dense_size,
            table_coordinates=rule.space.coordinates,
            rows_per_table=gradient.rows_per_table,
        )
        return last


def _set_grad(parameter: nn.Parameter, values: Tensor) -> None:
    """Assign, and run the parameter's gradient hooks as backward would."""
    values = values.to(parameter)
    for hook in (parameter._backward_hooks or {}).values():
        replaced = hook(values)
        values = values if replaced is None else replaced
    parameter.grad = values
    for after in (parameter._post_accumulate_grad_hooks or {}).values():
        if not isinstance(getattr(after, "__self__", None), Capture):  # its hook refuses unclipped gradients
            after(parameter)


def _gradient_of(rule: Rule, due: Rows) -> StepGradient:
    """Rows whose turn has come, as a gradient of the tables alone."""
    named = [
        (table.name, rows, values) for table, (rows, values) in zip(rule.space.selectable, due, strict=True)
    ]
    return StepGradient(
        dense={},
        tables={
            name: RowGradient(torch.from_numpy(rows), torch.from_numpy(values))
            for name, rows, values in named
            if rows.size
        },
        rows_per_table={name: rows.size for name, rows, _ in named},
        gradient_size=sum(values.size for _, _, values in named),
        dense_size=0,
    )


def _parameters_of(optimizers: Sequence[Optimizer], kind: type[Optimizer]) -> set[nn.Parameter]:
    return {
        parameter
        for optimizer in optimizers
        if isinstance(optimizer, kind)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
