from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch.distributed as dist
from support.distributed_exchange import counted, disagreeing, exchanged, failing_alone, out_of_step, refused
from support.processes import Processes

from sparsedp.accounting import BudgetExceeded
from sparsedp.distributed import Exchange
from sparsedp.distributed.exchange import HEAD


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_arrays_of_any_type_and_size_reach_their_rank(processes: Processes, ranks: int) -> None:
    for rank, received in enumerate(processes.run(exchanged, ranks=ranks)):
        for sender, arrays in enumerate(received):
            assert [array.dtype for array in arrays] == [np.uint8, np.int64, np.float32]
            assert arrays[0].tolist() == [sender] * (5 * sender + rank)
            assert arrays[1].tolist() == [rank]
            assert arrays[2].tolist() == []


def test_bytes_to_others_are_counted(processes: Processes) -> None:
    for rank, (sent, messages) in enumerate(processes.run(counted, ranks=4)):
        assert sent == {"test": 3 * 80 + 3 * HEAD}  # ten numbers of 8 bytes, and what announces them
        assert messages == {"test": 6}
        assert rank < 4


def test_what_rank_0_refuses_is_refused_everywhere(processes: Processes) -> None:
    for rank, (kind, text) in enumerate(processes.run(refused, ranks=2)):
        assert kind is BudgetExceeded
        assert text == ("no more" if rank == 0 else "rank 0: no more")


def test_nothing_is_taken_for_something_else(processes: Processes) -> None:
    """Messages of equal size and type, of different purpose."""
    first, second = processes.run(out_of_step, ranks=2)
    for told in second:
        assert told.startswith("rank 1 exchanges 'charge', and rank 0 something else")
    assert first[0].startswith("rank 0 exchanges 'checkpoint 0', and rank 1 something else")


def test_what_fails_in_one_process_is_raised_in_all(processes: Processes) -> None:
    assert processes.run(failing_alone, ranks=3) == [
        "rank 1: no examples",
        "no examples",
        "rank 1: no examples",
    ]


def test_settings_that_differ_are_named(processes: Processes) -> None:
    for text in processes.run(disagreeing, ranks=2):
        assert text == "rate: must be the same in all processes, got ['0', '1'] on ranks 0, 1, ..."


def test_a_group_that_is_not_in_main_memory_is_refused() -> None:
    with (
        mock.patch.object(dist, "is_initialized", return_value=True),
        mock.patch.object(dist, "get_rank", return_value=0),
        mock.patch.object(dist, "get_backend_config", return_value="cuda:nccl"),
        pytest.raises(ValueError, match="group: must exchange tensors in main memory"),
    ):
        Exchange()


def test_without_processes_the_advice_is_torchrun() -> None:
    with pytest.raises(RuntimeError, match="torchrun"):
        Exchange()
