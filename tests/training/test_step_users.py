"""A step whose unit is the user: per-user sums are those of a slow loop, and no user moves a step by more than C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.contract import HAS_TABLE, SELECTIONS
from support.misuse import Trainer
from support.naive import masked_clipped_mean, per_example_gradients
from support.neighbours import Outcome, Setting, distance, rows_of_users
from support.zoo import LENGTH, ROWS, SOUND, WIDTH
from torch import Tensor, nn

import sparsedp as sdp
from sparsedp.clipping import Captured
from sparsedp.rows import Units

USERS = [3, 0, 1, 1, 4, 0, 2, 1, 0, 4, 1, 5, 2, 1]
"""Of each example; user 1 has five, users 3 and 5 have one."""

TABLE = nn.Embedding | nn.EmbeddingBag


def data(seed: int, *, broken: bool = False) -> list[Tensor]:
    """Ids and features; one example is far from the others; a user's gradients may cancel; one may not be finite."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS, (len(USERS), LENGTH), generator=generator)
    features = torch.randn(len(USERS), LENGTH, WIDTH, generator=generator)
    features[0] *= 50
    ids[9], features[9] = ids[4], features[4] * (1 + 1e-6)
    if broken:
        features[6, 0, 0] = float("nan")
    return [ids, features]


@dataclass(frozen=True)
class Case:
    model: str
    selection: str
    batches: tuple[tuple[int, ...], ...]
    user: int
    rows_per_user: int
    average: bool
    physical: int | None
    loss: str
    clip: float
    scale: float
    seed: int
    broken: bool = False

    def setting(self) -> Setting:
        return Setting(
            model=SOUND[self.model],
            data=data(self.seed, broken=self.broken),
            batches=self.batches,
            clip=self.clip,
            users=sdp.UserSampler(
                USERS, rows_per_user=self.rows_per_user, reduction="mean" if self.average else "sum"
            ),
            options={
                "selection": SELECTIONS[self.selection],
                "loss_reduction": self.loss,
                "physical_batch_size": self.physical,
            },
        )

    def run(self, without: int | None = None, like: Outcome | None = None) -> Outcome:
        loop = Trainer(["plain"] * len(self.batches), reduction=self.loss, scale=self.scale)
        outcome = self.setting().run(loop, without=without, like=like)
        assert outcome.error is None, outcome.error
        return outcome


@st.composite
def cases(draw: st.DrawFn) -> Case:
    model = draw(st.sampled_from(sorted(SOUND)))
    rows = draw(st.sampled_from([1, 2, 3, 5, 9]))
    some = st.lists(st.integers(0, 5), max_size=6, unique=True).map(lambda users: tuple(sorted(users)))
    batches = tuple(draw(st.lists(some, min_size=1, max_size=2)))
    return Case(
        model=model,
        selection=draw(st.sampled_from(sorted(SELECTIONS) if model in HAS_TABLE else ["dpsgd"])),
        batches=batches,
        user=draw(st.integers(0, 5)),
        rows_per_user=rows,
        average=draw(st.booleans()),
        physical=draw(st.sampled_from([None, rows, rows + 1, 2 * rows + 1])),
        loss=draw(st.sampled_from(["mean", "sum"])),
        clip=draw(st.sampled_from([0.01, 1.0, 50.0])),
        scale=draw(st.sampled_from([1e-6, 1.0, 100.0, 1e6])),
        seed=draw(st.integers(0, 5)),
        broken=draw(st.booleans()),
    )


def check(case: Case) -> None:
    """The user's rows move together: sum by at most C, map by at most C1."""
    full = case.run()
    without = case.run(without=case.user, like=full)
    for number, sums in full.sums.items():
        moved = distance(sums, without.sums[number]) / case.clip
        assert moved <= 1.0, f"a user moves the sum by {moved} C"
    for number, counts in full.maps.items():
        others = without.maps[number]
        change = [counts.get(row, 0.0) - others.get(row, 0.0) for row in {*counts, *others}]
        tables = {id(m.weight) for m in SOUND[case.model]().modules() if isinstance(m, TABLE)}
        assert math.hypot(*change) <= math.sqrt(len(tables)) + 1e-9
    check_truth(case, full)


