"""What a finished run has cost, computed again from its own records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsedp.accounting import Ledger, epsilon_of
from sparsedp.accounting.events import Events
from sparsedp.runs.calibration import calibration_events
from sparsedp.runs.config import RunConfig
from sparsedp.runs.cost import RunCost, unseen_selection
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.read_shares import read_share_events


def recorded_epsilon(
    folder: RunFolder, config: RunConfig, result: dict[str, Any], delta: float
) -> float | None:
    """The larger of what the run's ledger and its settings and figures cost at ``delta``; None where neither is there.

    A ledger that the run shared is asked for the run's own events, for later runs are on it; and how many users there were
    is on the ledger alone. What is computed from settings and figures leaves out a choice that was lost in a crash and paid
    for again.
    Of a stream: that of its costliest period; of one that protects users, whose periods share a ledger, that of all.
    """
    if config.period is not None and config.unit == "example":
        return max(period_epsilons(folder, config, result, delta))
    return _recorded(_charged(folder, folder.run_name, config, result), config, result, delta)


def period_epsilons(
    folder: RunFolder, config: RunConfig, result: dict[str, Any], delta: float
) -> list[float]:
    """The same of each period of a stream of examples: each is in one of them, and costs of different examples do not add up."""
    found = []
    for number in range(len(result["period_figures"])):
        figures = period_result(result, number)
        charged = _charged(folder.period(number), folder.period_name(number), config, figures)
        epsilon = _recorded(charged, config, figures, delta)
        assert epsilon is not None  # the unit is the example
        found.append(epsilon)
    return found


def period_result(result: dict[str, Any], number: int) -> dict[str, Any]:
    """The result of a stream as if the run had been one period of it, with the ``period``'s number."""
    return {**result, **result["period_figures"][number], "period": number}


def example_rate(config: RunConfig, result: dict[str, Any]) -> tuple[float, float]:
    """(sampling rate, expected batch size) of a run whose unit is the example."""
    rows = float(result["training_rows"])
    batch = min(float(config.choices.expected_batch_size), rows)
    return batch / rows, batch


def _charged(folder: RunFolder, run: str, config: RunConfig, result: dict[str, Any]) -> Events | None:
    """All events on the folder's own ledger, or those of ``run`` on a shared one; None where the ledger is not there."""
    path = folder.ledger if config.ledger is None else Path(config.ledger)
    if not path.exists():
        return None
    ledger = Ledger.read(path)
    if config.ledger is None:
        return ledger.events()
    events = ledger.events_of(run)
    if not events and int(result["steps"]):
        raise ValueError(
            f"ledger: {path} holds nothing of {run!r}, which took {result['steps']} steps; put the run's ledger there"
        )
    return events


def _recorded(
    charged: Events | None, config: RunConfig, result: dict[str, Any], delta: float
) -> float | None:
    found: list[Events] = [] if charged is None else [charged]
    if config.unit == "example":
        found.append(_by_settings(config, result))
    return max((epsilon_of(events, delta) if events else 0.0 for events in found), default=None)


def _by_settings(config: RunConfig, result: dict[str, Any]) -> Events:
    """All steps that were charged, those lost in crashes too, and what was spent once."""
    calibrated = config.calibration_mu if result.get("calibrated") else None
    return RunCost(
        unseen_selection(config, result.get("period", 0)),
        float(result["noise_multiplier"]),
        example_rate(config, result)[0],
        int(result["steps"]) + int(result.get("lost_steps", 0)),
        (*read_share_events(config.read_share_mu), *calibration_events(calibrated)),
    ).events
