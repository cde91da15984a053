"""A checkpoint of some processes is resumed by another number of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.distributed_jobs import checkpointed, exported, half_saved
from support.distributed_sessions import parts, unlike_checkpoints
from support.processes import Processes


@pytest.mark.parametrize(
    ("sharded", "selection", "table_optimizer"),
    [
        (True, "AdaFEST", "row-wise Adagrad"),
        (True, "AdaFEST", "SparseAdam"),
        (True, "FEST", "Adagrad"),
        (False, "AdaFEST", "row-wise Adagrad"),
    ],
)
def test_a_run_continues_on_another_number_of_processes(
    processes: Processes, tmp_path: Path, sharded: bool, selection: str, table_optimizer: str
) -> None:
    def train(folder: str, begin: int, end: int, ranks: int) -> dict[str, object]:
        path = str(tmp_path / folder)
        results = processes.run(
            checkpointed, path, sharded, selection, begin, end, table_optimizer, ranks=ranks
        )
        return results[0]  # type: ignore[no-any-return]

    expected = train("uninterrupted", 0, 5, 1)
    train("moved", 0, 2, 2)
    train("moved", 2, 3, 4)
    found = train("moved", 3, 5, 1)
    assert found["spent"] == expected["spent"]
    for name, value in expected["weights"].items():  # type: ignore[attr-defined]
        np.testing.assert_allclose(found["weights"][name], value, rtol=2e-5, atol=2e-6, err_msg=name)  # type: ignore[index]


@pytest.mark.parametrize("sharded", [False, True])
def test_an_export_has_every_row_once(processes: Processes, tmp_path: Path, sharded: bool) -> None:
    results = processes.run(exported, str(tmp_path / "model.safetensors"), sharded, ranks=2)
    assert all("not private" in result["refusal"] for result in results)
    found = load_file(tmp_path / "model.safetensors")
    for name in ("rows.weight", "bags.weight") if sharded else ():
        assert name not in found
        parts = [load_file(tmp_path / f"model.rows-0000{rank}-of-00002.safetensors") for rank in (0, 1)]
        ids = np.concatenate([part[f"{name}.ids"] for part in parts])
        found[name] = np.concatenate([part[name] for part in parts])[np.argsort(ids)]
        assert (np.sort(ids) == np.arange(ids.size)).all()
    assert {*found} == {*results[0]["weights"]}
    for name, value in results[0]["weights"].items():
        assert (found[name] == value).all()


def test_frozen_and_shared_tables_are_parts_too(processes: Processes, tmp_path: Path) -> None:
    saved = processes.run(parts, str(tmp_path), False, ranks=2)
    frozen = np.arange(102.0).reshape(51, 2)
    for ranks in (2, 3):
        for tables, _ in [*saved, *processes.run(parts, str(tmp_path), True, ranks=ranks)]:
            np.testing.assert_array_equal(tables[0], frozen)
            np.testing.assert_array_equal(tables[1], saved[0][0][1])
            np.testing.assert_array_equal(tables[2], saved[0][0][1])
    assert {*load_file(tmp_path / "model.safetensors")} == {"out.weight", "out.bias"}
    for _, refusals in saved:
        assert [text.partition(":")[0] for text in refusals] == ["module 'also'"] * 2 + ["module 'second'"]


def test_a_checkpoint_of_another_kind_is_refused_in_one_line(processes: Processes, tmp_path: Path) -> None:
    for told in processes.run(unlike_checkpoints, str(tmp_path), ranks=2):
        assert "'0.weight' divided by 'hash', and this run divided by 'range'" in told["by range"]
        assert "'0.weight' divided by 'hash', and this run whole" in told["whole"]
        assert told["the same"] == "nothing"
        assert "rows is not readable" in told["rows/__1_0.distcp"]
        assert "state.pt is not a readable checkpoint" in told["state.pt"]
        assert not any("\n" in text for text in told.values())
    folders = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert len(folders) == 2, "one checkpoint"
    assert folders[1] == "step-results", "what is not ours stays"


def test_a_save_that_fails_leaves_the_last_checkpoint(processes: Processes, tmp_path: Path) -> None:
    for before, error, after in processes.run(half_saved, str(tmp_path), ranks=2):
        assert before == after
        assert "disk" in error
