"""train, resume and evaluate at the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.command_line import assert_refused, invoke
from support.runs import TINY, config

from sparsedp.accounting import PrivacyStatement
from sparsedp.cli.train import progress_bar, show_result
from sparsedp.runs import RunFolder, evaluation
from sparsedp.runs.evaluation import Evaluation
from sparsedp.runs.training import Progress

torch.set_num_threads(1)
TRAIN = ["train", "--data", "generated:2000", "--algorithm", "adafest", "--epsilon", "2", "--out"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, its settings from a file and from options."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "run.yaml").write_text(config(epsilon=9.0).to_yaml())
    result = invoke("train", "--config", folder / "run.yaml", "--epsilon", "2", "--out", folder / "run")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for words in ("AUC", "log-loss", "times smaller", "NOT PRIVATE", "add-or-remove-one", "unit: example"):
        assert words in text
    assert RunFolder(folder / "run").config().epsilon == 2.0
    return folder / "run"


def test_json_is_the_result(run: Path) -> None:
    shown = invoke("resume", run, "--json")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == RunFolder(run).read_json("result")
    assert "AUC" in invoke("resume", run).stdout


def test_evaluate(run: Path) -> None:
    figures = json.loads(invoke("evaluate", run, "--json").stdout)
    result = RunFolder(run).read_json("result")
    assert result is not None
    figures["held_out_rows"] = figures.pop("rows")
    assert figures == {
        name: result[name] for name in ("auc", "log_loss", "held_out_rows", "constant_log_loss")
    }
    assert "on 300 rows" in invoke("evaluate", run, "--data", "generated:300").stdout


def test_evaluate_warns_of_a_log_loss_above_that_of_a_constant(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Evaluation(auc=0.6, log_loss=0.7, rows=10, constant_log_loss=0.6)
    monkeypatch.setattr(evaluation, "evaluate_run", lambda *_: found)
    assert "worse than that of predicting the mean rate" in invoke("evaluate", run).stdout
    found = replace(found, log_loss=0.5)
    assert "worse" not in invoke("evaluate", run).stdout


def test_a_stream_at_the_command_line(tmp_path: Path) -> None:
    asked = config(data="generated:600x3", expected_batch_size=100)
    (tmp_path / "run.yaml").write_text(asked.to_yaml())
    arguments = ["--config", tmp_path / "run.yaml", "--period", "1", "--out", tmp_path / "run", "--json"]
    shown = invoke("train", *arguments)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["periods"] == 2
    assert json.loads(invoke("resume", tmp_path / "run", "--json").stdout) == json.loads(shown.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "sgd"], ["algorithm: ", "adafest"]),
        (["--epsilon", "-1"], ["epsilon: "]),
        (["--epsilon", "nan"], ["epsilon: "]),
        (["--algorithm", "non-private"], ["epsilon: "]),
        (["--data", "no/such/folder"], ["no/such/folder"]),
        (["--data", "generated:1"], ["data: "]),
        (["--algorithm", "random"], ["rows: "]),
        (["--threshold", "3", "--false-positives", "3"], ["threshold and false_positives"]),
        (["--holdout-by", "luck"], ["holdout_by: "]),
        (["--expected-batch-size", "0"], ["expected_batch_size: "]),
        (["--model", "nothing"], ["model must be"]),
        (["--config", "no/such/file.yaml"], ["no/such/file.yaml"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    assert_refused(invoke(*TRAIN, tmp_path / "run", *arguments, "--json"), *words)
    assert not (tmp_path / "run").exists()


def test_epsilon_must_be_given(tmp_path: Path) -> None:
    arguments = ["--data", "generated:2000", "--algorithm", "dp-sgd", "--out", tmp_path / "run", "--json"]
    assert_refused(invoke("train", *arguments), "epsilon: algorithm dp-sgd needs one")


def test_a_used_folder_is_refused(run: Path, tmp_path: Path) -> None:
    assert_refused(invoke(*TRAIN, run, "--json"), "already holds a run")


def test_a_file_with_an_unknown_setting(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config().to_yaml() + "epsilom: 3\n")
    assert_refused(invoke("train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run"), "epsilom: ")


def test_folders_without_runs(tmp_path: Path) -> None:
    for command in ("resume", "evaluate"):
        assert_refused(invoke(command, tmp_path / "nothing"), "holds no run")
    RunFolder(tmp_path / "begun").create(config(model_options=TINY))
    assert_refused(invoke("evaluate", tmp_path / "begun"), "no trained model yet")


def test_data_of_another_schema(run: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("click,user\n" + "1,a\n0,b\n" * 10)
    columns = ["--label", "click", "--categorical", "user", "--hash", "user=50"]
    made = invoke("prepare", "table", tmp_path / "t.csv", "--out", tmp_path / "data", *columns)
    assert made.exit_code == 0, made.output
    assert_refused(invoke("evaluate", run, "--data", tmp_path / "data"), "data folder of another schema")


def test_a_result_that_is_not_finite_is_shown(run: Path, tmp_path: Path) -> None:
    result = RunFolder(run).read_json("result")
    assert result is not None
    shutil.copytree(run, tmp_path / "run")
    RunFolder(tmp_path / "run").write_json("result", {**result, "log_loss": float("inf")})
    assert "log-loss not finite" in invoke("resume", tmp_path / "run").stdout
    assert json.loads(invoke("resume", tmp_path / "run", "--json").stdout)["log_loss"] is None
    report = invoke("report", tmp_path / "run", "--out", tmp_path / "report.html")
    assert report.exit_code == 0, report.output


def test_a_run_that_diverges_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config("non-private", table_learning_rate=1e38).to_yaml())
    done = invoke("train", "--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--json")
    assert_refused(done, "diverged")
    assert RunFolder(tmp_path / "run").read_json("failed") is not None


def test_data_and_epsilon_are_enough(tmp_path: Path) -> None:
    """The recipe's choices are printed and stored; the log-loss stands beside that of a constant."""
    options = ["--data", "generated:1000", "--model-options", json.dumps(TINY), "--out", tmp_path / "run"]
    done = invoke("train", *options, "--epsilon", "2", "--seed", "1")
    assert done.exit_code == 0, done.output
    assert "recipe: algorithm lazy: " in done.stderr
    result, chosen = RunFolder(tmp_path / "run").read_json("result"), RunFolder(tmp_path / "run").config()
    assert result is not None
    assert f"(constant prediction: {result['constant_log_loss']:.4f})" in done.stdout
    assert ("warning: the log-loss is worse" in done.stdout) == result["worse_than_constant"]
    assert chosen.is_complete
    assert chosen.model_options == {**TINY, "table_scale": 20.0}


