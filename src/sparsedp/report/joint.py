"""What all runs on the same data cost together."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsedp.accounting import Ledger, PrivacyStatement, TradeOffCurve, epsilon_of, trade_off_curve
from sparsedp.accounting.events import Events
from sparsedp.report.finished_run import FinishedRun
from sparsedp.runs.data_location import GENERATED

_MOST_COMBINATIONS = 64


@dataclass(frozen=True)
class JointCost:
    """Runs on the same data, and what the private ones of them cost together."""

    runs: tuple[FinishedRun, ...]
    statement: PrivacyStatement | None
    """None where none of them is private, or where they protect different units."""

    @property
    def unprotected(self) -> list[FinishedRun]:
        """Those without privacy: with their models shown, nothing is guaranteed."""
        return [run for run in self.runs if run.statement is None]


def joint_costs(runs: Sequence[FinishedRun]) -> list[JointCost]:
    """One for each data set that several of the runs were trained on.

    Two runs are on the same data if its hash or its path is the same, or if both are on that of a third. A folder that
    was released lacks the hash; `with_unknown_data` names those of which nothing else tells.

    Guarantee: add-or-remove-one, one loss distribution over the events of all their ledgers, each ledger once, at
    the smallest delta of the runs. An example of a streaming run is in one of its periods, so that the costliest
    choice of a period from each run counts. Where a ledger is missing, epsilons and deltas of the statements are
    added, which is valid and larger.
    """
    return [JointCost(tuple(group), _together(group)) for group in _by_data(runs) if len(group) > 1]


def with_unknown_data(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs that may be on the data of another one in the list or not: no hash tells, and the paths differ."""
    groups = [group for group in _by_data(runs) if not any(map(_is_generated, group))]
    unknown = [group for group in groups if not any(run.data.get("digest") for run in group)]
    return [run for group in unknown for run in group] if len(groups) > 1 else []


def _by_data(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """The runs on each data set, in the order of the list."""
    groups: list[tuple[set[str], list[int]]] = []
    for number, run in enumerate(runs):
        marks, numbers = _marks(run), [number]
        for group in [group for group in groups if group[0] & marks]:
            groups.remove(group)
            marks, numbers = marks | group[0], numbers + group[1]
        groups.append((marks, numbers))
    ordered = sorted(sorted(numbers) for _, numbers in groups)
    return [[runs[number] for number in numbers] for numbers in ordered]


def _marks(run: FinishedRun) -> set[str]:
    """What tells a run's data: its path, and its hash where the folder has it."""
    place = run.config.data if _is_generated(run) else f"path {os.path.realpath(run.config.data)}"
    digest = run.data.get("digest")
    return {place, f"digest {digest}"} if digest else {place}


def _is_generated(run: FinishedRun) -> bool:
    return GENERATED.fullmatch(run.config.data) is not None


def _together(group: Sequence[FinishedRun]) -> PrivacyStatement | None:
    stated = [(run, run.statement) for run in group if run.statement is not None]
    statements = [statement for _, statement in stated]
    if not stated or len({(each.unit, each.adjacency) for each in statements}) > 1:
        return None
    try:
        parts = _ledgers([run for run, _ in stated])
    except OSError:
        parts = None
    if parts is None:
        epsilon, delta = sum(each.epsilon for each in statements), sum(each.delta for each in statements)
        note = "a ledger is missing, so the epsilons and the deltas of the statements were added"
        curve = TradeOffCurve([(epsilon, min(delta, 1.0))])
    else:
        delta = min(each.delta for each in statements)
        choices = [list(itertools.chain(*choice)) for choice in _choices(parts)]
        epsilon = max(epsilon_of(events, delta) for events in choices)
        curve = TradeOffCurve.worst_of([trade_off_curve(events) for events in choices])
        note = "one loss distribution over all events of their ledgers"
    return PrivacyStatement(
        epsilon,
        min(delta, 1.0),
        statements[0].adjacency,
        statements[0].unit,
        f"the results of all {len(stated)} private runs on the same data",
        all(each.private for each in statements),
        (note,),
        curve,
    )


def _ledgers(runs: Sequence[FinishedRun]) -> list[list[Events]] | None:
    """For each ledger, or each run over periods, what an example may have been charged; None if a file is missing.

    A shared ledger is read once, with all runs on it, also those that are not in the report.
    """
    parts: dict[Path, list[Events]] = {}
    for run in runs:
        periods = sorted(run.folder.path.glob("period-*/run.ledger"))
        if run.config.ledger is not None:
            parts[Path(run.config.ledger).resolve()] = [Ledger.read(run.config.ledger).events()]
        elif periods:
            parts[run.folder.path.resolve()] = [Ledger.read(path).events() for path in periods]
        elif run.folder.ledger.exists():
            parts[run.folder.ledger.resolve()] = [Ledger.read(run.folder.ledger).events()]
        else:
            return None
    return list(parts.values())


def _choices(parts: Sequence[Sequence[Events]]) -> list[tuple[Events, ...]]:
    """Every choice of a period from each part; where these are too many, all periods at once, which costs more."""
    number = 1
    for part in parts:
        number *= len(part)
    if number <= _MOST_COMBINATIONS:
        return list(itertools.product(*parts))
    return [tuple(events for part in parts for events in part)]
