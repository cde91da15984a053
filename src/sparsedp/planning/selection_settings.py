"""The recipe's settings of a selection of rows, from public numbers, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsedp.core.tables import TableShape
from sparsedp.core.validation import check_count

TOP_K = 0.2
"""FEST: the part of the budget's Gaussian-DP parameter for choosing the rows: it adds 2% to the noise of training. With
less, rare rows are chosen by chance."""
ROWS_PER_UNIT_OF_SIGNAL = 0.02
"""FEST: rows kept for each unit of ``mu * examples``, the size of the data in units of its noise."""
OF_ALL_IN_TURN = 1.1
"""FEST with rows in turns: the rows of a step, at least so many times those that update every row once in the longest
period. With fewer, frequent rows would wait as long as rare ones."""
MAP_NOISE = 2.0
"""AdaFEST: noise on the contribution map over noise on the gradient: it adds 12% to the latter."""
BY_CHANCE = 0.002
"""AdaFEST with memory: the part of the rows that nobody reads that passes a review."""


def selection_settings(
    algorithm: str,
    shapes: Sequence[TableShape],
    signal: float,
    mu: float,
    steps: int,
    update_every: int | None = None,
) -> dict[str, float | int]:
    """Settings of the selection that an algorithm has; rows are chosen in every table.

    ``signal`` is the size of the data in units of its noise, ``mu`` the budget's Gaussian-DP parameter,
    ``steps`` how many the training has, ``update_every`` the longest period of rows in turns, if it is given.
    """
    rows = sum(table.rows for table in shapes)
    if algorithm == "adafest":
        return {"noise_ratio": MAP_NOISE, "always_on_rows": 0}
    if algorithm == "adafest-memory":
        return {
            "noise_ratio": MAP_NOISE,
            "always_on_rows": 0,
            "false_positives": max(1.0, two_digits(BY_CHANCE * rows)),
            "memory_steps": steps,
        }
    if algorithm in ("fest", "fest-lazy", "fest-turns", "adafest+"):
        longest = steps if update_every is None else check_count("update_every", update_every)
        least = OF_ALL_IN_TURN * rows / min(longest, steps) if algorithm == "fest-turns" else 100
        chosen: dict[str, float | int] = {
            "rows": min(max(round(ROWS_PER_UNIT_OF_SIGNAL * signal), 100, round(least)), rows),
            "fest_mu": two_digits(TOP_K * mu),
            "always_on_rows": 0,
        }
        return {**chosen, "update_every": longest} if algorithm == "fest-turns" else chosen
    return {}


ROWS_IN_TURNS = (
    f"{ROWS_PER_UNIT_OF_SIGNAL:g} for each unit of mu times the size of the data, and enough for every row to have a turn "
    "while frequent ones have more"
)
SELECTION_REASONS = {
    "noise_ratio": "rows that a step reads often are told from the others, at 12% of the noise",
    "false_positives": f"{BY_CHANCE:.1%} of all rows stand out by chance",
    "memory_steps": "the noisy counts of the whole training are added up",
    "rows": f"{ROWS_PER_UNIT_OF_SIGNAL:g} for each unit of mu times the size of the data: as many as can be learnt",
    "fest_mu": "a fifth of the budget's mu, so that rare rows are not chosen by chance, at 2% of the noise",
    "update_every": "rare rows are updated this often, and once more at the end, by all that they have gathered",
    "always_on_rows": "rows of small tables are chosen as those of large ones are",
}


def selection_reasons(algorithm: str, settings: Iterable[str]) -> dict[str, str]:
    """Why each of these settings of a selection is as it is."""
    own = {"rows": ROWS_IN_TURNS} if algorithm == "fest-turns" else {}
    return {name: {**SELECTION_REASONS, **own}[name] for name in settings}


def two_digits(value: float) -> float:
    """Two significant digits: the rest would pretend to be known."""
    return float(f"{value:.2g}")
