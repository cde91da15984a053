"""The cost model is what a step of real processes sends."""

from __future__ import annotations

import pytest
from support.distributed_jobs import traffic
from support.processes import Processes

from sparsedp.distributed.cost import TableLoad, step_cost


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_and_messages_are_those_that_were_counted(processes: Processes, ranks: int) -> None:
    counted = processes.run(traffic, 10**5, 4096, 16, ranks=ranks)
    touched = sum(each["touched"] for each in counted) / ranks
    surviving = sum(each["surviving"] for each in counted) / ranks
    cost = step_cost([TableLoad(10**5, 16, touched, surviving)], dense=17, ranks=ranks)
    for purpose, expected in cost.sent.items():
        found = sum(each["sent"][purpose] for each in counted) / ranks
        assert found == pytest.approx(expected, rel=0.03, abs=8 * (ranks - 1) * 4), purpose
    assert {each["messages"] for each in counted[1:]} == {cost.messages}
    assert counted[0]["held"] * 16 * 4 == pytest.approx(cost.memory, abs=100)


def test_only_memory_depends_on_the_rows() -> None:
    small, large = (
        step_cost([TableLoad(rows, 64, 1e4, 5e3)], dense=1000, ranks=8) for rows in (10**6, 10**10)
    )
    assert (small.sent, small.messages, small.rounds) == (large.sent, large.messages, large.rounds)
    assert large.memory - 4000 == 10**4 * (small.memory - 4000)


def test_bytes_are_below_three_times_the_payload_where_all_rows_survive() -> None:
    for ranks in (2, 16, 1024):
        cost = step_cost([TableLoad(10**9, 16, 1e6, 1e6)], dense=0, ranks=ranks)
        assert cost.bytes < 3 * 4 * 16 * 1e6


def test_time_adds_up() -> None:
    cost = step_cost([TableLoad(10**6, 16, 1e4, 1e4)], dense=0, ranks=2)
    assert cost.seconds(compute=0.1, bandwidth=1e9, latency=0.02) == pytest.approx(
        0.1 + cost.bytes / 1e9 + 10 * 0.02
    )
