"""The registry: every algorithm in one place, and a new one usable everywhere."""

from __future__ import annotations

import dataclasses
import re
from inspect import unwrap
from pathlib import Path

import pytest
import typer
from support.runs import config, settings
from typer.testing import CliRunner

import sparsedp as sdp
from sparsedp.cli.errors import refuse_bad_input
from sparsedp.cli.report import report
from sparsedp.cli.settings import with_settings
from sparsedp.cli.train import train
from sparsedp.runs import ALGORITHMS, RunConfig
from sparsedp.runs.algorithms import Algorithm, register, selection_of
from sparsedp.runs.config import IMPLIED, SELECTION
from sparsedp.selection import Selection


def test_every_algorithm_builds_its_rule() -> None:
    fest = sdp.FEST({"embeddings.0": [1]})
    assert selection_of(config("dp-sgd"), None) == sdp.DPSGD()
    assert selection_of(config("lazy"), None) == sdp.DPSGD(lazy=True)
    assert selection_of(config("fest"), fest) is fest
    assert selection_of(config("fest-lazy"), fest) == sdp.FEST({"embeddings.0": [1]}, lazy=True)
    top_k = sdp.FEST.private_top_k({}, 7, 0.3, contribution_norm=2.0, always_on_rows=5)
    lazy = sdp.FEST.private_top_k({}, 7, 0.3, contribution_norm=2.0, always_on_rows=5, lazy=True)
    assert selection_of(config("fest-lazy"), top_k) == lazy
    assert selection_of(config("fest-turns", update_every=9), top_k) == dataclasses.replace(
        top_k, update_every=9
    )
    with pytest.raises(ValueError, match="private counts"):
        selection_of(config("fest-turns"), fest)
    asked = config("adafest", noise_ratio=3.0, threshold=7.0, contribution_norm=2.0, always_on_rows=5)
    assert selection_of(asked, None) == sdp.AdaFEST(3.0, 7.0, contribution_norm=2.0, always_on_rows=5)
    assert selection_of(config("adafest+", false_positives=9.0), fest) == sdp.AdaFEST(
        false_positives=9.0, within=fest
    )
    remembering = selection_of(config("adafest-memory", memory_steps=7, memory_every=3), None)
    assert remembering == sdp.AdaFEST(memory_steps=7, memory_every=3)
    assert selection_of(config("random"), None) == sdp.RandomSelection(rows=100)
    assert selection_of(config("exponential"), None) == sdp.ExponentialSelection(100, 0.01, 0.1)
    assert selection_of(config("sparse-vector"), None) == sdp.SparseVectorSelection(100, 0.01, 0.1, 0.001)
    with pytest.raises(ValueError, match="no selection rule"):
        selection_of(config("non-private", rows=3), None)


def test_every_entry_reads_settings_that_exist_and_every_selection_setting_is_read() -> None:
    read = {name for algorithm in ALGORITHMS.values() for name in algorithm.options}
    of_selections = {name for name, field in RunConfig.model_fields.items() if SELECTION in field.metadata}
    assert read == of_selections


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_an_entry_says_of_its_algorithm_is_so(name: str) -> None:
    algorithm = ALGORITHMS[name]
    assert (name, algorithm.private) == (algorithm.name, name != "non-private")
    assert re.fullmatch("#[0-9a-f]{6}", algorithm.colour)
    if algorithm.private and not algorithm.row_set:
        rule = selection_of(config(name), None)
        assert (rule == sdp.DPSGD(lazy=algorithm.lazy_noise)) == algorithm.dense


def test_labels_and_colours_tell_algorithms_apart() -> None:
    for field in ("label", "colour"):
        assert len({getattr(algorithm, field) for algorithm in ALGORITHMS.values()}) == len(ALGORITHMS)


def test_defaults_are_those_of_the_selection_rules() -> None:
    """A run that leaves a setting out trains as an engine does that leaves the argument out."""
    fields = {each.name: each.default for each in dataclasses.fields(sdp.AdaFEST)}
    for name in (
        "noise_ratio",
        "threshold",
        "contribution_norm",
        "always_on_rows",
        "memory_every",
    ):
        assert RunConfig.model_fields[name].default == fields[name]
    assert IMPLIED["false_positives"] == fields["false_positives"]
    assert RunConfig.model_fields["fest_mu"].default == sdp.FEST.private_top_k({}, 1).mu


def build(config: RunConfig, row_set: object) -> Selection:
    assert config.rows is not None
    return sdp.RandomSelection(rows=config.rows)


def test_a_taken_name_and_an_inconsistent_entry_are_refused() -> None:
    with pytest.raises(ValueError, match="already an algorithm lazy"):
        register(Algorithm("lazy", "another", "#000000", build))
    with pytest.raises(ValueError, match="required: rows must be among the options of new"):
        Algorithm("new", "new", "#000000", build, required=("rows",))
    with pytest.raises(ValueError, match="needs rows"):
        Algorithm("new", "new", "#000000", build, ("rows",), row_set=True)


def test_the_config_follows_a_new_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^algorithm: 'new' is not one of"):
        RunConfig.parse(settings("new"))
    new = Algorithm("new", "a new rule", "#000000", build, ("rows",), required=("rows",), lazy_noise=True)
    monkeypatch.setitem(ALGORITHMS, "new", new)
    assert selection_of(config("new"), None) == sdp.RandomSelection(rows=100)
    for message, fields in [
        ("epsilon: algorithm new needs one", settings("new", epsilon=None)),
        ("rows: algorithm new needs", settings("new", rows=None)),
        ("table_optimizer: lazy noise", settings("new", table_optimizer="adagrad")),
        ("algorithm new releases the final model only", settings("new", period=1)),
        ("algorithm: 'sgd' is not one of .*'new'", settings("sgd")),
    ]:
        with pytest.raises(ValueError, match=f"^{message}"):
            RunConfig.parse(fields)


def test_a_made_up_algorithm_goes_from_the_command_line_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One entry is all that help, config, training and report need."""
    new = Algorithm("every-other", "every other row", "#123456", build, ("rows",), required=("rows",))
    monkeypatch.setitem(ALGORITHMS, new.name, new)
    app = typer.Typer()
    for command in (train, report):
        app.command()(refuse_bad_input(with_settings(unwrap(command)) if command is train else command))

    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"})
    assert shown.stdout.count("random, every-other.") == 2  # the algorithms, and those that read --rows
    (tmp_path / "run.yaml").write_text(config("random", rows=37).to_yaml())
    for arguments in (
        ["train", "--config", "run.yaml", "--algorithm", "every-other", "--out", "run", "--json"],
        ["report", "run"],
    ):
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    assert "every other row, epsilon 2" in page
    assert "<th scope=row>rows</th><td>37</td>" in page
