"""One training with many canaries, each in the data by a coin flip, through the real engine.

The canaries are examples (or users with several rows each) beside ``fillers``, which are always in. The number of
examples that the sampling rate is taken of counts all canaries, in or out: rate and divisor are public constants, and
a canary that is out is simply not there, as add-or-remove-one adjacency has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from sparsedp.accounting import PrivacyStatement
from sparsedp.audit.case import new_seed
from sparsedp.audit.coins import flip_coins
from sparsedp.core.arrays import F64, I64, Bools
from sparsedp.core.steps import steps_per_epoch
from sparsedp.randomness import Stream
from sparsedp.selection import DPSGD, Selection
from sparsedp.training import PrivacyEngine, UserSampler
from sparsedp.training.loader import check_loader
from sparsedp.training.step_config import Sampling, Unit

Losses = Callable[[nn.Module, Sequence[Tensor]], Tensor]
"""(module, a batch's tensors) -> the loss of each example."""
View = Literal["every step", "final model", "final model, pending noise not applied"]
"""What the attacker sees."""
_COUNTED = 1024
"""Examples that a private count of rows looks at together."""
_SHIFT = 1e-3
"""Of the weights along the released gradient, over its norm, where a directional derivative is taken."""


class CanaryEngine(PrivacyEngine):
    """The engine, told how many examples (users, rows of users) are public; the loader may hold fewer.

    Guarantee: that of ``PrivacyEngine`` for the rate ``expected_batch_size / population``. Proof: each example of the
    loader is drawn with that rate, and the divisor is ``expected_batch_size``, whatever the loader holds.
    """

    def __init__(self, population: int, seed: int) -> None:
        super().__init__(secure=False, seed=seed)
        self._population = population

    @override
    def _sampling_of(self, data_loader: Any, expected_batch_size: float | None, poisson: bool) -> Sampling:
        check_loader(data_loader)
        if not poisson or expected_batch_size is None or not 0 < expected_batch_size <= self._population:
            raise ValueError(
                f"expected_batch_size must be at most the {self._population} to draw from, by Poisson sampling, got "
                f"{expected_batch_size}"
            )
        rate = float(expected_batch_size) / self._population
        return float(expected_batch_size), rate, True, steps_per_epoch(rate)


@dataclass(frozen=True, eq=False)
class CanaryData:
    """Examples as tensors, of equal numbers of rows: those that are always in, and the canaries'."""

    fillers: tuple[Tensor, ...]
    canaries: tuple[Tensor, ...]
    rows_per_canary: int = 1
    """With users: row ``n`` belongs to canary ``n // rows_per_canary``."""

    @property
    def count(self) -> int:
        """How many canaries there are."""
        return len(self.canaries[0]) // self.rows_per_canary

    def included(self, coins: Bools) -> tuple[TensorDataset, I64]:
        """The data set of a training, and the user of each row (fillers in users of their own)."""
        rows = torch.from_numpy(np.flatnonzero(np.repeat(coins, self.rows_per_canary)))
        both = zip(self.fillers, self.canaries, strict=True)
        # The loader reads its first and last example to learn a batch's structure: these are fillers.
        half = len(self.fillers[0]) // 2
        data = TensorDataset(
            *[torch.cat([filler[:half], canary[rows], filler[half:]]) for filler, canary in both]
        )
        fillers = len(self.fillers[0])
        own = rows.numpy() // self.rows_per_canary
        users = self.count + np.arange(fillers) // self.rows_per_canary
        return data, np.concatenate([users[:half], own, users[half:]])

    @property
    def filler_users(self) -> int:
        """How many users the fillers are, of as many rows each as a canary."""
        return -(-len(self.fillers[0]) // self.rows_per_canary)


@dataclass(frozen=True, eq=False)
class CanaryTraining:
    """What to train and how; everything is public but the coins."""

    data: CanaryData
    model: Callable[[], nn.Module]
    losses: Losses
    optimizer: Callable[[nn.Module], Optimizer | Sequence[Optimizer]]
    steps: int
    sampling_rate: float
    max_grad_norm: float
    selection: Selection | Callable[[DataLoader[Any], Stream], Selection] = field(default_factory=DPSGD)
    """Or what makes it of the training's loader, which it may count, privately, with noise of the stream."""
    noise_multiplier: float | None = None
    target: tuple[float, float] | None = None
    """(epsilon, delta) to calibrate for, where no noise multiplier is given."""
    unit: Unit = "example"
    user_sample: Literal["users", "rows"] = "users"
    view: View = "every step"
    canary_rows: Mapping[str, I64] = field(default_factory=dict)
    """By table: the row of it that each canary alone reads."""
    canary_losses: Losses | None = None
    """``losses`` of canaries alone, where there is a shorter way to them: the attacker takes it."""

    def run(self, stream: Stream, delta: float) -> CanaryScores:
        """Flip the coins, train once, score every canary."""
        coins = flip_coins(self.data.count, stream)
        torch.manual_seed(new_seed(stream) % 2**31)
        model = self.model()
        attacker = _Attacker(self, model)
        engine, private = self._make_private(model, coins, new_seed(stream))
        taken = 0
        while taken < self.steps:
            for batch in private.data_loader:
                private.optimizer.zero_grad()
                if len(batch[0]):  # attention has no empty batch
                    self.losses(private.module, batch).sum().backward()  # type: ignore[no-untyped-call]
                attacker.before_step()
                private.optimizer.step()
                attacker.after_step()
                taken += 1
                if taken == self.steps:
                    break
        statement = engine.statement(delta)
        if self.view == "final model, pending noise not applied":
            with engine.session.without_pending_noise():
                attacker.see_final(model)
            engine.detach()
        else:
            engine.detach()
            attacker.see_final(model)
        return CanaryScores(coins, attacker.scores, statement)

    def _make_private(self, model: nn.Module, coins: Bools, seed: int) -> tuple[PrivacyEngine, Any]:
        dataset, users = self.data.included(coins)
        sampler, population = None, len(self.data.canaries[0]) + len(self.data.fillers[0])
        if self.unit == "user":
            sampler = UserSampler(users, rows_per_user=self.data.rows_per_canary, sample=self.user_sample)
            population = self.data.count + self.data.filler_users
            if self.user_sample == "rows":
                population *= self.data.rows_per_canary
        batch = self.sampling_rate * population
        engine = CanaryEngine(population, seed)
        loader = DataLoader(dataset, batch_size=_COUNTED, sampler=sampler)
        options: dict[str, Any] = {
            "module": model,
            "optimizer": self.optimizer(model),
            "data_loader": loader,
            "expected_batch_size": batch,
            "max_grad_norm": self.max_grad_norm,
            "selection": self._selection(loader, engine),
            "loss_reduction": "sum",
            "unit": self.unit,
        }
        if self.noise_multiplier is not None:
            return engine, engine.make_private(noise_multiplier=self.noise_multiplier, **options)
        assert self.target is not None
        private = engine.make_private_with_epsilon(
            target_epsilon=self.target[0], target_delta=self.target[1], steps=self.steps, **options
        )
        return engine, private

    def _selection(self, loader: DataLoader[Any], engine: PrivacyEngine) -> Selection:
        if isinstance(self.selection, Selection):
            return self.selection
        return self.selection(loader, engine.source.selection.fork(1))


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """The coins, and the scores of one training by each attack, higher where a canary seems to have been in."""

    included: Bools
    by_attack: Mapping[str, F64]
    """"rows" and "gradient" (white box): released gradients, or the final move of the weights, along the canary's own
    gradient, over the tables of which each canary has rows to itself and over all parameters. "loss" (black box): how
    far training lowered the canary's loss. "moves": how often the canary's own rows got a gradient, or how many moved."""
    statement: PrivacyStatement


class _Attacker:
    """Sees what is released, step by step or at the end, and knows the canaries; never the coins."""

    def __init__(self, training: CanaryTraining, model: nn.Module) -> None:
        self._training, self._model = training, model
        self._copy = copy.deepcopy(model).double()
        trained = {name: value for name, value in self._copy.named_parameters() if value.requires_grad}
        self._copy.requires_grad_(False)
        self._canaries = [
            part.double() if part.is_floating_point() else part for part in training.data.canaries
        ]
        self._first = {name: value.clone() for name, value in trained.items()}
        self._weights: dict[str, Tensor] = {}
        own = {f"{table}.weight" for table in training.canary_rows}
        self._parts = {"gradient": set(self._first)} if own != set(self._first) else {}
        """The parameters that each attack on gradients looks at."""
        if own:
            self._parts["rows"] = own
        names = [*self._parts, "loss", *(["moves"] if own else [])]
        self.scores = {name: np.zeros(training.data.count) for name in names}

    @property
    def _sees_steps(self) -> bool:
        return self._training.view == "every step"

    def before_step(self) -> None:
        """Note the weights that the batch's gradients are taken at."""
        if self._sees_steps:
            self._weights = self._trained_weights(self._model)

    def _trained_weights(self, model: nn.Module) -> dict[str, Tensor]:
        return {name: model.get_parameter(name).detach().double() for name in self._first}

    def after_step(self) -> None:
        """Look at the released gradient."""
        if not self._sees_steps:
            return
        released = {
            name: parameter.grad.detach()
            for name, parameter in self._model.named_parameters()
            if parameter.grad is not None
        }
        self._look_along(self._weights, {name: grad.to_dense().double() for name, grad in released.items()})
        for table, rows in self._training.canary_rows.items():
            grad = released[f"{table}.weight"]
            if grad.is_sparse:
                self.scores["moves"] += np.isin(rows, grad.coalesce().indices()[0].numpy())

    @torch.no_grad()
    def see_final(self, model: nn.Module) -> None:
        """Look at the final weights."""
        final = self._trained_weights(model)
        self.scores["loss"] += self._losses(self._first, {}, 0.0) - self._losses(final, {}, 0.0)
        if self._sees_steps:
            return
        moves = {name: self._first[name] - value for name, value in final.items()}
        self._look_along(self._first, moves)
        for table, rows in self._training.canary_rows.items():
            self.scores["moves"] += (moves[f"{table}.weight"] != 0).any(dim=1).numpy()[rows]

    def _look_along(self, weights: dict[str, Tensor], direction: dict[str, Tensor]) -> None:
        for attack, names in self._parts.items():
            part = {name: value for name, value in direction.items() if name in names}
            self.scores[attack] += self._along(weights, part)

    def _along(self, weights: dict[str, Tensor], direction: dict[str, Tensor]) -> F64:
        """The derivative of each canary's loss at these weights along a direction: its gradient times the direction."""
        norm = float(torch.sqrt(sum((part.square().sum() for part in direction.values()), torch.zeros(()))))
        if norm == 0.0:
            return np.zeros(self._training.data.count)
        step = _SHIFT / norm
        ahead, behind = (self._losses(weights, direction, sign * step) for sign in (1.0, -1.0))
        return (ahead - behind) / (2.0 * step)

    @torch.no_grad()
    def _losses(self, weights: dict[str, Tensor], direction: dict[str, Tensor], step: float) -> F64:
        """Of each canary, summed over its rows."""
        for name, value in weights.items():
            parameter = self._copy.get_parameter(name)
            parameter.copy_(value)
            if name in direction:
                parameter.add_(direction[name], alpha=step)
        losses_of = self._training.canary_losses or self._training.losses
        losses: F64 = losses_of(self._copy, self._canaries).numpy()
        return np.asarray(losses.reshape(self._training.data.count, -1).sum(axis=1))
