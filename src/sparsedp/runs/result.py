"""The output of a finished run: weights, privacy statement and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.typed_fields import check_fields
from sparsedp.core.validation import check_count, check_finite, check_positive, check_rate
from sparsedp.runs.evaluation import Evaluation
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.optimizers import trained_tables
from sparsedp.runs.run_stats import RunStats
from sparsedp.training.checkpoint import write_weights

NOT_PRIVATE = "NOT PRIVATE: trained without differential privacy"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of a finished run; ``result.json`` holds the same."""

    auc: float
    """On the held-out rows; of a streaming run on all later periods together."""
    log_loss: float | None
    """None, in a file, where it was not finite: the model predicts NaN."""
    constant_log_loss: float | None = None
    """Of predicting the held-out rows' mean label for everybody; None in results of earlier versions."""
    worse_than_constant: bool | None = None
    """Whether the log-loss is above that: the scores are then no probabilities."""
    accuracy: float | None = None
    """Of a text classifier."""
    held_out_rows: int | None = None
    steps: int
    training_rows: int
    rows: float | None
    """Embedding rows with noise per step, on average; None without privacy."""
    gradient_size: float | None
    """Embedding coordinates with noise per step, on average."""
    table_coordinates: int
    """Coordinates of all tables: the gradient size of dense DP-SGD."""
    reduction: float | None
    """How many times smaller the gradient is than dense DP-SGD's."""
    rows_per_table: dict[str, float]
    examples_per_second: float
    seconds: float
    noise_multiplier: float | None = None
    """None without privacy, and for a streaming run: each period has its own (``period_figures``). So it is for the next
    four."""
    map_noise_multiplier: float | None = None
    """AdaFEST: the noise on the contribution map over its sensitivity (sigma1)."""
    gradient_noise_multiplier: float | None = None
    """The noise on the gradient over its sensitivity (sigma2)."""
    threshold: float | None = None
    """AdaFEST: the noisy count that a row must reach (tau)."""
    sampling_rate: float | None = None
    """With which probability a step draws each example, or user (where rows of users are drawn: each of them); None in
    results of earlier versions."""
    features: dict[str, str] = field(default_factory=dict)
    """The column of the data that each table embeds, where the model is one of ours."""
    statement: dict[str, Any] | None
    planned_steps: int | None = None
    stopped: str | None = None
    """Why fewer steps were taken than planned: epsilon is a cap, and crashes may have used up a part of it."""
    lost_steps: int = 0
    """Steps lost in crashes: charged, and not in the model."""
    calibrated: bool | None = None
    """Whether the output was calibrated; False where crashes have used up what was reserved for it, None unasked."""
    periods: int | None = None
    """Streaming: how many periods were trained on."""
    period_figures: list[dict[str, float]] | None = None
    """Streaming: of each training period its rows, steps and noise, by the names that they have here for a whole run."""
    next_period_auc: list[float] | None = None
    """Streaming: after each training period, the AUC on the period that follows it."""


def read_result(folder: RunFolder) -> Result | None:
    """The figures of a finished run, from its folder; None while it is not finished."""
    fields = folder.read_json("result")
    if fields is None:
        return None
    try:
        result = Result(**{**fields, **_undefined(fields)})
        check_fields(result)
        _check_figures(asdict(result))
        for figures in result.period_figures or ():
            _check_figures(figures)
        if result.statement is not None:
            PrivacyStatement.from_dict(result.statement, "its statement")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder.path}: result.json is not the result of a run ({error})") from error
    return result


def finished_result(folder: RunFolder) -> Result:
    """The figures of a run that must be finished."""
    result = read_result(folder)
    if result is None:
        raise folder.incomplete("is not finished")
    return result


def read_failure(folder: RunFolder) -> Diverged | None:
    """The error that a run which diverged ended with; None of other runs."""
    failed = folder.read_json("failed")
    return None if failed is None else Diverged(f"{folder.path}: {failed.get('reason', 'the run failed')}")


def _check_figures(figures: Mapping[str, Any]) -> None:
    """Refuse numbers that no run, or period of a stream, can have."""
    check_count("training_rows", figures["training_rows"])
    check_count("steps", figures["steps"], minimum=0)
    for name in ("planned_steps", "lost_steps"):
        check_count(name, figures.get(name) or 0, minimum=0)
    if figures.get("noise_multiplier") is not None:
        check_positive("noise_multiplier", figures["noise_multiplier"])
    if figures.get("sampling_rate") is not None:
        check_rate("sampling_rate", figures["sampling_rate"])
    if figures.get("threshold") is not None:
        check_finite("threshold", figures["threshold"])


def _undefined(fields: dict[str, Any]) -> dict[str, Any]:
    """AUCs that a file has as null: they were not defined."""
    found: dict[str, Any] = {"auc": math.nan} if fields.get("auc", 0.0) is None else {}
    later = fields.get("next_period_auc")
    if isinstance(later, list):
        found["next_period_auc"] = [math.nan if each is None else each for each in later]
    return found


class Diverged(ValueError):
    """A run whose model is not finite. Its folder is kept, without weights to use, and marked by ``failed.json``."""


def finish_run(
    folder: RunFolder,
    model: nn.Module,
    *,
    evaluation: Evaluation,
    run_stats: RunStats,
    statement: PrivacyStatement | None,
    withheld: list[str],
    **figures: Any,
) -> Result:
    """Write the statement, the weights and the result. ``figures`` are the fields that only the caller knows.

    Buffers in ``withheld`` were changed without noise: they are not in the weights. A model that is not finite
    raises ``Diverged``; to look at weights that are released is post-processing.
    """
    if statement is not None:
        folder.write_json("statement", statement.to_dict())
    privacy = str(statement) if statement else NOT_PRIVATE
    broken = [name for name, value in model.state_dict().items() if not bool(value.isfinite().all())]
    finite = math.isfinite(evaluation.log_loss)
    if not broken:  # state_dict applies pending noise
        weights = folder.weights if finite else folder.unusable_weights
        write_weights(model, weights, privacy=privacy, without=withheld)
    if broken or not finite:
        raise _diverged(folder, broken, run_stats.steps)
    result = Result(
        auc=evaluation.auc,
        log_loss=evaluation.log_loss,
        constant_log_loss=evaluation.constant_log_loss,
        worse_than_constant=evaluation.is_worse_than_constant,
        accuracy=evaluation.accuracy,
        held_out_rows=evaluation.rows,
        steps=run_stats.steps,
        rows=run_stats.mean_rows,
        gradient_size=run_stats.mean_gradient_size,
        table_coordinates=sum(table.numel() for table in trained_tables(model)),
        reduction=run_stats.reduction,
        rows_per_table=run_stats.mean_rows_per_table,
        examples_per_second=run_stats.examples_per_second,
        seconds=run_stats.seconds,
        statement=None if statement is None else statement.to_dict(),
        **figures,
    )
    folder.write_json("result", asdict(result))
    return result


def _diverged(folder: RunFolder, broken: list[str], steps: int) -> Diverged:
    """Mark the folder as failed; the error for a model with weights or predictions that are not finite."""
    what = f"the weights of {broken[0]}" if broken else "the predictions"
    reason = f"the run diverged: {what} are not finite after {steps:,} steps; lower the learning rates"
    folder.write_json("failed", {"reason": reason, "steps": steps})
    return Diverged(f"{reason} ({folder.path} is kept and marked as failed; what it spent stays spent)")
