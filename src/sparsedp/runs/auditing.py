"""Auditing a run's own configuration by small copies of it, trained with canaries on made-up rows.

A copy has the run's model, algorithm, clipping norm, noise multiplier and sampling rate. It has few examples, tables cut to
few rows, and at most so many steps, so it spends at most what the run spent, and a lower bound for it speaks of the run's
configuration. Where a step chooses a number of rows, that is cut in proportion; a threshold stays what it was.
Nothing of the run's data is read: all rows are made up from its schema, so an audit costs no privacy.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsedp.accounting import PrivacyStatement
from sparsedp.accounting.pld.composition import tolerance
from sparsedp.audit.canary_run import CanaryData, CanaryScores, CanaryTraining
from sparsedp.audit.case import Claim
from sparsedp.audit.one_run_case import jointly
from sparsedp.core.arrays import I64
from sparsedp.core.criteo import embedding_dim
from sparsedp.core.validation import check_count
from sparsedp.data.schema import Schema
from sparsedp.models import DLRM, PCTR, load_model
from sparsedp.randomness import NoiseSource
from sparsedp.runs.algorithms import selection_of
from sparsedp.runs.canary_model import CanaryClickModel
from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import AUDIT, RunFolder
from sparsedp.runs.optimizers import optimizers_of
from sparsedp.runs.recorded_cost import example_rate, recorded_epsilon
from sparsedp.runs.text_config import TextConfig
from sparsedp.selection import FEST, Selection

CANARIES, STEPS, CONFIDENCE = 1_000, 200, 0.95
LEAST_CANARIES = 20
FILLERS = 64
"""Examples beside the canaries, as any training has; more would only hide them."""
PUSH = 100.0
"""A canary's gradient over the clipping norm."""


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """What ``audit.json`` holds: the run's claim, and what its copy let through."""

    claimed: dict[str, Any]
    """The run's own statement."""
    copy: dict[str, Any]
    """The statement of the audited copy, which spends at most as much."""
    steps: int
    """Of the copy."""
    lower_bound: float
    """Epsilon is at least this, at the copy's delta, except with probability ``1 - confidence``."""
    gaussian_lower_bound: float
    """The same if the training is Gaussian DP."""
    confidence: float
    canaries: int
    rows_per_canary: int
    attack: str
    """Which score the bound comes from (``CanaryScores``)."""
    seconds: float
    recorded_epsilon: float | None = None
    """What the run's own noise, sampling rate, steps and one-off events cost at its delta (``recorded_epsilon``)."""

    @property
    def refutation(self) -> str | None:
        """Why the claim is refuted; None if it is not."""
        return refutation(asdict(self))


def refutation(audit: Mapping[str, Any]) -> str | None:
    """Why what ``audit.json`` holds refutes the claim; None if it does not.

    A copy spends at most what its run spent, so its bound is for both. A claim is as wrong if it is below what the run's
    records cost by more than the accountant's tolerance, whatever an attack can see.
    """
    claimed, of_copy = (float(audit[part]["epsilon"]) for part in ("claimed", "copy"))
    recorded, bound = audit.get("recorded_epsilon"), float(audit["lower_bound"])
    if recorded is not None and float(recorded) > claimed + 2.0 * tolerance(claimed):
        return (
            f"the run claims epsilon {claimed:.4g}, and its own noise, sampling rate, steps and one-off events cost "
            f"epsilon {float(recorded):.4g} at the same delta, adjacency, unit and release"
        )
    if bound > min(claimed, of_copy):
        whose = "the run claims" if bound > claimed else "it should have spent"
        return f"the copy let through epsilon {bound:.4g} or more, and {whose} {min(claimed, of_copy):.4g}"
    return None


