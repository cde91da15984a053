"""What a run is said to cost before it starts is what its ledger then holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import config

from sparsedp.accounting import Ledger
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import Events
from sparsedp.core.steps import steps_in, steps_per_epoch
from sparsedp.runs import ALGORITHMS, RunFolder, train
from sparsedp.runs.cost import run_cost

KINDS = ["lazy", "adafest+", "exponential", "sparse-vector"]


def keys(events: Events) -> list[tuple[str, int]]:
    return sorted((event_key(event), count) for event, count in events)


@pytest.mark.parametrize("algorithm", KINDS)
def test_the_cost_foretold_is_the_cost_charged(algorithm: str, tmp_path: Path) -> None:
    asked = config(algorithm, data="generated:400", expected_batch_size=60, fest_mu=0.2)
    result = train(asked, tmp_path / "run")
    rate = 60 / result.training_rows
    steps = steps_in(asked.epochs, steps_per_epoch(rate))
    assert result.statement is not None
    cost = run_cost(asked, rate, steps, result.statement["delta"])
    assert cost.noise_multiplier == result.noise_multiplier
    assert keys(cost.events) == keys(Ledger.read(RunFolder(tmp_path / "run").ledger).events())
    foretold = cost.statement(result.statement["delta"])
    assert foretold.epsilon == pytest.approx(result.statement["epsilon"])
    assert ("final" in str(foretold)) == ALGORITHMS[algorithm].lazy_noise
