"""A run's folder: whole files, metrics that survive a crash."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.runs import config

from sparsedp.runs import RunFolder


def test_a_taken_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config(seed=1))
    with pytest.raises(ValueError, match="already holds a run"):
        folder.create(config(seed=2))
    assert folder.config().seed == 1


def test_the_private_part_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config())
    assert stat.S_IMODE(folder.checkpoint.parent.stat().st_mode) == 0o700


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{tmp_path} holds no run"):
        RunFolder(tmp_path).config()


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (done.append(name), real(*given)))
    RunFolder(tmp_path).write_json("result", {})
    assert done == ["fsync", "replace", "fsync"]


def test_a_run_has_one_name_on_ledgers_and_no_other_run_has_it(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        RunFolder(tmp_path / place / "run").create(config())
    one, two = (RunFolder(tmp_path / place / "run").run_name for place in ("one", "two"))
    assert one != two
    assert one.startswith("run-")
    assert RunFolder(tmp_path / "one" / "run").run_name == one


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.metrics() == []
    folder.log({"step": 1, "auc": 0.5})
    folder.log({"step": 2, "auc": 0.6})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "au')
    assert folder.metrics() == [{"step": 1, "auc": 0.5}, {"step": 2, "auc": 0.6}]


def test_what_a_resumed_run_does_again_is_forgotten(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3, 4):
        folder.log({"step": step})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"ste')
    folder.discard_after(2)
    folder.log({"step": 3})
    assert folder.metrics() == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_json_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_json("result") is None
    folder.write_json("result", {"auc": 0.5})
    assert folder.read_json("result") == {"auc": 0.5}


def test_files_are_valid_json_also_of_a_diverged_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("result", {"auc": 0.5, "log_loss": float("inf")})
    folder.log({"step": 1, "log_loss": float("nan")})
    assert "Infinity" not in (tmp_path / "result.json").read_text()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert folder.read_json("result") == {"auc": 0.5, "log_loss": None}
    assert folder.metrics() == [{"step": 1, "log_loss": None}]


def test_a_run_that_cannot_begin_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "own.txt").write_text("mine")
    for path, left in ((tmp_path / "new", []), (tmp_path / "notes", ["own.txt"])):
        folder = RunFolder(path)
        folder.create(config())
        with pytest.raises(ValueError, match="already holds a run"), folder.removed_if_refused():
            folder.create(config())
        assert path.exists() == bool(left)
        assert [each.name for each in path.glob("*")] == left


@pytest.mark.parametrize("name", ["part-00000.parquet", "manifest.jsonl"])
def test_a_folder_of_data_is_no_folder_of_a_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="holds prepared data; give another folder"):
        RunFolder(tmp_path).create(config())
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("within", ["run", "a/b", "../link/run"])
def test_a_folder_inside_prepared_data_is_no_folder_of_a_run(within: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "schema.json").touch()
    (data / "part-00000.parquet").touch()
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(ValueError, match=r"lies in .*data, which holds prepared data; give another folder"):
        RunFolder(data / within).create(config())
    assert len(list(data.iterdir())) == 2


def test_a_run_may_lie_below_other_parts_and_other_runs(tmp_path: Path) -> None:
    (tmp_path / "part-00000.parquet").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "schema.json").touch()
    RunFolder(tmp_path / "runs" / "one").create(config())


def test_a_run_that_has_charged_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config())
    with pytest.raises(ValueError, match="already holds a run"), folder.removed_if_refused(lambda: True):
        folder.create(config())
    assert folder.has_config
