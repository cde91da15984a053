from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from experiments.common.study import Study
from experiments.fest.data_sets import FLIGHTS, GENERATED, QUICK, TENNIS
from experiments.fest.runs import data_sets_of, runs_of


def test_an_absent_data_set_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEDP_DATA", raising=False)
    with pytest.raises(ValueError, match=r"data set tennis: .*tennis/matches.csv.zst"):
        data_sets_of(Study("a", tmp_path), [GENERATED, TENNIS], QUICK)
    assert data_sets_of(Study("a", tmp_path, chosen=("generated",)), [GENERATED, TENNIS], QUICK) == [
        GENERATED
    ]
    assert data_sets_of(Study("a", tmp_path, quick=True), [GENERATED, TENNIS], QUICK) == [QUICK]


def test_knobs_make_grids() -> None:
    assert FLIGHTS.default("fest", seed=(0,)) == {"algorithm": ["fest"], "rows": [1000], "seed": [0]}
    assert FLIGHTS.grids("fest") == [{"algorithm": ["fest"], "rows": [1000, 3000, 300, 100]}]
    assert len(FLIGHTS.grids("adafest", epsilon=[1.0])) == 5
    assert FLIGHTS.grids("dp-sgd") == [{"algorithm": ["dp-sgd"]}]


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    study = Study("a", tmp_path)
    small = replace(QUICK, source="generated:200", settings={**QUICK.settings, "expected_batch_size": 100})
    first = runs_of(small, [{"algorithm": ["non-private"], "seed": [0]}], study)
    result = next(tmp_path.glob("quick/runs/*/result.json"))
    changed = result.stat().st_mtime_ns
    both = runs_of(small, [{"algorithm": ["non-private"], "seed": [0, 1]}], study)
    assert result.stat().st_mtime_ns == changed
    assert both.filter(pl.col("seed") == 0).equals(first)
    assert both["dataset"].to_list() == ["quick", "quick"]
    assert not list(tmp_path.rglob("model.safetensors"))
