"""What a finished run leaves behind."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.runs import config

from sparsedp.accounting import PrivacyStatement
from sparsedp.runs import Evaluation, Result, RunFolder, load, resume
from sparsedp.runs.evaluation import evaluate_run
from sparsedp.runs.result import NOT_PRIVATE, Diverged, finish_run, finished_result, read_failure
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.sources import fresh_model, open_data

STATEMENT = PrivacyStatement(1.0, 1e-6, "add-or-remove-one", "example", "the model")


def finish(path: Path, statement: PrivacyStatement | None, spoilt: float = 0.0) -> Result:
    folder = RunFolder(path)
    folder.create(config())
    model = fresh_model(config(), open_data("generated:100"))
    with torch.no_grad():
        list(model.parameters())[-1].add_(spoilt)
    return finish_run(
        folder,
        model,
        evaluation=Evaluation(0.7, 0.4, 10, 0.5),
        run_stats=RunStats(steps=4, examples=40, seconds=2.0),
        statement=statement,
        withheld=["output.bias"] if "output.bias" in model.state_dict() else [],
        training_rows=90,
    )


@pytest.mark.parametrize("statement", [None, STATEMENT])
def test_weights_statement_and_figures_are_written(
    statement: PrivacyStatement | None, tmp_path: Path
) -> None:
    result = finish(tmp_path / "run", statement)
    folder = RunFolder(tmp_path / "run")
    assert folder.read_json("result") == asdict(result)
    assert (result.steps, result.examples_per_second, result.held_out_rows) == (4, 20.0, 10)
    assert result.table_coordinates > 1000
    assert (result.constant_log_loss, result.worse_than_constant) == (0.5, False)
    with safe_open(folder.weights, "pt") as file:
        assert file.metadata()["privacy"] == (str(statement) if statement else NOT_PRIVATE)
    expected = None if statement is None else json.loads(json.dumps(statement.to_dict()))
    assert folder.read_json("statement") == expected


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_diverged_run_is_an_error_and_stays_marked(spoilt: float, tmp_path: Path) -> None:
    """What it spent is stated, its weights are not written, and it is not resumed."""
    with pytest.raises(Diverged, match=r"diverged: the weights of layers.* are not finite after 4 steps"):
        finish(tmp_path / "run", STATEMENT, spoilt)
    folder = RunFolder(tmp_path / "run")
    assert folder.read_json("statement") == json.loads(json.dumps(STATEMENT.to_dict()))
    assert folder.read_json("result") is None
    assert not folder.weights.exists()
    with pytest.raises(Diverged, match="start a new run"):
        resume(tmp_path / "run")
    with pytest.raises(ValueError, match=r"is not finished: .*diverged.*; start a new run"):
        finished_result(folder)
    folder.write_config(config())
    for use in (load, evaluate_run):
        with pytest.raises(ValueError, match=r"has no trained model yet: .*diverged.*; start a new run"):
            use(folder.path)


OLD_STREAM = {
    "auc": 0.6,
    "log_loss": 0.5,
    "next_period_auc": [0.6, 0.6],
    "periods": 2,
    "steps": 8,
    "training_rows": 400,
    "rows": 3.0,
    "gradient_size": 30.0,
    "table_coordinates": 1000,
    "reduction": 33.3,
    "rows_per_table": {"embeddings.0": 3.0},
    "examples_per_second": 100.0,
    "seconds": 4.0,
    "statement": None,
}
OLD_RUN = {
    **{name: value for name, value in OLD_STREAM.items() if name not in ("next_period_auc", "periods")},
    "held_out_rows": 50,
    "noise_multiplier": 0.8,
}


@pytest.mark.parametrize(("saved", "period"), [(OLD_STREAM, 1), (OLD_RUN, None)])
def test_results_saved_by_earlier_versions_are_read(
    saved: dict[str, object], period: int | None, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config(period=period))
    folder.write_json("result", saved)
    found = asdict(resume(tmp_path / "run"))
    assert {name: found[name] for name in saved} == saved


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training_rows": 0}, "training_rows"),
        ({"steps": -1}, "steps"),
        ({"planned_steps": -1}, "planned_steps"),
        ({"lost_steps": -1}, "lost_steps"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, "noise_multiplier"),
        ({"threshold": math.nan}, "threshold"),
        ({"period_figures": [{"steps": 4}]}, "training_rows"),
        ({"period_figures": [{"training_rows": 4}]}, "steps"),
        (
            {"period_figures": [{"training_rows": 4, "steps": 1, "noise_multiplier": -1.0}]},
            "noise_multiplier",
        ),
        ({"statement": {"epsilon": 1.0}}, "statement"),
        ({"of": "another program"}, "of"),
    ],
)
def test_figures_that_no_run_has_are_refused_by_name(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_text(json.dumps({**OLD_RUN, **changes}))
    with pytest.raises(ValueError, match=f"result.json is not the result of a run .*{named}"):
        finished_result(RunFolder(tmp_path))


def test_a_run_that_must_be_finished_is_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not finished; resume it first"):
        finished_result(RunFolder(tmp_path))


@pytest.mark.parametrize("written", [{}, {"reason": "it diverged"}])
def test_why_a_run_failed_is_said_whatever_its_file_holds(written: dict[str, str], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_failure(folder) is None
    folder.write_json("failed", written)
    assert str(read_failure(folder)).endswith(written.get("reason", "the run failed"))
