from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.command_line import assert_refused, invoke
from support.runs import config
from support.visits import prepare_visits, visits_config

from sparsedp.runs import stream, train

torch.set_num_threads(1)


def test_some_audits_of_the_library_and_their_page(tmp_path: Path) -> None:
    out = tmp_path / "audits.md"
    result = invoke("audit", "--only", "laplace", "--effort", "0.2", "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "laplace, half the noise: claimed epsilon 1 at delta 0" in result.stdout
    assert "known-bad forms are caught" in out.read_text()
    assert "Made by `sparsedp audit --only 'laplace' --effort 0.2 --out docs/audits.md`" in out.read_text()
    found = json.loads(invoke("audit", "--only", "laplace, half", "--effort", "0.2", "--json").stdout)
    assert [finding["name"] for finding in found] == ["laplace, half the noise"]
    assert found[0]["is_expected"]


def test_a_control_that_is_not_caught_is_an_error() -> None:
    result = invoke("audit", "--only", "clipped apart", "--effort", "0.001")
    assert result.exit_code == 1
    assert "1 of 1 audits found what they should not" in result.stderr


def test_the_list_has_everything() -> None:
    names = invoke("audit", "--list").stdout.splitlines()
    assert len(names) > 80
    assert len(set(names)) == len(names)
    for part in (
        "gaussian",
        "DP-AdaFEST+, one step",
        "EANA",
        "users drawn",
        "read shares",
        "calibration of the output",
        "rings",
        "click model",
        "text model",
    ):
        assert any(part in name for name in names), part


def test_a_run_is_audited(tmp_path: Path) -> None:
    train(config("lazy"), tmp_path / "run")
    result = invoke("audit", tmp_path / "run", "--canaries", "60", "--steps", "2", "--seed", "1")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "claimed: " in result.stdout
    assert "audited: epsilon >= " in result.stdout
    words = "add-or-remove-one adjacency, unit: example, released: the final model only; confidence 0.95"
    assert words in result.stdout.replace("\n", " ")
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["canaries"] == 60
    figures = json.loads((tmp_path / "run" / "result.json").read_text())
    figures["statement"]["epsilon"] /= 2
    (tmp_path / "run" / "result.json").write_text(json.dumps(figures))
    result = invoke("audit", tmp_path / "run", "--canaries", "20", "--steps", "1", "--seed", "1")
    assert result.exit_code == 1
    assert "the audit refutes the claim: the run claims epsilon 0.99" in result.stderr


def test_of_a_stream_it_is_said_which_period_was_audited(tmp_path: Path) -> None:
    options = {"data": "generated:800x4", "period": 1, "expected_batch_size": 100}
    stream(config("dp-sgd", **options), tmp_path / "run")
    result = invoke("audit", tmp_path / "run", "--canaries", "40", "--steps", "1", "--seed", "1")
    assert result.exit_code == 0, (result.output, result.exception)
    period = json.loads((tmp_path / "run" / "audit.json").read_text())["period"]
    assert f"a copy of period {period}, counted from 0, whose records cost most" in result.stdout


def test_of_a_stream_of_users_the_claim_is_for_all_periods(tmp_path: Path) -> None:
    stream(visits_config(prepare_visits(tmp_path)), tmp_path / "run")
    result = invoke("audit", tmp_path / "run", "--canaries", "40", "--steps", "1", "--seed", "1")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "counted from 0, the one of most steps (a user may have rows in all periods" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "run: give the folder of a run, or --all"),
        (["somewhere", "--all"], "run: give the folder of a run, or --all"),
        (["somewhere"], "holds no run"),
        (["somewhere", "--confidence", "1"], "confidence must lie strictly between 0 and 1"),
        (["--only", "no such thing"], "only: no audit has 'no such thing' in its name"),
        (["--all", "--effort", "0"], "effort must be positive and finite"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str) -> None:
    assert_refused(invoke("audit", *arguments), words)
