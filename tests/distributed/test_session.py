"""One-off choices on several processes: counted in parts, merged once, noised once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.distributed_sessions import top_k
from support.processes import Processes
from torch import nn

from sparsedp.accounting import Ledger
from sparsedp.distributed.session import DistributedSession, check_supported, part_of_rank
from sparsedp.selection import DPSGD
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


def test_parameters_outside_main_memory_are_refused() -> None:
    session = SimpleNamespace(module=nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match="parameter 'weight' is on device meta"):
        DistributedSession._refuse_devices(session)  # type: ignore[arg-type]
