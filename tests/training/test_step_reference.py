"""Whole training steps against a slow reference that follows the specification line by line.

The reference knows the data of a batch, the rows that were selected and the integers that were drawn as noise;
it computes everything else by itself, one example at a time: counts, scores, masks, norms, clipping, both sums,
the lattice, the noise's standard deviation, the division by B and the update.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.naive import per_example_gradients
from support.spies import spy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.selection import Selected, Selection, adafest, exponential, sparse_vector
from sparsedp.training import RowWiseAdagrad
from sparsedp.training import noise as noise_module
from sparsedp.training.batch import CLIP_SLACK, clip_share
from sparsedp.training.lazy_table import LazyTable
from sparsedp.training.loader import FixedLoader, PoissonLoader

SIGMA, CLIP, BATCH, EXAMPLES, LR = 0.9, 0.1, 9.5, 25, 0.5
F64 = NDArray[np.float64]


class Model(nn.Module):
    """Two large tables, one read several times an example, a small one and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 3, sparse=True, padding_idx=0)
        self.small = nn.Embedding(6, 2, sparse=True)
        self.bags = nn.EmbeddingBag(40, 2, mode="mean", sparse=True)
        self.norm = nn.LayerNorm(7)
        self.out = nn.Linear(7, 1)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        joined = [self.words(ids[:, :3]).sum(1), self.small(ids[:, 3]), self.bags(ids[:, 4:])]
        return self.out(self.norm(torch.cat(joined, 1)) * features).squeeze(1)


TABLES = {"words": (50, 3), "bags": (40, 2), "small": (6, 2)}
"""In the order of the joint numbering: selectable ones first, in the order of the model."""
DENSE = ("norm.weight", "norm.bias", "out.weight", "out.bias")
COORDINATES = 50 * 3 + 6 * 2 + 40 * 2 + 7 + 7 + 7 + 1


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    columns = [torch.randint(0, high, (EXAMPLES,), generator=generator) for high in (50, 50, 50, 6, 40, 40)]
    ids = torch.stack(columns, 1)
    ids[:, 1] = torch.where(torch.arange(EXAMPLES) % 3 == 0, ids[:, 0], ids[:, 1])  # repeats
    features = torch.randn(EXAMPLES, 7, generator=generator)
    features[3] *= 1000
    features[4] *= 1e-3
    features[5, 0] = float("nan")
    return TensorDataset(ids, features)


class Reference:
    """One step, the slow way."""

    def __init__(self, model: nn.Module, ids: Tensor, features: Tensor, weight: float) -> None:
        def loss(module: nn.Module, i: int) -> Tensor:
            return weight * module(ids[i : i + 1], features[i : i + 1]).square().sum()

        found = per_example_gradients(model, loss, len(ids))
        self.gradients = [
            {
                name.removesuffix(".weight")
                if "." in name and name.split(".")[0] in TABLES
                else name: g.double().numpy()
                for name, g in each.items()
            }
            for each in found
        ]
        self.finite = [all(np.isfinite(g).all() for g in each.values()) for each in self.gradients]
        self.reads = [
            {"words": set(row[:3].tolist()) - {0}, "small": {int(row[3])}, "bags": set(row[4:].tolist())}
            for row in ids
        ]

    def examples(self) -> Iterator[tuple[dict[str, F64], dict[str, set[int]]]]:
        for gradient, reads, finite in zip(self.gradients, self.reads, self.finite, strict=True):
            if finite:
                yield gradient, reads

    def counts(
        self, norm: float, domain: dict[str, set[int]], *, everybody: bool
    ) -> dict[tuple[str, int], float]:
        total: dict[tuple[str, int], float] = {}
        for reads in self.reads if everybody else [reads for _, reads in self.examples()]:
            rows = [(name, row) for name in domain for row in reads[name] & domain[name]]
            for row in rows:
                total[row] = total.get(row, 0.0) + min(1.0, norm / math.sqrt(len(rows)))
        return total

    def sums(self, masks: dict[str, F64]) -> dict[str, F64]:
        total = {name: np.zeros_like(g) for name, g in self.gradients[0].items()} if self.gradients else {}
        for gradient, _ in self.examples():
            kept = {name: g * masks[name] if name in masks else g for name, g in gradient.items()}
            length = math.sqrt(sum(float((g**2).sum()) for g in kept.values()))
            share = min(1.0, CLIP * clip_share(BATCH) / max(length, 1e-300))
            for name, g in kept.items():
                total[name] += share * g
        return total

    def clipped(self, masks: dict[str, F64]) -> int:
        """How many examples are longer than the bound."""
        return sum(
            sum(float(((g * masks[name] if name in masks else g) ** 2).sum()) for name, g in gradient.items())
            > (CLIP * clip_share(BATCH)) ** 2
            for gradient, _ in self.examples()
        )

    def touched(self, name: str) -> list[int]:
        return sorted({row for _, reads in self.examples() for row in reads[name]})