def check_truth(case: Case, outcome: Outcome) -> None:
    """A loop over users, by autograd: sum, mask, clip, add up."""
    setting = case.setting()
    torch.manual_seed(0)
    model = setting.model()
    ids, features = setting.data  # type: ignore[misc]
    assert setting.users is not None
    loop = Trainer(["plain"], reduction="sum", scale=case.scale)
    for number, sums in outcome.sums.items():
        rows, units = rows_of_users(setting.users, case.batches[number])

        def loss(module: Any, i: int, rows: Any = rows) -> Tensor:
            at = slice(int(rows[i]), int(rows[i]) + 1)
            return loop.loss(ids[at], features[at], module(ids[at], features[at]))

        each = per_example_gradients(model, loss, len(rows))
        users = [
            summed([each[i] for i in np.flatnonzero(units.of_example == user)], average=case.average)
            for user in range(units.count)
        ]
        expected = masked_clipped_mean(users, outcome.masks.get(number, {}), case.clip, 4.0)
        for name, found in sums.items():
            wanted = 4.0 * expected.get(name, torch.zeros_like(found))
            torch.testing.assert_close(found, wanted.double(), rtol=2e-3, atol=2e-3 * case.clip)


def summed(gradients: Sequence[dict[str, Tensor]], *, average: bool) -> dict[str, Tensor]:
    share = 1 / len(gradients) if average else 1.0
    return {name: share * sum(g[name].double() for g in gradients) for name in gradients[0]}  # type: ignore[misc]


@settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(cases())
def test_the_rows_of_a_user_move_a_step_by_at_most_c_together(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(
    max_examples=1500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(cases())
def test_the_rows_of_a_user_move_a_step_by_at_most_c_together_often(case: Case) -> None:
    check(case)


def case_of(model: str, selection: str, *, physical: int | None = None, **options: Any) -> Case:
    settings = {"user": 1, "rows_per_user": 5, "average": False, "loss": "mean", "clip": 1.0, "scale": 3.0}
    return Case(
        model,
        selection,
        ((0, 1, 2, 3, 4, 5),),
        physical=physical,
        seed=1,
        **settings | options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("model", sorted(SOUND))
def test_every_layer_sums_the_rows_of_a_user_before_it_clips(model: str) -> None:
    check(case_of(model, "dpsgd"))
    check(case_of(model, "dpsgd", physical=6, average=True))


@pytest.mark.parametrize("selection", sorted(SELECTIONS))
def test_every_selection_has_the_user_as_its_unit(selection: str) -> None:
    check(case_of("plain", selection))
    check(case_of("plain", selection, physical=5))


def test_the_ruler_measures_a_clip_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: where each row is clipped by itself, a user of five rows moves the sum by up to five C."""
    case = case_of("linear", "dpsgd", clip=0.001)
    monkeypatch.setattr(Captured, "grouped", lambda self, units: self)
    full = case.run()
    assert distance(full.sums[0], case.run(without=1, like=full).sums[0]) / case.clip > 2.0
    monkeypatch.undo()
    full = case.run()
    assert distance(full.sums[0], case.run(without=1, like=full).sums[0]) / case.clip <= 1.0


def test_a_user_with_a_row_that_is_not_finite_contributes_nothing() -> None:
    case = case_of("linear", "dpsgd", broken=True, user=2, loss="sum")
    full = case.run()
    assert distance(full.sums[0], case.run(without=2).sums[0]) == 0.0


@pytest.mark.parametrize("physical", [None, 5])
def test_a_row_counts_once_for_a_user(physical: int | None) -> None:
    """Also in pieces, where the map is made of the loader's ids."""
    ids = torch.full((len(USERS), LENGTH), 7)
    case = case_of("plain", "adafest", physical=physical)
    setting = case.setting()
    setting.data = [ids, data(0)[1]]
    outcome = setting.run(Trainer(["plain"], reduction="mean"))
    assert outcome.error is None
    assert outcome.maps[0] == {7: pytest.approx(6.0)}


def test_units_must_be_those_of_the_pass() -> None:
    captured = Captured(3, 1.0, {}, {}, {})
    with pytest.raises(ValueError, match="units: of 2 examples, the pass has 3"):
        captured.grouped(Units(np.array([0, 1]), 2))
