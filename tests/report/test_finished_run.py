from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import config, result

from sparsedp.report import FinishedRun
from sparsedp.runs import RunFolder


def test_a_run_is_read_with_its_columns(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config(epsilon=3.0))
    tables = {"embeddings.0": 4.0, "embeddings.1": 7.0, "other": 1.0}
    folder.write_json("result", result(rows_per_table=tables))
    run = FinishedRun.read(tmp_path / "run")
    assert run.name == "DP-AdaFEST, epsilon 3"
    assert run.statement is None
    assert run.rows_per_column == tables  # as runs were before they knew their columns
    run.result["features"] = {"embeddings.0": "user", "embeddings.1": "item"}
    assert run.rows_per_column == {"user": 4.0, "item": 7.0, "other": 1.0}


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").create(config())
    with pytest.raises(ValueError, match="run is not finished"):
        FinishedRun.read(tmp_path / "run")


@pytest.mark.parametrize(
    "audit", [{}, {"lower_bound": "much"}, {"lower_bound": 1.0, "confidence": 0.9, "canaries": 9, "steps": 1}]
)
def test_an_audit_that_is_none_is_refused_in_words(audit: dict[str, object], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config())
    folder.write_json("result", result())
    folder.write_json("audit", audit)
    with pytest.raises(ValueError, match=r"audit.json is not the audit of a run"):
        FinishedRun.read(folder.path)
