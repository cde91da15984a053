from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from experiments.common.study import Study
from experiments.fest import text
from experiments.fest.text_tuning import KNOBS, SEED, cases, run


def test_every_private_method_has_as_many_settings_on_a_seed_that_is_not_reported() -> None:
    tried = list(cases())
    counts = Counter(case.method for case in tried)
    assert set(counts) == set(KNOBS) == set(text.METHODS) - {"without privacy"}
    assert len(set(counts.values())) == 1
    assert {case.seed for case in tried} == {SEED}
    assert SEED not in {seed for each in text.DATA_SETS for seed in each.seeds}


@pytest.mark.slow
def test_the_study_reads_the_validation_part(tmp_path: Path) -> None:
    lines = run(Study("fest-text-tuning", tmp_path, quick=True))["tables"]["made-up"]
    assert [line["method"] for line in lines] == ["frozen", "frozen"]
    assert all(0.0 <= line["accuracy"] <= 1.0 for line in lines)