def audit_run(
    folder: RunFolder,
    *,
    canaries: int = CANARIES,
    steps: int = STEPS,
    confidence: float = CONFIDENCE,
    seed: int | None = None,
) -> RunAudit:
    """Audit a finished run's configuration and write ``audit.json`` into its folder."""
    began = time.perf_counter()
    config, result = folder.config(), folder.read_json("result")
    if result is None:
        raise ValueError(f"{folder.path} is not finished; resume it first")
    _refuse_others(config, result)
    schema = Schema.read(folder.path)
    training = copy_of(config, result, schema, check_count("canaries", canaries), check_count("steps", steps))
    claimed = PrivacyStatement(**{**result["statement"], "notes": tuple(result["statement"]["notes"])})
    scores = training.run(NoiseSource(seed).noise, claimed.delta)
    found = replace(
        _audit(training, scores, claimed, confidence, time.perf_counter() - began),
        recorded_epsilon=recorded_epsilon(folder, config, result, claimed.delta),
    )
    folder.write_json(AUDIT, asdict(found))
    return found


def _audit(
    training: CanaryTraining,
    scores: CanaryScores,
    claimed: PrivacyStatement,
    confidence: float,
    seconds: float,
) -> RunAudit:
    claim = Claim(scores.statement.epsilon, claimed.delta, scores.statement.released)
    by_attack = jointly(scores, claim, confidence)
    attack = max(by_attack, key=lambda name: by_attack[name].lower_bound)
    return RunAudit(
        claimed=claimed.to_dict(),
        copy=scores.statement.to_dict(),
        steps=training.steps,
        lower_bound=by_attack[attack].lower_bound,
        gaussian_lower_bound=max(each.gaussian_lower_bound for each in by_attack.values()),
        confidence=confidence,
        canaries=training.data.count,
        rows_per_canary=training.data.rows_per_canary,
        attack=attack,
        seconds=seconds,
    )


def _refuse_others(config: RunConfig, result: dict[str, Any]) -> None:
    if isinstance(config, TextConfig):
        raise ValueError("audit: runs on texts are not audited yet; sparsedp audit --all audits a text model")
    if not config.method.private or result.get("statement") is None:
        raise ValueError("audit: the run is not private, there is no claim to audit")
    if config.period is not None or result.get("noise_multiplier") is None:
        raise ValueError("audit: streaming runs are not audited yet: each period has a noise of its own")


