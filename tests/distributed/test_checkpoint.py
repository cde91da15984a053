"""A checkpoint of some processes is resumed by another number of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.distributed_jobs import checkpointed
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
