"""The demo end to end, on few rows."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from support.command_line import assert_refused, invoke

from sparsedp.runs import RunFolder


def test_the_demo_trains_compares_and_reports(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shown = invoke("demo", "--rows", "3000", "--epsilon", "3", "--out", tmp_path / "demo", "--json")
    assert shown.exit_code == 0, shown.exception
    results = json.loads(shown.stdout)
    assert list(results) == ["non-private", "dp-sgd", "adafest"]
    assert results["non-private"]["statement"] is None
    for algorithm in ("dp-sgd", "adafest"):
        statement = results[algorithm]["statement"]
        assert statement["private"] is True
        assert 2.5 < statement["epsilon"] <= 3.0
        assert RunFolder(tmp_path / "demo" / algorithm).weights.exists()
    assert results["dp-sgd"]["reduction"] == 1.0
    assert results["adafest"]["reduction"] > 10
    assert "3 runs compared" in (tmp_path / "demo" / "report.html").read_text()


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert_refused(invoke("demo", "--rows", "1", "--out", tmp_path / "demo", "--json"), "data: ")
    assert_refused(
        invoke("demo", "--epsilon", "-1", "--rows", "50", "--out", tmp_path, "--json"), "epsilon must"
    )
    for rows in ("0", "-5", "1" + 30 * "0"):
        assert_refused(invoke("demo", "--rows", rows, "--out", tmp_path / "demo", "--json"), "rows must")
