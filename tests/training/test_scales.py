"""The number that reaches a sampler is the number that was accounted: every scale, rate and lattice of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.accounting.events import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SparseVectorDpEvent,
)
from sparsedp.randomness.lattice import lattice_of
from sparsedp.selection import Selection
from sparsedp.training import Private
from sparsedp.training.lazy_table import LazyTable

SIGMA, CLIP, BATCH, EXAMPLES = 0.7, 0.25, 12, 40


LARGE, SMALL, MIDDLE = 300, 7, 50


class ThreeTables(nn.Module):
    """Two large tables and a small one beside a norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Embedding(LARGE, 5, sparse=True)
        self.small = nn.Embedding(SMALL, 3, sparse=True)
        self.middle = nn.Embedding(MIDDLE, 2, sparse=True)
        self.norm = nn.LayerNorm(10)
        self.out = nn.Linear(10, 1)

    def forward(self, ids: Tensor) -> Tensor:
        joined = torch.cat([self.large(ids[:, 0]), self.small(ids[:, 1]), self.middle(ids[:, 2])], dim=1)
        return self.out(self.norm(joined)).squeeze(1)


TABLES = 5 * LARGE + 3 * SMALL + 2 * MIDDLE


DENSE = 10 + 10 + 10 + 1


@dataclass
class Seen:
    """What was handed down, in the order of the calls."""

    order: list[str] = field(default_factory=list)
    calls: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> list[dict[str, Any]]:
        return self.calls.get(name, [])

    def spy(self, monkeypatch: pytest.MonkeyPatch, target: str, *names: str) -> None:
        """Note the arguments of ``target``, those without a name under ``names``."""
        module, _, name = target.rpartition(".")
        own = getattr(__import__(module, fromlist=[name]), name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.order.append(name)
            given = dict(zip(names, args, strict=False)) | kwargs
            self.calls.setdefault(name, []).append(given)
            return own(*args, **kwargs)

        monkeypatch.setattr(target, noted)


def data(examples: int = EXAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack(
        [torch.randint(0, rows, (examples,), generator=generator) for rows in (LARGE, SMALL, MIDDLE)], dim=1
    )
    return TensorDataset(ids, torch.randn(examples, generator=generator))


def trained(
    monkeypatch: pytest.MonkeyPatch, selection: Selection, lr: float = 0.1, **options: Any
) -> tuple[sdp.PrivacyEngine, Private, Seen]:
    """Two steps with every sampler watched."""
    seen = Seen()
    seen.spy(monkeypatch, "sparsedp.training.noise.release_on_lattice", "out", "sums")
    seen.spy(monkeypatch, "sparsedp.training.noise.lattice_of")
    seen.spy(monkeypatch, "sparsedp.training.loader.bernoulli_positions", "stream", "size", "rate")
    seen.spy(
        monkeypatch,
        "sparsedp.selection.adafest.draw_survivors",
        *("ids", "counts", "size", "std", "threshold", "stream"),
    )
    seen.spy(monkeypatch, "sparsedp.selection.fest.top_k_gaussian", "ids", "counts", "size")
    seen.spy(monkeypatch, "sparsedp.selection.exponential.exponential_top_k", "ids", "counts", "size")
    seen.spy(monkeypatch, "sparsedp.selection.sparse_vector.sparse_vector", "ids", "counts", "size")
    torch.manual_seed(0)
    model = ThreeTables()
    engine = sdp.PrivacyEngine(seed=5, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        data_loader=DataLoader(data(), batch_size=BATCH),
        selection=selection,
        **{"noise_multiplier": SIGMA, "max_grad_norm": CLIP} | options,
    )
    charge = private.optimizer._charge

    def noted_charge() -> None:
        seen.order.append("charge")
        charge()

    private.optimizer._charge = noted_charge
    for ids, target in private.data_loader:
        private.optimizer.zero_grad()
        (private.module(ids) - target).square().mean().backward()
        private.optimizer.step()
        if private.optimizer.steps_taken == 2 and not private.optimizer.is_mid_batch:
            break
    return engine, private, seen


def event_of(engine: sdp.PrivacyEngine) -> PoissonSampledDpEvent:
    """The event of the steps, of which two were taken."""
    event, count = engine.events()[-1]
    assert count == 2
    assert isinstance(event, PoissonSampledDpEvent)
    return event


SELECTIONS: dict[str, tuple[Selection, float]] = {
    "dpsgd": (sdp.DPSGD(), CLIP),
    "lazy": (sdp.DPSGD(lazy=True), CLIP),
    "fest": (sdp.FEST({"large": [1, 2, 3], "middle": range(20)}, always_on_rows=10), CLIP),
    "random rows": (sdp.RandomSelection(rows=100, always_on_rows=10), CLIP),
    "random coordinates": (sdp.RandomSelection(coordinates=150, always_on_rows=10), CLIP),
    "second clipping, wide": (sdp.RandomSelection(rows=9, always_on_rows=10, batch_clip=1.0), CLIP),
    "second clipping, narrow": (
        sdp.RandomSelection(rows=9, always_on_rows=10, batch_clip=0.001),
        2 * 0.001 * BATCH,
    ),
    "exponential": (
        sdp.ExponentialSelection(rows=6, selection_epsilon=5.0, score_cap=0.1, always_on_rows=10),
        CLIP,
    ),
    "sparse vector": (
        sdp.SparseVectorSelection(
            rows=6, selection_epsilon=5.0, score_cap=0.1, threshold=0.01, always_on_rows=10
        ),
        CLIP,
    ),
}


def noise_multiplier_in(event: Any) -> float:
    if isinstance(event, ComposedDpEvent):
        return noise_multiplier_in(event.events[-1])
    assert isinstance(event, GaussianDpEvent | BoundedRangeGaussianDpEvent)
    return event.noise_multiplier


@pytest.mark.parametrize("name", SELECTIONS)
def test_the_sums_get_the_noise_of_the_event(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    selection, sensitivity = SELECTIONS[name]
    engine, private, seen = trained(monkeypatch, selection)
    event = event_of(engine)
    assert noise_multiplier_in(event.event) == SIGMA
    std = SIGMA * sensitivity
    lattice = lattice_of(std=std, sensitivity=sensitivity, coordinates=TABLES + DENSE)
    assert seen["release_on_lattice"]
    for call in seen["release_on_lattice"]:
        assert call["std"] == pytest.approx(std, rel=1e-14)
        assert call["lattice"] == lattice
        assert call["divisor"] == BATCH
    for call in seen["lattice_of"]:
        assert (call["sensitivity"], call["coordinates"]) == (pytest.approx(sensitivity), TABLES + DENSE)
        assert call["std"] == pytest.approx(std, rel=1e-14)
    rate = event.sampling_probability
    assert rate == BATCH / EXAMPLES
    assert {(call["size"], call["rate"]) for call in seen["bernoulli_positions"]} == {(EXAMPLES, rate)}
    assert private.optimizer.steps_taken == 2


def test_without_poisson_sampling_nothing_is_amplified(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, seen = trained(monkeypatch, sdp.DPSGD(), poisson=False)
    assert engine.events() == [(GaussianDpEvent(SIGMA), 2)]
    assert not seen["bernoulli_positions"]
    assert {(call["std"], call["divisor"]) for call in seen["release_on_lattice"]} == {(SIGMA * CLIP, BATCH)}


def test_the_map_and_the_gradient_share_the_noise_of_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, private, seen = trained(
        monkeypatch, sdp.AdaFEST(noise_ratio=3.0, threshold=1.5, always_on_rows=10)
    )
    event = event_of(engine)
    assert isinstance(event.event, GaussianDpEvent)
    assert event.sampling_probability == BATCH / EXAMPLES
    contribution_norm = math.sqrt(2)
    (gradient_std,) = {call["std"] for call in seen["release_on_lattice"]}
    maps = seen["draw_survivors"]
    assert len(maps) == 2
    for call in maps:
        assert (call["size"], call["threshold"]) == (LARGE + MIDDLE, 1.5)
        map_multiplier, gradient_multiplier = call["std"] / contribution_norm, gradient_std / CLIP
        assert map_multiplier / gradient_multiplier == pytest.approx(3.0, rel=1e-12)
        spent = map_multiplier**-2 + gradient_multiplier**-2
        assert spent == pytest.approx(event.event.noise_multiplier**-2, rel=1e-12)
        assert call["counts"].sum() == pytest.approx(2 * private.optimizer.diagnostics.batch_size, abs=20)
    lattice = lattice_of(std=gradient_std, sensitivity=CLIP, coordinates=TABLES + DENSE)
    assert {call["lattice"] for call in seen["release_on_lattice"]} == {lattice}


def test_adafest_within_rows_has_the_same_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sdp.FEST({"large": range(100), "middle": range(20)}, always_on_rows=10)
    selection = sdp.AdaFEST(noise_ratio=3.0, false_positives=6, contribution_norm=0.5, within=rows)
    engine, _, seen = trained(monkeypatch, selection)
    event = event_of(engine)
    assert isinstance(event.event, GaussianDpEvent)
    (gradient_std,) = {call["std"] for call in seen["release_on_lattice"]}
    for call in seen["draw_survivors"]:
        assert call["size"] == 120
        spent = (call["std"] / 0.5) ** -2 + (gradient_std / CLIP) ** -2
        assert spent == pytest.approx(event.event.noise_multiplier**-2, rel=1e-12)
        assert call["threshold"] == pytest.approx(1.6448536269514722 * call["std"])  # 6 of 120


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_private_top_k_gets_the_noise_of_its_event(
    monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    choice: Any = sdp.FEST.private_top_k(DataLoader(data(), batch_size=8), 5, mu=0.3, always_on_rows=10)
    selection = sdp.AdaFEST(within=choice) if wrapped else choice
    engine, _, seen = trained(monkeypatch, selection)
    (call,) = seen["top_k_gaussian"]
    once, count = engine.events()[0]
    assert (once, count) == (GaussianDpEvent(1 / 0.3), 1)
    assert call["std"] == pytest.approx(math.sqrt(2) * once.noise_multiplier, rel=1e-12)
    assert (call["size"], call["k"]) == (LARGE + MIDDLE, 5)
    assert call["counts"].sum() == pytest.approx(2 * EXAMPLES)  # nothing clipped, nothing twice


def test_the_exponential_mechanism_gets_the_epsilon_of_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    for score_cap in (0.1, 0.01):
        selection = sdp.ExponentialSelection(
            rows=6, selection_epsilon=2.5, score_cap=score_cap, always_on_rows=10
        )
        engine, _, seen = trained(monkeypatch, selection)
        inner = event_of(engine).event
        assert isinstance(inner, BoundedRangeGaussianDpEvent)
        for call in seen["exponential_top_k"]:
            assert (call["epsilon"], call["k"], call["size"]) == (inner.epsilon, inner.draws, LARGE + MIDDLE)
            assert call["sensitivity"] == min(score_cap, CLIP / BATCH)
            assert 0 < call["counts"].max() <= score_cap


def test_the_sparse_vector_gets_the_scales_of_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    for score_cap in (0.1, 0.01):
        selection = sdp.SparseVectorSelection(
            rows=6, selection_epsilon=2.5, score_cap=score_cap, threshold=0.02, always_on_rows=10
        )
        engine, _, seen = trained(monkeypatch, selection)
        inner = event_of(engine).event
        assert isinstance(inner, ComposedDpEvent)
        search = inner.events[0]
        assert isinstance(search, SparseVectorDpEvent)
        sensitivity = min(score_cap, CLIP / BATCH)
        for call in seen["sparse_vector"]:
            scales = (call["threshold_scale"] / sensitivity, call["query_scale"] / sensitivity)
            assert scales == pytest.approx((2 / 2.5, 4 / 2.5), rel=1e-12)
            assert scales == pytest.approx((search.threshold_scale, search.query_scale), rel=1e-12)
            assert call["positives"] == search.positives
            assert (call["threshold"], call["size"]) == (0.02, LARGE + MIDDLE)
            assert 0 < call["counts"].max() <= score_cap


def test_lazy_debts_get_the_noise_of_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    owed: list[tuple[float, float]] = []
    own = LazyTable.step

    def noted(self: LazyTable, lr: float, std: float, gradient: Any) -> None:
        owed.append((lr, std))
        own(self, lr, std, gradient)

    monkeypatch.setattr(LazyTable, "step", noted)
    engine, _, _ = trained(monkeypatch, sdp.DPSGD(lazy=True), lr=0.3)
    multiplier = noise_multiplier_in(event_of(engine).event)
    assert owed == [(0.3, pytest.approx(multiplier * CLIP / BATCH, rel=1e-14))] * 6


@pytest.mark.parametrize("name", [*SELECTIONS, "adafest"])
def test_every_coordinate_of_the_gradient_went_through_the_sampler(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Sizes of what was noised against what is released; touched rows of whole tables are drawn twice."""
    selection = SELECTIONS[name][0] if name in SELECTIONS else sdp.AdaFEST(always_on_rows=10)
    _, private, seen = trained(monkeypatch, selection)
    calls = seen["release_on_lattice"][len(seen["release_on_lattice"]) // 2 :]
    last = private.optimizer.last_step
    assert last is not None
    assert last.dense_size == DENSE
    assert last.table_coordinates == TABLES
    flat = calls[0]["out"].size
    whole = [call["out"].size for call in calls if call.get("sums") is None]
    rows = last.rows_per_table
    expected_whole = {"dpsgd": [5 * LARGE, 3 * SMALL, 2 * MIDDLE], "lazy": []}.get(name, [3 * SMALL])
    assert sorted(whole) == sorted(expected_whole)
    selected = 0 if name in ("dpsgd", "lazy") else 5 * rows["large"] + 2 * rows["middle"]
    assert flat == DENSE + selected
    if name != "random coordinates":
        assert last.gradient_size == 5 * rows["large"] + 3 * rows["small"] + 2 * rows["middle"]


@pytest.mark.parametrize("physical", [None, 2])
@pytest.mark.parametrize("name", [*SELECTIONS, "adafest"])
def test_a_step_is_charged_once_and_before_any_noise(
    monkeypatch: pytest.MonkeyPatch, name: str, physical: int | None
) -> None:
    selection = SELECTIONS[name][0] if name in SELECTIONS else sdp.AdaFEST(always_on_rows=10)
    _, _, seen = trained(monkeypatch, selection, physical_batch_size=physical)
    order = [each for each in seen.order if each not in ("bernoulli_positions", "lattice_of")]
    steps = [place for place, each in enumerate(order) if each == "charge"]
    assert len(steps) == 2
    assert steps[0] == 0
    assert order[steps[1] - 1] == order[-1] == "release_on_lattice"
    choices = [order[first:end].count("draw_survivors") for first, end in ((0, steps[1]), (steps[1], None))]
    assert choices == [name == "adafest"] * 2
