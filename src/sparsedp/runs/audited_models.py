"""Audits of a click model and of a small text model: one training each, with many canaries."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from sparsedp.audit.canary_run import CanaryData, CanaryTraining
from sparsedp.audit.one_run_case import OneRunCase
from sparsedp.data import ClickProcess
from sparsedp.data.generated import generate, generated_schema
from sparsedp.models import CBOW, PCTR
from sparsedp.models.cbow import negative_sampling_loss
from sparsedp.runs.canary_model import CanaryClickModel
from sparsedp.runs.click_copy import made_up
from sparsedp.selection import DPSGD, AdaFEST, Selection

CANARIES, FILLERS = 5_000, 2_000
STEPS, RATE, DELTA = 20, 0.5, 1e-8
"""With half of the data in a step a training is nearly a Gaussian mechanism: an attacker sees most of what is claimed."""
BUDGETS = (1.0, 4.0, None)
"""The claimed epsilons; None: the noise is off."""
_OTHER_FEATURES = (400, 90, 30)
_WORDS = 2_000
_CANDIDATES = 3
"""Words that a text example scores: one that follows, two that do not."""


def cases() -> list[OneRunCase]:
    """Click models at every budget, and others at one."""
    click = [
        _case(f"click model, DP-SGD, {_named(budget)}", partial(click_training, DPSGD(), budget))
        for budget in BUDGETS
    ]
    adafest = AdaFEST(noise_ratio=2.0, false_positives=100.0, always_on_rows=1000)
    return [
        *click,
        *(
            _case(
                f"click model, DP-SGD, gradient canaries, {_named(budget)}",
                partial(pushed_training, DPSGD(), budget),
            )
            for budget in BUDGETS
        ),
        _case(
            "click model, DP-AdaFEST, gradient canaries, epsilon 4", partial(pushed_training, adafest, 4.0)
        ),
        _case("click model, DP-AdaFEST, epsilon 4", partial(click_training, adafest, 4.0)),
        _case("text model, DP-SGD, epsilon 4", partial(text_training, DPSGD(), 4.0)),
        _case("text model, noise off", partial(text_training, DPSGD(), None)),
    ]


def _named(budget: float | None) -> str:
    return "noise off" if budget is None else f"epsilon {budget:g}"


def _case(name: str, training: Any) -> OneRunCase:
    what = "gradients and counts of the rows of rare ids (white box), the loss of their examples (black box)"
    return OneRunCase(name, "one run", training, DELTA, what, CANARIES)


def click_training(selection: Selection, budget: float | None, canaries: int) -> CanaryTraining:
    """pCTR on generated clicks; each canary is a click on an id of the first feature that nobody else has."""
    process = ClickProcess(vocabulary_sizes=(1000, *_OTHER_FEATURES))
    (clicks,) = generate(FILLERS, process=process, batch=FILLERS)
    own = 1000 + np.arange(canaries)
    ids = np.zeros((canaries, 1 + len(_OTHER_FEATURES)), np.int64)
    ids[:, 0] = own
    data = CanaryData(
        (
            torch.from_numpy(clicks.numeric),
            torch.from_numpy(clicks.ids.astype(np.int64)),
            torch.from_numpy(clicks.label),
        ),
        (torch.zeros(canaries, clicks.numeric.shape[1]), torch.from_numpy(ids), torch.arange(canaries) % 2),
    )
    sizes = (1000 + canaries, *_OTHER_FEATURES)
    return CanaryTraining(
        data=data,
        model=partial(
            PCTR, sizes, clicks.numeric.shape[1], dims=(16, 2, 2, 2), hidden=(32,), table_scale=100.0
        ),
        losses=_click_losses,
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=1.0),
        steps=STEPS,
        sampling_rate=RATE,
        max_grad_norm=0.1,
        selection=selection,
        canary_rows={"embeddings.0": own},
        **_noise(budget),
    )


def pushed_training(selection: Selection, budget: float | None, canaries: int) -> CanaryTraining:
    """The same model with canaries whose gradients are the attacker's choice (``CanaryClickModel``)."""
    schema = generated_schema(ClickProcess(vocabulary_sizes=(2 * canaries, *_OTHER_FEATURES)))
    inner = PCTR.from_schema(schema, dims=(16, 2, 2, 2), hidden=(128, 128), table_scale=20.0)
    model, column = CanaryClickModel(inner, [0], scale=10.0), np.array([0])
    return CanaryTraining(
        data=made_up(schema, column, canaries, 1, model.layer),
        model=partial(copy.deepcopy, model),
        losses=lambda module, examples: module(*examples),
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=1.0),
        steps=STEPS,
        sampling_rate=RATE,
        max_grad_norm=0.1,
        selection=selection,
        canary_rows={model.table_name(0): 2 * canaries - 1 - np.arange(canaries)},
        **_noise(budget),
    )


def text_training(selection: Selection, budget: float | None, canaries: int) -> CanaryTraining:
    """CBOW on random sentences; the words of each canary's phrase but the first two are its own."""
    rng = np.random.default_rng(0)
    own = _WORDS + np.arange(canaries * _CANDIDATES).reshape(canaries, _CANDIDATES)
    data = CanaryData(
        tuple(torch.from_numpy(rng.integers(_WORDS, size=(FILLERS, width))) for width in (4, _CANDIDATES)),
        (torch.from_numpy(rng.integers(_WORDS, size=(canaries, 4))), torch.from_numpy(own)),
    )
    return CanaryTraining(
        data=data,
        model=partial(CBOW, _WORDS + canaries * _CANDIDATES, 8),
        losses=_text_losses,
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=5.0),
        steps=STEPS,
        sampling_rate=RATE,
        max_grad_norm=0.1,
        selection=selection,
        canary_rows={"output": own[:, 0]},
        **_noise(budget),
    )


def _noise(budget: float | None) -> dict[str, Any]:
    return {"noise_multiplier": 0.0} if budget is None else {"target": (budget, DELTA)}


def _click_losses(module: nn.Module, batch: Any) -> Tensor:
    numeric, ids, label = batch
    logits: Tensor = module(numeric, ids)
    return cross_entropy(logits, label.to(logits.dtype), reduction="none")


def _text_losses(module: nn.Module, batch: Any) -> Tensor:
    return negative_sampling_loss(module(*batch))
