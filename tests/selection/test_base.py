"""What every rule shares: the sensitivity of the clipped sum, and the checks."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.batches import GivenBatch

import sparsedp as sdp
from sparsedp.accounting.events import DpEvent, GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import Rule, Selection

SCORED = {"rows": 3, "selection_epsilon": 0.5, "score_cap": 0.1}
ALL: dict[str, Selection] = {
    "dp-sgd": sdp.DPSGD(),
    "lazy": sdp.DPSGD(lazy=True),
    "fest": sdp.FEST({"table": [1, 2]}),
    "fest-lazy": sdp.FEST({"table": [1, 2]}, lazy=True),
    "fest-turns": sdp.FEST({"table": [2, 1]}, update_every={"table": [4, 9]}),
    "adafest": sdp.AdaFEST(),
    "adafest-memory": sdp.AdaFEST(memory_steps=90),
    "adafest+": sdp.AdaFEST(within=sdp.FEST({"table": [1, 2]})),
    "exponential": sdp.ExponentialSelection(**SCORED),
    "sparse-vector": sdp.SparseVectorSelection(**SCORED, threshold=0.01),
    "random": sdp.RandomSelection(rows=3),
}
TABLES = [TableShape("table", 2000, 4)]


def test_one_example_moves_the_sum_by_its_clip() -> None:
    for selection in ALL.values():
        rule = selection.rule(
            selection.partition_tables(TABLES),
            noise_multiplier=1.0,
            max_grad_norm=0.7,
            expected_batch_size=50,
        )
        assert rule.sensitivity == 0.7


@pytest.mark.parametrize(("batch_clip", "expected"), [(0.001, 0.1), (10.0, 0.7)])
def test_the_second_clipping_bounds_it_by_twice_its_own_bound(batch_clip: float, expected: float) -> None:
    """min(clip, 2 batch_clip B): two mean gradients of norm at most the bound may differ by twice of it."""
    selection = sdp.RandomSelection(rows=3, batch_clip=batch_clip)
    rule = selection.rule(
        selection.partition_tables(TABLES), noise_multiplier=1.0, max_grad_norm=0.7, expected_batch_size=50
    )
    assert rule.sensitivity == pytest.approx(expected)


@pytest.mark.parametrize("name", ALL)
def test_what_is_selected_are_sorted_distinct_rows(name: str) -> None:
    selection = ALL[name]
    space = selection.partition_tables(TABLES)
    rule = selection.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
    for _ in range(20):
        rows = rule.select(GivenBatch(space), NoiseSource(3).selection).rows
        assert rows.dtype == np.int64
        assert (np.diff(rows) > 0).all()
        assert not rows.size or (rows[0] >= 0 and rows[-1] < 2000)


def test_rules_that_add_nothing_to_the_noise_cost_one_gaussian() -> None:
    for name in (
        "dp-sgd",
        "lazy",
        "fest",
        "fest-lazy",
        "fest-turns",
        "adafest",
        "adafest-memory",
        "adafest+",
        "random",
    ):
        assert ALL[name].step_event(1.3) == GaussianDpEvent(1.3)
        assert ALL[name].one_off_events() == ()
    for name in ("exponential", "sparse-vector"):
        assert ALL[name].step_event(1.3) != GaussianDpEvent(1.3)


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("dp-sgd", "lazy")])
def test_small_tables_are_always_on(name: str) -> None:
    tables = [*TABLES, TableShape("small", 1000, 2)]
    space = ALL[name].partition_tables(tables)
    assert [table.name for table in space.selectable] == ["table"]
    assert [table.name for table in space.always_on] == ["small"]


def bad_selections() -> list[tuple[str, type[Selection], dict[str, object]]]:
    cases: list[tuple[str, type[Selection], dict[str, object]]] = [
        ("always_on_rows", sdp.AdaFEST, {"always_on_rows": -1}),
        ("always_on_rows", sdp.FEST, {"rows": {}, "always_on_rows": -1}),
        ("always_on_rows", sdp.RandomSelection, {"rows": 3, "always_on_rows": -1}),
        ("memory_steps", sdp.AdaFEST, {"memory_steps": 0}),
        ("memory_steps", sdp.AdaFEST, {"memory_steps": 2.5}),
        ("threshold and false_positives", sdp.AdaFEST, {"threshold": 3.0, "false_positives": 5.0}),
        ("rows or coordinates", sdp.RandomSelection, {}),
        ("rows or coordinates", sdp.RandomSelection, {"rows": 3, "coordinates": 3}),
        ("rows or coordinates", sdp.RandomSelection, {"coordinates": -1}),
        ("rows", sdp.ExponentialSelection, {**SCORED, "rows": 0}),
        ("rows", sdp.SparseVectorSelection, {**SCORED, "rows": 0, "threshold": 0.1}),
        ("threshold", sdp.SparseVectorSelection, {**SCORED, "threshold": math.nan}),
    ]
    for value in (0.0, -1.0, math.nan, math.inf):
        cases += [
            (name, sdp.AdaFEST, {name: value})
            for name in ("noise_ratio", "threshold", "false_positives", "contribution_norm")
        ]
        cases += [
            (name, sdp.ExponentialSelection, {**SCORED, name: value})
            for name in ("selection_epsilon", "score_cap", "batch_clip")
        ]
        cases.append(("batch_clip", sdp.RandomSelection, {"rows": 3, "batch_clip": value}))
    return cases


@pytest.mark.parametrize(("named", "kind", "fields"), bad_selections())
def test_bad_input_is_named(named: str, kind: type[Selection], fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{named} ?"):
        kind(**fields)


def test_nothing_to_choose_in_is_fine() -> None:
    for name in ("adafest", "exponential", "sparse-vector", "random"):
        space = ALL[name].partition_tables([TableShape("small", 10, 2)])
        rule = ALL[name].rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
        assert rule.select(GivenBatch(space), NoiseSource(1).selection).rows.size == 0


def through_a_file(state: dict[str, object]) -> dict[str, object]:
    """As a checkpoint keeps it: readable without unpickling objects."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, object] = torch.load(file, weights_only=True)
    return read


