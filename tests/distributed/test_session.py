"""One-off choices on several processes: counted in parts, merged once, noised once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import distributed_device
from support.distributed_sessions import top_k
from support.processes import Processes

from sparsedp.accounting import Ledger
from sparsedp.distributed.session import check_supported, part_of_rank
from sparsedp.selection import DPSGD, FEST, Selection
from sparsedp.training.step_config import StepConfig


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_private_top_k_counts_every_example_once(
    processes: Processes, tmp_path: Path, sharded: bool, ranks: int
) -> None:
    path = tmp_path / "run.ledger"
    results = processes.run(top_k, sharded, str(path), ranks=ranks)
    ids, counts, size = results[0]["counted"]
    expected = {row: count for row, count in enumerate(results[0]["expected"]) if count}
    assert size == 50
    assert dict(zip(ids, counts, strict=True)) == pytest.approx(expected)
    for result in results[1:]:
        assert result["counted"][0] == [], "only rank 0 has the counts"
    assert len({tuple(result["rows"]) for result in results}) == 1
    assert len(results[0]["rows"]) == 7
    assert len({str(result["spent"]) for result in results}) == 1
    assert sorted(count for _, count in Ledger.read(path).events()) == [1, 1]


@pytest.mark.parametrize("examples", [1, 7, 100])
def test_parts_are_disjoint_and_cover_the_data(examples: int) -> None:
    parts = [part_of_rank(examples, rank, 4) for rank in range(4)]
    assert [index for part in parts for index in part] == [*range(examples)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_users_are_refused() -> None:
    config = StepConfig(1.0, 1.0, 4.0, 0.1, True, 10, unit="user", user_sample="users", rows_per_user=3)
    with pytest.raises(ValueError, match="unit='user': over several processes the unit is the example"):
        check_supported(DPSGD(), config)
    check_supported(DPSGD(), StepConfig(1.0, 1.0, 4.0, 0.1, True, 10))


@pytest.mark.parametrize(
    "selection", [FEST({"table": [1]}, update_every=2), FEST.private_top_k({}, 3, update_every=2)]
)
def test_rows_in_turns_are_for_one_process(selection: Selection) -> None:
    with pytest.raises(ValueError, match="update_every"):
        check_supported(selection, StepConfig(1.0, 1.0, 4.0, 0.1, True, 10))
    check_supported(FEST({"table": [1]}), StepConfig(1.0, 1.0, 4.0, 0.1, True, 10))


@pytest.mark.slow
def test_parameters_on_another_device_train_as_in_main_memory(tmp_path: Path) -> None:
    """Two processes, each with its model on a device that stands in for an accelerator; also saved and resumed."""
    command = [sys.executable, str(Path(distributed_device.__file__)), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    running = [
        subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
