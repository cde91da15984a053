"""The audit's positive control: noise on touched rows only is refuted, whatever epsilon is claimed."""

from __future__ import annotations

import math

import pytest
import torch
from support.batches import NOBODY, GivenBatch, counts_of, one_table
from support.models import TwoTables
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting.events import NonPrivateDpEvent
from sparsedp.audit import EANA, AuditResult, audit, repeated
from sparsedp.core.counts import SparseCounts
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.selection import Selection

SPACE = one_table(2000)
CANARY = counts_of(r7=1.0)
SIGMA = 2.0


def audited(selection: Selection, claimed: float, delta: float) -> AuditResult:
    """Does row 7 survive? One canary touches it, or nobody does. Errs with probability 1e-9."""
    rule = selection.rule(SPACE, noise_multiplier=SIGMA, max_grad_norm=1.0, expected_batch_size=1.0)

    def survives(counts: SparseCounts, stream: Stream) -> float:
        return float(7 in rule.select(GivenBatch(SPACE, counts), stream).rows)

    return audit(
        repeated(survives),
        (CANARY, NOBODY),
        runs=2000,
        delta=delta,
        claimed=claimed,
        stream=NoiseSource(1).selection,
    )


def test_eana_is_refuted() -> None:
    """At delta 0.2 and any epsilon that the gradient's noise could justify."""
    result = audited(EANA(), claimed=3.0, delta=0.2)
    assert result.refuted
    assert result.hits[0] == result.runs
    assert result.hits[1] == 0


def test_the_same_audit_does_not_refute_adafest() -> None:
    """The same pair and delta: noise on the map keeps the bit's odds within e of each other."""
    result = audited(sdp.AdaFEST(threshold=1.0), claimed=1.0, delta=0.2)
    assert not result.refuted


def test_eana_claims_nothing() -> None:
    assert EANA().step_event(100.0) == NonPrivateDpEvent()
    assert EANA().partition_tables(SPACE.tables) == SPACE
    assert not EANA().is_private


@pytest.mark.parametrize("steps", [0, 4])
def test_a_run_with_eana_is_never_called_private(steps: int) -> None:
    """Before its first step as well, when no epsilon has been spent that could give it away."""
    model = TwoTables()
    engine = sdp.PrivacyEngine()
    data = TensorDataset(torch.zeros(40, 2).long(), torch.zeros(40))
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=10),
        noise_multiplier=10.0,
        max_grad_norm=1.0,
        selection=EANA(),
    )
    for ids, _ in private.data_loader if steps else ():
        private.optimizer.zero_grad()
        private.module(ids).sum().backward()
        private.optimizer.step()
    statement = engine.statement(1e-5)
    assert not statement.private
    assert "EANA is not private" in str(statement)
    assert statement.epsilon == (math.inf if steps else 0.0)
    engine.detach()
    assert not engine.statement(1e-5).private
