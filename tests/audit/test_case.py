from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from sparsedp.audit.case import Case, Claim, Finding, Kind, run_cases
from sparsedp.randomness import Stream


def randomised_response(epsilon: float) -> object:
    def run(bit: int, stream: Stream, runs: int) -> np.ndarray:
        honest = stream.uniform(runs) < 1 / (1 + math.exp(-epsilon))
        return np.where(honest, bit, 1 - bit).astype(float)

    return run


def case(name: str, epsilon: float, claimed: float = 1.0, *, is_control: bool = False) -> Case:
    return Case(
        name,
        "mechanism",
        lambda: Claim(claimed, 0.0, "the bit"),
        randomised_response(epsilon),
        (1, 0),
        40_000,
        "the bit",
        is_control=is_control,
    )


def test_a_claim_that_holds_stands_and_one_that_does_not_falls() -> None:
    right, wrong, control, missed = run_cases(
        [
            case("right", 1.0),
            case("wrong", 1.5),
            case("a", 1.5, is_control=True),
            case("b", 1.0, is_control=True),
        ],
        error=1e-8,
    )
    assert right.is_expected
    assert not right.is_refuted
    assert right.lower_bound > 0.85
    assert wrong.is_refuted
    assert not wrong.is_expected
    assert control.is_expected
    assert not missed.is_expected
    assert "WHICH IT SHOULD NOT BE" in str(wrong)
    assert "THOUGH IT IS WRONG" in str(missed)
    for finding in (right, wrong, control, missed):
        assert "add-or-remove-one adjacency, unit: example, released: the bit" in str(finding)


@dataclass
class Listed:
    """Notes the confidence and the first draw that it is given."""

    name: str
    kind: Kind = "mechanism"
    is_control: bool = False
    seen: list[tuple[float, float]] = field(default_factory=list)

    def run(self, stream: Stream, confidence: float, effort: float = 1.0) -> Finding:
        self.seen.append((confidence, float(stream.uniform(1)[0])))
        return Finding(self.name, self.kind, False, Claim(1.0, 0.0, "x"), 0.0, confidence, "1", 0.0, "x")


def test_the_error_rate_is_shared_and_no_case_changes_another() -> None:
    first, second = Listed("first"), Listed("second")
    list(run_cases([first, second], seed=3, error=0.02))
    list(run_cases([second], seed=3, error=0.02))
    assert [confidence for confidence, _ in first.seen + second.seen] == [0.99, 0.99, 0.98]
    assert second.seen[0][1] == second.seen[1][1] != first.seen[0][1]


def test_bad_lists_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^cases must have different names"):
        list(run_cases([Listed("a"), Listed("a")]))
    with pytest.raises(ValueError, match=r"^error "):
        list(run_cases([Listed("a")], error=2.0))