def lattice(std: float, sensitivity: float) -> float:
    return 2.0 ** math.floor(math.log2(min(2.0**-11 * sensitivity / math.sqrt(COORDINATES), std / 2.0**22)))


class Noise:
    """In place of the sampler: integers of a generator of our own, kept."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, out: Any, sums: Any, **options: Any) -> None:
        cells = np.rint(self.rng.standard_normal(out.size) * options["std"] / options["lattice"])
        rounded = 0.0 if sums is None else np.rint(sums / options["lattice"])
        out[...] = (options["lattice"] * (rounded + cells) / options["divisor"]).astype(np.float32)
        noise = cells * options["lattice"]
        self.calls.append({**options, "sums": None if sums is None else sums.copy(), "noise": noise})


ALL_ROWS = {"words": set(range(50)), "bags": set(range(40))}
WITHIN = {"words": set(range(0, 50, 2)), "bags": set(range(30))}
FEST = sdp.FEST({name: sorted(rows) for name, rows in WITHIN.items()}, always_on_rows=10)
SCORED: dict[str, Any] = {"rows": 8, "selection_epsilon": 4.0, "score_cap": 0.02, "always_on_rows": 10}
COORDINATE_WISE = SCORED | {"rows": None, "coordinates": 20}
SELECTIONS: dict[str, Selection] = {
    "dpsgd": sdp.DPSGD(),
    "lazy": sdp.DPSGD(lazy=True),
    "fest": FEST,
    "fest, lazy": replace(FEST, lazy=True),
    "adafest": sdp.AdaFEST(noise_ratio=2.0, threshold=1.0, always_on_rows=10),
    "adafest, clipped map": sdp.AdaFEST(contribution_norm=0.8, false_positives=4, always_on_rows=10),
    "adafest+": sdp.AdaFEST(noise_ratio=3.0, false_positives=4, always_on_rows=10, within=FEST),
    "random rows": sdp.RandomSelection(rows=30, always_on_rows=10),
    "random coordinates": sdp.RandomSelection(coordinates=90, always_on_rows=10),
    "coordinates, clipped twice": sdp.RandomSelection(coordinates=90, batch_clip=0.003, always_on_rows=10),
    "rows, clipped twice": sdp.RandomSelection(rows=60, batch_clip=0.003, always_on_rows=10),
    "clipped twice, in vain": sdp.RandomSelection(rows=60, batch_clip=10.0, always_on_rows=10),
    "exponential": sdp.ExponentialSelection(**SCORED),
    "exponential, clipped twice": sdp.ExponentialSelection(**SCORED, batch_clip=0.003),
    "exponential coordinates": sdp.ExponentialSelection(**COORDINATE_WISE, batch_clip=0.003),
    "sparse vector coordinates": sdp.SparseVectorSelection(**COORDINATE_WISE, threshold=0.002),
    "sparse vector": sdp.SparseVectorSelection(**SCORED, threshold=0.005),
}
OPTIMIZERS: dict[str, Callable[[Any], list[torch.optim.Optimizer]]] = {
    "sgd": lambda m: [torch.optim.SGD(m.parameters(), lr=LR)],
    "adagrad": lambda m: [torch.optim.Adagrad(m.parameters(), lr=LR)],
    "two": lambda m: [
        torch.optim.Adam([*m.norm.parameters(), *m.out.parameters()], lr=LR),
        RowWiseAdagrad([m.words.weight, m.small.weight, m.bags.weight], lr=LR),
    ],
}


def masks_of(selected: Selected, everything: bool) -> dict[str, F64]:
    """What is left of each large table."""
    if everything:
        return {}
    masks, row_base, coordinate_base = {}, 0, 0
    for name in ("words", "bags"):
        rows, dim = TABLES[name]
        mask = np.zeros((rows, dim))
        if selected.coordinates is None:
            own = selected.rows[(selected.rows >= row_base) & (selected.rows < row_base + rows)]
            mask[own - row_base] = 1.0
        else:
            own = selected.coordinates - coordinate_base
            mask.reshape(-1)[own[(own >= 0) & (own < rows * dim)]] = 1.0
        masks[name] = mask
        row_base, coordinate_base = row_base + rows, coordinate_base + rows * dim
    return masks


def expected_step(
    reference: Reference, selection: Selection, selected: Selected, calls: list[dict[str, Any]]
) -> tuple[dict[str, F64], int]:
    """The gradient of the step with the noise of ``calls``, and how many of the calls it used."""
    dense_rows = isinstance(selection, sdp.DPSGD)
    masks = masks_of(selected, dense_rows)
    sums = reference.sums(masks)
    sensitivity = CLIP
    if selection.batch_clip is not None:
        sensitivity = min(CLIP, 2 * selection.batch_clip * BATCH)
        length = math.sqrt(sum(float((g**2).sum()) for g in sums.values()))
        for g in sums.values():
            g *= min(1.0, selection.batch_clip * BATCH * CLIP_SLACK / max(length, 1e-300))
    ratio = math.sqrt(1 + selection.noise_ratio**-2) if isinstance(selection, sdp.AdaFEST) else 1.0
    std = SIGMA * ratio * sensitivity
    for call in calls:
        assert call["std"] == pytest.approx(std, rel=1e-12)
        assert (call["divisor"], call["lattice"]) == (BATCH, lattice(std, sensitivity))
    noise = calls[0]["noise"]
    found, at = {}, 0
    for name in DENSE:
        size = sums[name].size
        found[name] = (sums[name] + noise[at : at + size].reshape(sums[name].shape)) / BATCH
        at += size
    used = 1
    for name in TABLES:
        rows, dim = TABLES[name]
        if name != "small" and not dense_rows and not selection.lazy:
            chosen = np.flatnonzero(masks[name].any(axis=1)) if selected.coordinates is not None else None
            chosen = np.flatnonzero(masks[name][:, 0]) if chosen is None else chosen
            drawn = np.zeros((rows, dim))
            drawn[chosen] = noise[at : at + chosen.size * dim].reshape(-1, dim)
            at += chosen.size * dim
            found[name] = (sums[name] + drawn) * masks[name] / BATCH
    assert at == noise.size
    lazy_order = ("words", "bags", "small") if selection.lazy else ("small",)
    for name in ("words", "small", "bags") if dense_rows else lazy_order:
        rows, dim = TABLES[name]
        touched = touched_rows(reference, name, masks)
        drawn = np.zeros((rows, dim))
        if not selection.lazy:
            drawn[...] = calls[used]["noise"].reshape(rows, dim)
            assert calls[used]["sums"] is None
            used += 1
        if touched:
            drawn[touched] = calls[used]["noise"].reshape(-1, dim)
            used += 1
        elif selection.lazy:
            used += 1
        found[name] = (sums[name] + drawn) / BATCH
    return found, used


def touched_rows(reference: Reference, name: str, masks: dict[str, F64]) -> list[int]:
    """The touched rows of a table that are selected."""
    return [row for row in reference.touched(name) if name not in masks or masks[name][row].any()]


@pytest.mark.parametrize("how", ["whole", "pieces", "pairs of pieces", "sum", "fixed"])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_run_is_what_the_specification_says(monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> None:
    check_run(monkeypatch, name, how, "sgd")


@pytest.mark.parametrize("optimizer", ["adagrad", "two"])
@pytest.mark.parametrize("name", ["dpsgd", "adafest", "fest"])
def test_other_optimisers(monkeypatch: pytest.MonkeyPatch, name: str, optimizer: str) -> None:
    check_run(monkeypatch, name, "whole", optimizer)


def check_run(monkeypatch: pytest.MonkeyPatch, name: str, how: str, optimizer: str) -> None:
    selection = SELECTIONS[name]
    noise = Noise()
    monkeypatch.setattr(noise_module, "release_on_lattice", noise)
    lazy_steps = spy(monkeypatch, LazyTable, "step")
    maps = spy(monkeypatch, adafest, "draw_survivors")
    draws = spy(monkeypatch, exponential, "exponential_top_k")
    searches = spy(monkeypatch, sparse_vector, "sparse_vector")
    torch.manual_seed(1)
    model, engine = Model(), sdp.PrivacyEngine(seed=2, secure=False)
    reduction = "sum" if how == "sum" else "mean"
    private = engine.make_private(
        module=model,
        optimizer=OPTIMIZERS[optimizer](model),
        data_loader=DataLoader(data(), batch_size=10),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
        selection=selection,
        loss_reduction=reduction,  # type: ignore[arg-type]
        poisson=how != "fixed",
        physical_batch_size={"pieces": 4, "pairs of pieces": 2}.get(how),
    )
    twin = copy.deepcopy(model)
    own = OPTIMIZERS[optimizer](twin)
    chosen: list[Selected] = []
    if not isinstance(selection, sdp.DPSGD):
        engine.session.choose_once()
        kind = type(engine.session.rule())
        select = kind.select
        monkeypatch.setattr(kind, "select", lambda *args: chosen.append(select(*args)) or chosen[-1])
    ids, features = data().tensors
    steps = pieces = 0
    if how == "fixed":
        assert isinstance(private.data_loader, FixedLoader)
        batches = [range(0, 10), range(10, 20), range(20, 25)]
    else:
        assert isinstance(private.data_loader, PoissonLoader)
        batches = [private.data_loader.indices(step) for step in range(3)]  # type: ignore[misc]
    for each, batch_features in private.data_loader:
        pieces += 1
        losses = private.module(each, batch_features).square()
        (losses.mean() if reduction == "mean" else losses.sum()).backward()
        is_last = engine.session.optimizer._owner.is_complete
        if how == "pairs of pieces" and pieces % 2 and not is_last:
            continue
        private.optimizer.step()
        if private.optimizer.is_mid_batch:
            assert not noise.calls
            continue
        assert is_last
        pieces = 0
        rows = torch.tensor(list(batches[steps]), dtype=torch.int64)
        reference = Reference(twin, ids[rows], features[rows], 1.0)
        selected = chosen[-1] if chosen else Selected(np.empty(0, np.int64))
        expected, used = expected_step(reference, selection, selected, noise.calls)
        assert used == len(noise.calls)
        check_choice(reference, selection, maps, draws, searches, by_ids="pieces" in how and len(rows) > 4)
        check_diagnostics(
            reference, masks_of(selected, isinstance(selection, sdp.DPSGD)), private.optimizer.diagnostics
        )
        parameters = dict(model.named_parameters())
        if selection.lazy:
            masks = masks_of(selected, isinstance(selection, sdp.DPSGD))
            check_lazy(reference, expected, lazy_steps, masks)
        else:
            for key, g in expected.items():
                grad = parameters[f"{key}.weight" if key in TABLES else key].grad
                assert grad is not None
                found = grad.to_dense() if grad.is_sparse else grad
                np.testing.assert_allclose(found.double().numpy(), g, rtol=1e-4, atol=2e-5 * CLIP)
        if not selection.lazy:
            for key, parameter in twin.named_parameters():
                g = parameters[key].grad
                assert g is not None
                parameter.grad = g.to_dense() if g.is_sparse and optimizer != "two" else g.clone()
            for each_own in own:
                each_own.step()
            for key, parameter in twin.named_parameters():
                assert torch.allclose(parameter, parameters[key], rtol=1e-5, atol=1e-6), key
        twin.load_state_dict({key: value.clone() for key, value in model.state_dict().items()})
        steps += 1
        assert engine.events()[-1][1] == private.optimizer.steps_taken == steps
        for record in (noise.calls, lazy_steps, maps, draws, searches):
            record.clear()
    assert steps == 3


def check_choice(
    reference: Reference,
    selection: Selection,
    maps: list[Any],
    draws: list[Any],
    searches: list[Any],
    *,
    by_ids: bool,
) -> None:
    """What a rule chose by: the contribution map, or the scores.

    A map that is made before the gradients are known counts the ids of every example.
    """
    if isinstance(selection, sdp.AdaFEST):
        (call,) = maps
        domain = ALL_ROWS if selection.within is None else WITHIN
        numbers = [("words", row) for row in sorted(domain["words"])]
        numbers += [("bags", row) for row in sorted(domain["bags"])]
        norm = selection.contribution_norm or math.sqrt(2)
        counts = reference.counts(norm, domain, everybody=by_ids)
        found = {numbers[n]: c for n, c in zip(call["touched"], call["counts"], strict=True) if c}
        assert found == pytest.approx(counts)
        return
    if not (draws or searches):
        return
    (call,) = draws or searches
    sums = reference.sums({})
    values = call["scores"] if "scores" in call else call["values"]
    if getattr(selection, "coordinates", None) is not None:
        first = {"words": 0, "bags": 50 * 3}
        expected = {
            first[name] + row * dim + n: min(abs(float(sums[name][row][n])) / BATCH, SCORED["score_cap"])
            for name, dim in (("words", 3), ("bags", 2))
            for row in reference.touched(name)
            for n in range(dim)
        }
        by_id = dict(zip(call["ids"].tolist(), values.tolist(), strict=True))
        assert by_id == pytest.approx(expected, rel=1e-4, abs=1e-8)
        return
    scores = {
        (name, row): min(float(np.linalg.norm(sums[name][row])) / BATCH, SCORED["score_cap"])
        for name in ("words", "bags")
        for row in reference.touched(name)
    }
    found = {
        ("words", int(n)) if n < 50 else ("bags", int(n) - 50): float(v)
        for n, v in zip(call["ids"], values, strict=True)
    }
    assert found == pytest.approx(scores, rel=1e-4, abs=1e-8)


def check_diagnostics(reference: Reference, masks: dict[str, F64], found: Any) -> None:
    """Counts of examples: all, those that were clipped, those that were not finite."""
    examples = len(reference.gradients)
    assert (found.batch_size, found.non_finite_examples) == (examples, examples - sum(reference.finite))
    assert found.clipped_fraction == pytest.approx(reference.clipped(masks) / max(examples, 1))


def check_lazy(
    reference: Reference, expected: dict[str, F64], steps: list[dict[str, Any]], masks: dict[str, F64]
) -> None:
    """What each table was told to do."""
    assert [call["self"].name for call in steps] == ["words", "small", "bags"]
    for call in steps:
        assert call["lr"] == LR
        assert call["std"] == pytest.approx(SIGMA * CLIP / BATCH, rel=1e-12)
        name, gradient = call["self"].name, call["gradient"]
        assert gradient.ids.tolist() == touched_rows(reference, name, masks)
        due = expected[name][gradient.ids.numpy()]
        np.testing.assert_allclose(gradient.values.double().numpy(), due, rtol=1e-4, atol=2e-5 * CLIP)
