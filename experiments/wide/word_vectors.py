"""Training CBOW on Brown: one function for every algorithm, at the same correctly accounted epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch.optim import SGD, Optimizer, SparseAdam
from torch.utils.data import DataLoader

import sparsedp as sdp
from experiments.wide.brown_examples import BrownExamples
from sparsedp.data.context_windows import ContextWindows
from sparsedp.models.cbow import CBOW, DIM, negative_sampling_loss
from sparsedp.selection import Selection

DELTA = 1e-5
"""The paper's."""
EVALUATED = 20_000
"""Examples of each part on which losses are measured."""
CONSTANT_LOSS = float(np.log(9) + 8 * np.log(9 / 8))
"""Of the best constant score, where every run begins: 1 of 9 candidates is the word."""


@dataclass(frozen=True)
class Setting:
    """An algorithm with the numbers that were chosen for it."""

    name: str
    selection: MakeSelection | None = None
    """Of the examples and this setting; None: trained without privacy."""
    learning_rate: float = 100.0
    max_grad_norm: float = 0.3
    batch: int = 1024
    epochs: int = 4
    dim: int = DIM


MakeSelection = Callable[[BrownExamples, Setting], Selection]


@dataclass(frozen=True)
class Epoch:
    """Mean losses after an epoch."""

    number: int
    train: float
    validation: float
    test: float


@dataclass(frozen=True)
class Trained:
    """A model, how it got there and what it costs."""

    model: CBOW
    curve: list[Epoch]
    noise_multiplier: float | None
    gradient_size: float
    """Embedding coordinates that a step updates, on average."""
    epsilon: float | None
    """Add-or-remove-one example, at ``DELTA``; released: the model after every step."""
    step_seconds: float


def train(
    examples: BrownExamples, setting: Setting, epsilon: float | None, *, seed: int, quick: bool = False
) -> Trained:
    """Train on the examples' training part; ``epsilon`` is what all epochs together cost."""
    torch.manual_seed(seed)
    windows = examples.windows(examples.train, seed=seed)
    model = CBOW(examples.size, setting.dim, score_offset=-math.log(windows.negatives))
    make_selection = setting.selection
    measured = [
        _Measured(examples.windows(part, seed=seed + 1), EVALUATED // (10 if quick else 1))
        for part in (examples.train, examples.validation, examples.test)
    ]
    if make_selection is None:
        return _train_plainly(windows, model, setting, measured, seed)
    assert epsilon is not None
    engine = sdp.PrivacyEngine(seed=seed)
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=SGD(model.parameters(), lr=setting.learning_rate),
        data_loader=DataLoader(windows, batch_size=setting.batch),  # type: ignore[arg-type]
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=setting.epochs,
        max_grad_norm=setting.max_grad_norm,
        selection=make_selection(examples, setting),
    )
    curve, sizes, seconds = [], [], 0.0
    for number in range(1, setting.epochs + 1):
        windows.round = number
        begin = perf_counter()
        for context, candidates in private.data_loader:
            _step(model, private.optimizer, context, candidates)
            assert private.optimizer.last_step is not None
            sizes.append(private.optimizer.last_step.gradient_size)
        seconds += perf_counter() - begin
        curve.append(Epoch(number, *(part.loss(model) for part in measured)))
    spent = engine.epsilon(DELTA)
    sigma = engine.session.step_config.noise_multiplier
    engine.detach()
    return Trained(model, curve, sigma, float(np.mean(sizes)), spent, seconds / len(sizes))


def _train_plainly(
    windows: ContextWindows, model: CBOW, setting: Setting, measured: list[_Measured], seed: int
) -> Trained:
    optimizer = SparseAdam(model.parameters(), lr=setting.learning_rate)
    rng = np.random.default_rng(seed)
    curve, steps, begin = [], 0, perf_counter()
    for number in range(1, setting.epochs + 1):
        windows.round = number
        order = rng.permutation(len(windows))
        for start in range(0, len(order), setting.batch):
            _step(model, optimizer, *windows.__getitems__(order[start : start + setting.batch]))
            steps += 1
        curve.append(Epoch(number, *(part.loss(model) for part in measured)))
    seconds = (perf_counter() - begin) / steps
    coordinates = float(sum(parameter.numel() for parameter in model.parameters()))
    return Trained(model, curve, None, coordinates, None, seconds)


def _step(model: CBOW, optimizer: Optimizer, context: torch.Tensor, candidates: torch.Tensor) -> None:
    optimizer.zero_grad()
    negative_sampling_loss(model(context, candidates)).mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


class _Measured:
    """Some examples of a part, always the same."""

    def __init__(self, windows: ContextWindows, count: int) -> None:
        chosen = np.random.default_rng(0).permutation(len(windows))[:count]
        self._batch = windows.__getitems__(np.sort(chosen))

    @torch.no_grad()
    def loss(self, model: CBOW) -> float:
        """The mean loss."""
        model.eval()
        losses = [
            negative_sampling_loss(model(*part))
            for part in zip(*(torch.split(tensor, 4096) for tensor in self._batch), strict=True)
        ]
        model.train()
        return float(torch.cat(losses).mean())
