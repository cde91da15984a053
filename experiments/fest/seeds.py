"""The claim on flights at epsilon 1 again, on seeds that chose no setting: Figure 3's point at a loss of 0.005 AUC."""

from __future__ import annotations

from typing import Any

from experiments.common.study import Study
from experiments.fest.data_sets import FLIGHTS, QUICK
from experiments.fest.figures import trade_off
from experiments.fest.runs import Grid, data_sets_of, runs_of
from experiments.fest.tables import by_setting, reductions
from experiments.fest.utility import LEAD

DATA_SETS = (FLIGHTS,)
SEEDS = [2, 3, 4, 5, 6]
CHOSEN: list[Grid] = [
    {"algorithm": ["lazy"], "expected_batch_size": [32768, 65536]},
    {"algorithm": ["fest"], "rows": [1000]},
    {"algorithm": ["adafest"], "noise_ratio": [2.0], "false_positives": [20.0]},
    {"algorithm": ["adafest+"], "rows": [3000], "noise_ratio": [5.0], "threshold": [33.0]},
]
"""What seeds 0 and 1 chose."""
QUICKLY: list[Grid] = [{"algorithm": ["dp-sgd"]}, {"algorithm": ["adafest"]}]


def run(study: Study) -> dict[str, Any]:
    """Train the chosen settings on other seeds."""
    (each,) = data_sets_of(study, DATA_SETS, QUICK)
    seeds, settings = (SEEDS[:1], QUICKLY) if study.quick else (SEEDS, CHOSEN)
    found = runs_of(each, [{**grid, "epsilon": [1.0], "seed": list(seeds)} for grid in settings], study)
    tables = {
        f"{each.name}: {each.description}": by_setting(found),
        "Best reduction within an AUC loss of the best DP-SGD": reductions(found),
    }
    panels = {"Settings": trade_off(found, 1.0)}
    return study.write("Chosen settings on other seeds", LEAD, tables, panels, found)
