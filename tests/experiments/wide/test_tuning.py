from __future__ import annotations

from pathlib import Path

import pytest

from experiments.common.study import Study
from experiments.wide import fig2
from experiments.wide.fig1 import SEEDS
from experiments.wide.tuning import PARTS, SEED, grid, run


def test_every_rule_has_as_many_settings_on_a_seed_that_is_not_reported() -> None:
    assert SEED not in {*SEEDS, fig2.SEED}
    for epsilon, rules in PARTS.items():
        for rule in rules:
            tried = {(each.max_grad_norm, each.learning_rate) for each in grid(rule, epsilon)}
            assert len(tried) == 4


@pytest.mark.slow
def test_the_study_names_the_validation_loss(tmp_path: Path) -> None:
    tables = run(Study("wide-tuning", tmp_path, quick=True))["tables"]
    assert list(tables) == ["epsilon 30, DP-SGD", "epsilon 3, DP-SGD"]
    assert all(line["validation loss"] > 0 for lines in tables.values() for line in lines)
