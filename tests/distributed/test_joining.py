from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from sparsedp.distributed import PeerLost
from sparsedp.distributed.joining import meet


def together(store: dist.Store, ranks: list[int], size: int) -> list[str]:
    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(lambda rank: meet(store, rank, size, 10.0), ranks)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_get_one_name_and_another_after_every_restart(size: int) -> None:
    store = dist.HashStore()
    names = [set(together(store, [*reversed(range(size))], size)) for _ in range(3)]
    assert [len(name) for name in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3


def test_a_process_that_ended_while_joining_is_not_waited_for() -> None:
    """It left a number; the process that takes its rank leaves another."""
    store = dist.HashStore()
    with pytest.raises(PeerLost, match="rank 0 did not answer"):
        meet(store, 1, 2, 0.05)
    assert len(set(together(store, [0, 1], 2))) == 1


def test_a_missing_process_is_named() -> None:
    with pytest.raises(PeerLost, match=r"ranks \[1, 2\] did not join"):
        meet(dist.HashStore(), 0, 3, 0.05)