def copy_of(
    config: RunConfig, result: dict[str, Any], schema: Schema, canaries: int, steps: int
) -> CanaryTraining:
    """The small training: each canary alone reads a row of every table that has enough of them."""
    if schema.multi_hot:
        raise ValueError("audit: data with multi-hot columns is not audited yet")
    sizes = np.array(schema.vocabulary_sizes)
    count = min(canaries, int(sizes.max(initial=0)) // 2)
    if count < LEAST_CANARIES:
        raise ValueError(
            f"audit: every table has fewer than {2 * LEAST_CANARIES} rows; canaries need rows of their own"
        )
    clip, small = config.choices.max_grad_norm, _cut(schema, max(2 * count, 2 * config.always_on_rows))
    config = _fitted(config, result, schema, small)
    sizes = np.array(small.vocabulary_sizes)
    columns = np.flatnonzero(sizes >= 2 * count)
    inner = load_model(config.model, small, **config.model_options)
    if not isinstance(inner, PCTR | DLRM):
        columns = columns[:0]  # whose tables are whose is not known
    model = CanaryClickModel(inner, columns.tolist(), scale=PUSH * clip)
    data = made_up(small, columns, count, _rows_per_canary(config, schema), model.layer)
    rate, batch = _sampling(config, result)
    return CanaryTraining(
        data=data,
        model=partial(copy.deepcopy, model),
        losses=lambda module, examples: module(*examples),
        optimizer=partial(optimizers_of, _scaled(config, rate * _units(config, data) / batch)),
        steps=min(steps, int(result["steps"])),
        sampling_rate=rate,
        max_grad_norm=clip,
        selection=partial(_selection, config),
        noise_multiplier=float(result["noise_multiplier"]),
        unit=config.unit,
        user_sample=config.user_sampling,
        view="final model" if config.method.lazy_noise else "every step",
        canary_rows={model.table_name(at): sizes[at] - 1 - np.arange(count) for at in columns.tolist()},
    )


def _cut(schema: Schema, rows: int) -> Schema:
    """The schema with at most so many rows a table."""
    columns = tuple(replace(column, rows=min(column.rows, rows)) for column in schema.categorical)
    return replace(schema, categorical=columns)


def _fitted(config: RunConfig, result: dict[str, Any], schema: Schema, small: Schema) -> RunConfig:
    """The settings for smaller tables: the run's own threshold and widths, other numbers of rows in proportion."""
    chosen = [
        (column.rows, cut.rows)
        for column, cut in zip(schema.categorical, small.categorical, strict=True)
        if column.rows > config.always_on_rows
    ]
    share = sum(cut for _, cut in chosen) / max(sum(rows for rows, _ in chosen), 1) if chosen else 1.0
    changed: dict[str, Any] = {"memory_false_positives": config.memory_false_positives * share}
    if config.rows is not None:
        changed["rows"] = max(1, round(config.rows * share))
    if result.get("threshold") is not None:
        changed |= {"threshold": float(result["threshold"]), "false_positives": None}
    if config.model == "pctr" and "dims" not in config.model_options:
        widths = [embedding_dim(rows) for rows in schema.vocabulary_sizes]
        changed["model_options"] = {**config.model_options, "dims": widths}
    return config.model_copy(update=changed)


def _units(config: RunConfig, data: CanaryData) -> int:
    """How many a batch of the copy draws from."""
    if config.unit == "user" and config.user_sampling == "users":
        return data.count + data.filler_users
    return len(data.canaries[0]) + len(data.fillers[0])


def _selection(config: RunConfig, loader: Any) -> Selection:
    """The run's selection; where rows are chosen before training, chosen anew from the copy's data."""
    row_set = None
    if config.method.row_set:
        assert config.rows is not None
        row_set = FEST.private_top_k(
            loader, config.rows, config.fest_mu, always_on_rows=config.always_on_rows
        )
    return selection_of(config, row_set)


def _rows_per_canary(config: RunConfig, schema: Schema) -> int:
    if config.unit == "example":
        return 1
    rows = config.rows_per_user or schema.rows_per_user
    assert rows is not None
    return rows


def _sampling(config: RunConfig, result: dict[str, Any]) -> tuple[float, float]:
    """(sampling rate, expected batch size) of the run."""
    choices, batch = config.choices, float(config.choices.expected_batch_size)
    if config.unit == "example":
        return example_rate(config, result)
    # How many users there were is not in the result: an epoch is as many steps as the rate says.
    return min(1.0, choices.epochs / int(result["planned_steps"] or result["steps"])), batch


def _scaled(config: RunConfig, factor: float) -> RunConfig:
    """Learning rates with which a clipped gradient moves a weight as far as in the run, whose batch is larger."""
    choices = config.choices
    changed = {
        "learning_rate": choices.learning_rate * factor,
        "table_learning_rate": choices.table_learning_rate * factor,
    }
    adaptive = {
        "learning_rate": choices.optimizer == "adam",
        "table_learning_rate": choices.table_optimizer != "sgd",
    }
    return config.model_copy(update={name: value for name, value in changed.items() if not adaptive[name]})


def made_up(schema: Schema, columns: I64, count: int, rows: int, layer: nn.Linear) -> CanaryData:
    """Canaries, and a few fillers with random numbers, labels and ids, of which no canary's row is one.

    Each canary pushes the layer in a random direction of its own; its rows do so alike.
    """
    rng = np.random.default_rng(0)
    sizes = np.array(schema.vocabulary_sizes)
    free = sizes.copy()
    free[columns] -= count
    total = count + FILLERS
    ids = rng.integers(0, free, size=(total, sizes.size))
    ids[:count, columns] = sizes[columns] - 1 - np.arange(count)[:, None]
    numbers = rng.standard_normal((total, len(schema.numeric)))
    pushes = [rng.standard_normal((total, width)) for width in (layer.in_features, layer.out_features)]
    for push in pushes:
        push /= np.linalg.norm(push, axis=1, keepdims=True)
        push[count:] = 0.0
    parts = [numbers, ids, rng.integers(2, size=total), *pushes]
    tensors = [
        torch.from_numpy(np.repeat(part, rows, axis=0).astype(np.int64 if part is ids else np.float32))
        for part in parts
    ]
    return CanaryData(
        tuple(part[count * rows :] for part in tensors),
        tuple(part[: count * rows] for part in tensors),
        rows_per_canary=rows,
    )
