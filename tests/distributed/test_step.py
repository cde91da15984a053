"""A step of several processes is the step of one process on all their examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.distributed_jobs import SELECTIONS, single_training, trainings
from support.processes import Processes

CASES = [
    (selection, sharded, by)
    for selection in SELECTIONS
    for sharded, by in ((False, "hash"), (True, "hash"), (True, "range"))
]


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_noise_weights_and_gradients_are_those_of_one_process(
    processes: Processes, ranks: int
) -> None:
    by_rank = processes.run(trainings, CASES, ranks=ranks)
    for number, (selection, sharded, by) in enumerate(CASES):
        expected = single_training(selection)
        for result in (results[number] for results in by_rank):
            for kind in ("weights", "grads"):
                assert_close(result[kind], expected[kind], f"{selection} {sharded} {by} {kind}")
            assert result["figures"] == expected["figures"]


def assert_close(found: dict[str, Any], expected: dict[str, Any], case: str) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=f"{case} {name}")