def test_a_progress_bar_states_what_an_epsilon_means(capsys: pytest.CaptureFixture[str]) -> None:
    spent = PrivacyStatement(0.5, 1e-6, "add-or-remove-one", "user", "the final model only")
    with progress_bar("lazy", quiet=False) as on_progress:
        assert on_progress is not None
        on_progress(Progress(3, 10, 1000.0, spent, 25.0))
    said = " ".join(capsys.readouterr().err.split())
    assert "3/10" in said
    assert f"spent so far, at most: {spent}" in said
    with progress_bar("non-private", quiet=False) as on_progress:
        assert on_progress is not None
        on_progress(Progress(3, 10, 1000.0, None, None))
    assert "spent" not in capsys.readouterr().err


def test_a_top_k_needs_no_rows(tmp_path: Path) -> None:
    """The recipe has them, and its part of the budget."""
    options = ["--data", "generated:1000", "--model-options", json.dumps(TINY), "--out", tmp_path / "run"]
    done = invoke(
        "train", *options, "--algorithm", "fest", "--epsilon", "2", "--epochs", "0.1", "--seed", "1"
    )
    assert done.exit_code == 0, done.output
    chosen = RunFolder(tmp_path / "run").config()
    assert f"recipe: rows {chosen.rows}: " in done.stderr
    assert f"recipe: fest_mu {chosen.fest_mu:g}: " in done.stderr


def test_an_output_that_was_not_calibrated_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = RunFolder(run).read_json("result")
    assert result is not None
    show_result(run, result, as_json=False)
    assert "calibration_mu" not in capsys.readouterr().out
    show_result(run, {**result, "calibrated": False}, as_json=False)
    assert "the bias and scale of the output were not fitted (calibration_mu)" in capsys.readouterr().out