SAVED = {
    **ALL,
    "random coordinates": sdp.RandomSelection(coordinates=5, batch_clip=0.3),
    "other numbers": sdp.AdaFEST(noise_ratio=np.float64(1 / 3), threshold=2.5, contribution_norm=0.1),  # type: ignore[arg-type]
    "rows that cost": sdp.FEST(
        {"table": [5, 1, 5]}, 7, event=PoissonSampledDpEvent(1 / 3, GaussianDpEvent(1 / 7))
    ),
    "rows that cost, within": sdp.AdaFEST(within=sdp.FEST({"table": [2]}, event=GaussianDpEvent(1 / 7))),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_selection_writes_and_reads_all_its_parameters(name: str) -> None:
    selection = SAVED[name]
    state = selection.state_dict()
    read = Selection.from_state_dict(through_a_file(state))
    assert type(read) is type(selection)
    assert read.one_off_events() == selection.one_off_events()
    assert str(read.state_dict()) == str(state)
    space = selection.partition_tables(TABLES)
    rules = [
        s.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10)
        for s in (selection, read)
    ]
    first, second = (rule.select(GivenBatch(space), NoiseSource(3).selection).rows for rule in rules)
    assert np.array_equal(first, second)


def test_the_same_rows_in_another_order_are_the_same_selection() -> None:
    first, second = (sdp.FEST({"table": rows}).state_dict() for rows in ([5, 1, 5], range(1, 6, 4)))
    assert str(first) == str(second)


def test_a_private_top_k_is_compared_but_not_read_back() -> None:
    """What it looks at is private and stays out of the state; what it chose is a selection of its own."""
    top = sdp.FEST.private_top_k({"table": np.arange(2000)}, 5, mu=0.3)
    state = top.state_dict()
    assert {key: value for key, value in state.items() if key != "kind"} == {
        "k": 5, "mu": 0.3, "contribution_norm": None, "always_on_rows": 1000, "lazy": False, "update_every": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match="state it again"):
        Selection.from_state_dict(state)


@dataclass(frozen=True)
class Unbounded(Selection):
    """A selection of a user's own."""

    size: int = 3

    def step_event(self, noise_multiplier: float) -> DpEvent:
        return PoissonSampledDpEvent(0.5, NonPrivateDpEvent())

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        return RowSpace(selectable=tuple(tables))

    def rule(self, space: RowSpace, *, noise_multiplier: float, clip: float, batch: float) -> Rule:
        raise NotImplementedError


class Plain(Unbounded):
    def parameters(self) -> dict[str, object]:
        return {"size": object()}


def test_selections_of_a_user_s_own_are_saved_too_or_refused_by_name() -> None:
    state = Unbounded(7).state_dict()
    assert Selection.from_state_dict(state) == Unbounded(7)
    assert str(state["kind"]).endswith("test_base.Unbounded")
    with pytest.raises(ValueError, match="parameter 'size' cannot be saved"):
        Plain().state_dict()
    with pytest.raises(ValueError, match="unknown kind 'Nowhere'"):
        Selection.from_state_dict({"kind": "Nowhere"})


def test_a_selection_whose_step_nothing_bounds_is_not_private() -> None:
    assert not Unbounded().is_private
    assert all(selection.is_private for selection in SAVED.values())


@pytest.mark.parametrize("name", ALL)
def test_a_rule_says_what_of_a_batch_it_needs(name: str) -> None:
    """A rule that needs the gradients must not choose before the last piece of a batch has come."""
    selection = ALL[name]
    space = selection.partition_tables([TableShape("table", 2000, 2)])
    rule = selection.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8.0)
    needs = {"exponential": "gradients", "sparse-vector": "gradients"}
    assert rule.looks_at == needs.get(name, "ids" if name.startswith("adafest") else "nothing")
    assert Rule.looks_at == "gradients"  # what is safe for a rule that says nothing
