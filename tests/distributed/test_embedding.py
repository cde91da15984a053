"""Sharded tables outside the engine are torch's tables; inside it, they send what is touched only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.distributed_jobs import (
    drop_in,
    drop_in_alone,
    half_precision,
    large_table,
    refused_tables,
    traffic,
)
from support.processes import Processes


@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_and_gradients_are_those_of_torch(processes: Processes, ranks: int) -> None:
    by_rank = processes.run(drop_in, ranks=ranks)
    for by in ("range", "hash"):
        outputs, grads = drop_in_alone(ranks)
        for rank, result in enumerate(by_rank):
            for name, found in result[by]["outputs"].items():
                np.testing.assert_allclose(found, outputs[rank][name], rtol=1e-6, err_msg=f"{by} {name}")
            for name, found in result[by]["grads"].items():
                np.testing.assert_allclose(found, grads[name], rtol=1e-5, atol=1e-6, err_msg=f"{by} {name}")


def test_shards_begin_with_other_numbers_in_every_rank(processes: Processes) -> None:
    first, second = (result["first rows"] for result in processes.run(drop_in, ranks=2))
    assert (first != second).all()


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64"])
def test_rows_of_any_float_travel(processes: Processes, kind: str) -> None:
    assert processes.run(half_precision, kind, ranks=2) == [True, True]


def test_wrong_arguments_are_refused_by_name(processes: Processes) -> None:
    (messages,) = processes.run(refused_tables, ranks=1)
    for message, start in zip(
        messages,
        (
            "num_embeddings",
            "padding_idx",
            "mode",
            "by",
            "ids must be",
            "id 9 is out of range",
            "table must have",
        ),
        strict=True,
    ):
        assert message.startswith(start), message


def ratio(sent: dict[str, int], touched: int, dim: int) -> float:
    return sum(sent.values()) / (4 * touched * dim)


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_of_a_step_are_those_of_touched_rows(processes: Processes, ranks: int) -> None:
    small = processes.run(traffic, 10**5, 4096, 16, ranks=ranks)
    large = processes.run(traffic, 10**6, 4096, 16, ranks=ranks)
    _check_traffic(small, large, ranks)


@pytest.mark.slow
def test_bytes_of_a_step_do_not_grow_with_the_table(processes: Processes) -> None:
    small = processes.run(traffic, 10**5, 4096, 16, ranks=2)
    large = processes.run(traffic, 10**7, 4096, 16, ranks=2)
    _check_traffic(small, large, 2)


def _check_traffic(small: list[dict[str, int]], large: list[dict[str, int]], ranks: int) -> None:
    for one, other in zip(small, large, strict=True):
        assert ratio(one["sent"], one["touched"], 16) < 3  # type: ignore[arg-type]
        assert other["held"] == 10 * one["held"] or other["held"] == 100 * one["held"]
        assert other["touched"] == one["touched"]
        for purpose, count in one["sent"].items():  # type: ignore[attr-defined]
            if purpose == "sums":  # which rows survive is random
                assert abs(other["sent"][purpose] - count) < 0.1 * count  # type: ignore[index]
            else:
                assert other["sent"][purpose] == count  # type: ignore[index]
        assert one["messages"] == other["messages"] <= 10 * (ranks - 1)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc"
)
def test_no_process_holds_more_than_its_half_of_a_large_table(processes: Processes) -> None:
    processes.run(large_table, 1000, 16, 8, ranks=2)  # libraries and compiled loops are loaded once
    for result in processes.run(large_table, 40_000_000, 16, 8, ranks=2):
        assert result["held"] == 40_000_000 * 16 * 4 // 2
        assert result["grown"] < result["held"] + 100e6
        assert result["touched"] > 0
