"""The private step against the textbook: exact without noise, the same distribution with it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.batches import Directions
from support.models import MultiHot, TwoTables
from support.naive import masked_clipped_mean, per_example_gradients
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private
from sparsedp.training.batch import CLIP_SLACK, clip_share

RULES = {
    "dpsgd": lambda: sdp.DPSGD(),
    "fest": lambda: sdp.FEST({"large": [1, 2, 3, 50, 299]}, always_on_rows=10),
    "adafest": lambda: sdp.AdaFEST(threshold=2.0, always_on_rows=10),
    "adafest, all tables chosen in": lambda: sdp.AdaFEST(threshold=1.0, always_on_rows=0),
    "adafest+": lambda: sdp.AdaFEST(threshold=1.0, within=sdp.FEST({"large": range(20)}, always_on_rows=10)),
    "exponential": lambda: sdp.ExponentialSelection(
        rows=6, selection_epsilon=5.0, score_cap=0.1, always_on_rows=10
    ),
    "sparse vector": lambda: sdp.SparseVectorSelection(
        rows=6, selection_epsilon=5.0, score_cap=0.1, threshold=0.01, always_on_rows=10
    ),
    "random rows": lambda: sdp.RandomSelection(rows=100, always_on_rows=10),
}


def make(
    model: nn.Module, data: TensorDataset, selection: sdp.selection.Selection, **options: object
) -> tuple[sdp.PrivacyEngine, Private]:
    """Everything sampled, so that the batch is the data."""
    engine = sdp.PrivacyEngine(seed=3, secure=False)
    settings_: dict = {
        "noise_multiplier": 0.0,
        "max_grad_norm": 0.3,
        "expected_batch_size": len(data),
    } | options
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=len(data)),
        selection=selection,
        **settings_,
    )
    return engine, private


def step(private: Private, reduction: str = "mean") -> None:
    for *features, label in private.data_loader:
        private.optimizer.zero_grad()
        bce(private.module(*features), label, reduction=reduction).backward()
        private.optimizer.step()


def survivors(model: nn.Module) -> dict[str, Tensor]:
    """Which rows got a gradient, from what the step left on ``.grad``."""
    masks = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            mask = torch.zeros(parameter.shape[0])
            mask[parameter.grad.indices()[0]] = 1.0
            masks[name] = mask
    return masks


def dense_grads(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: p.grad.to_dense() if p.grad.is_sparse else p.grad  # type: ignore[union-attr]
        for name, p in model.named_parameters()
    }


def assert_same(model: nn.Module, expected: dict[str, Tensor]) -> None:
    found = dense_grads(model)
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-5 * scale, msg=name)


def clicks(examples: int, seed: int = 0, rows: int = 300) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    large = (rows * torch.rand(examples, generator=generator) ** 3).long()
    ids = torch.stack([large, torch.randint(0, 7, (examples,), generator=generator)], dim=1)
    return TensorDataset(ids, torch.randint(0, 2, (examples,), generator=generator).float())


@pytest.mark.parametrize("pieces", [None, 5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_without_noise_is_the_textbook_one(
    rule: str, reduction: str, pieces: int | None
) -> None:
    torch.manual_seed(0)
    model, data = TwoTables(), clicks(64)
    reference = copy.deepcopy(model)
    _, private = make(model, data, RULES[rule](), loss_reduction=reduction, physical_batch_size=pieces)
    step(private, reduction)
    ids, labels = data.tensors
    gradients = per_example_gradients(
        reference, lambda m, i: bce(m(ids[i : i + 1]), labels[i : i + 1], reduction="sum"), len(ids)
    )
    assert_same(model, masked_clipped_mean(gradients, survivors(model), 0.3, 64))


@settings(max_examples=25, deadline=None)
@given(
    examples=st.integers(1, 12),
    words=st.integers(1, 6),
    tags=st.integers(1, 4),
    physical=st.none() | st.integers(1, 5),
    seed=st.integers(0, 2**20),
)
def test_repeats_padding_bags_and_micro_batches(
    examples: int, words: int, tags: int, physical: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    data = TensorDataset(
        torch.randint(0, 6, (examples, words), generator=generator),
        torch.randint(0, 4, (examples, tags), generator=generator),
        torch.randint(0, 2, (examples,), generator=generator).float(),
    )
    model = MultiHot()
    reference = copy.deepcopy(model)
    selection = sdp.AdaFEST(threshold=1.5, always_on_rows=0, contribution_norm=1.2)
    _, private = make(model, data, selection, physical_batch_size=physical)
    step(private)
    w, t, y = data.tensors
    gradients = per_example_gradients(
        reference, lambda m, i: bce(m(w[i : i + 1], t[i : i + 1]), y[i : i + 1]), examples
    )
    assert_same(model, masked_clipped_mean(gradients, survivors(model), 0.3, examples))
    assert_surviving_rows(model, w, t, threshold=1.5, norm=1.2)


def assert_surviving_rows(
    model: MultiHot, words: Tensor, tags: Tensor, threshold: float, norm: float
) -> None:
    """Contributions are binary per row, joint over both tables, clipped per example."""
    counts = {"words.weight": np.zeros(40), "tags.weight": np.zeros(40)}
    for w, t in zip(words.tolist(), tags.tolist(), strict=True):
        touched = [("words.weight", i) for i in set(w) - {0}] + [("tags.weight", i) for i in set(t)]
        for name, row in touched:
            counts[name][row] += min(1.0, norm / np.sqrt(len(touched)))
    for name, mask in survivors(model).items():
        clear = np.abs(counts[name] - threshold) > 1e-9
        assert ((counts[name] >= threshold) == mask.numpy().astype(bool))[clear].all()


def test_coordinates_are_masked_before_clipping() -> None:
    torch.manual_seed(0)
    model, data = TwoTables(), clicks(64)
    reference = copy.deepcopy(model)
    _, private = make(model, data, sdp.RandomSelection(coordinates=700, always_on_rows=10))
    step(private)
    assert private.optimizer.last_step is not None
    assert private.optimizer.last_step.gradient_size == 700 + 7 * 3
    ids, labels = data.tensors
    gradients = per_example_gradients(
        reference, lambda m, i: bce(m(ids[i : i + 1]), labels[i : i + 1]), len(ids)
    )
    touched = torch.zeros(300, 5)
    touched[ids[:, 0].unique()] = 1.0
    # A selected coordinate of a touched row has a gradient (almost surely not zero); use it as the mask.
    mask = (dense_grads(model)["large.weight"] != 0).float()
    assert 0.2 < float(mask.sum() / touched.sum()) < 0.7
    assert_same(model, masked_clipped_mean(gradients, {"large.weight": mask}, 0.3, 64))


def test_the_mean_gradient_is_clipped_a_second_time() -> None:
    torch.manual_seed(0)
    data = clicks(64)
    model, plain = TwoTables(), None
    for batch_clip in (None, 0.01):
        twin = copy.deepcopy(model)
        _, private = make(twin, data, sdp.RandomSelection(rows=100, always_on_rows=10, batch_clip=batch_clip))
        step(private)
        norm = torch.sqrt(sum((g**2).sum() for g in dense_grads(twin).values()))  # type: ignore[call-overload]
        plain = plain or float(norm)
    assert plain > 0.02
    assert float(norm) == pytest.approx(0.01 * CLIP_SLACK, rel=1e-4)


def test_an_example_whose_loss_is_nan_contributes_nothing() -> None:
    torch.manual_seed(0)
    model, data = TwoTables(), clicks(32)
    ids, labels = data.tensors
    labels[5] = float("nan")
    ids[5] = torch.tensor([299, 6])
    reference = copy.deepcopy(model)
    _, private = make(model, data, sdp.AdaFEST(threshold=1.0, always_on_rows=10))
    step(private)
    assert private.optimizer.diagnostics is not None
    assert private.optimizer.diagnostics.non_finite_examples == 1
    assert survivors(model)["large.weight"][299] == 0
    gradients = per_example_gradients(
        reference, lambda m, i: bce(m(ids[i : i + 1]), labels[i : i + 1]), len(ids)
    )
    assert_same(model, masked_clipped_mean(gradients, survivors(model), 0.3, 32))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_in_a_table_alone_contributes_nothing(value: float) -> None:
    """The dense gradients are fine: only the row of example 1 has a gradient that is not finite."""
    model = Directions(6, 2)
    model.scale = nn.Linear(1, 1)
    forward = model.forward
    model.forward = lambda ids, directions: (  # type: ignore[method-assign]
        forward(ids, directions) + model.scale(torch.ones(len(ids), 1)).squeeze(1)
    )
    directions = torch.tensor([[0.03, 0.04], [value, 0.0], [0.05, 0.0]])
    data = TensorDataset(torch.tensor([0, 1, 0]), directions, torch.zeros(3))
    selection = sdp.AdaFEST(threshold=0.5, always_on_rows=0)
    _, private = make(model, data, selection, max_grad_norm=100.0, loss_reduction="sum")
    for ids, given_directions, _ in private.data_loader:
        private.module(ids, given_directions).sum().backward()
        private.optimizer.step()
    assert private.optimizer.diagnostics is not None
    assert private.optimizer.diagnostics.non_finite_examples == 1
    grads = dense_grads(model)
    assert survivors(model)["table.weight"].nonzero().flatten().tolist() == [0]
    torch.testing.assert_close(grads["table.weight"][0], torch.tensor([0.08, 0.04]) / 3)
    torch.testing.assert_close(grads["scale.bias"], torch.tensor([2 / 3]))


def test_an_empty_batch_emits_pure_noise_and_counts_as_a_step() -> None:
    torch.manual_seed(0)
    model, data = TwoTables(), clicks(2000)
    engine = sdp.PrivacyEngine(seed=1, secure=False)
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(false_positives=5, always_on_rows=10),
    )
    seen_empty = False
    for taken, (ids, label) in enumerate(private.data_loader):
        private.optimizer.zero_grad()
        bce(private.module(ids), label).backward()
        private.optimizer.step()
        assert private.optimizer.steps_taken == taken + 1
        if not len(ids):
            seen_empty = True
            assert float(model.out.weight.grad.abs().max()) > 0.1  # type: ignore[union-attr]
        if taken == 30:
            break
    assert seen_empty


class OneRow(nn.Module):
    """One table whose row gradients are the row's label, constant: the step's output is known in law."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(dim=1)


def repeated_steps(
    selection: sdp.selection.Selection, ids: Tensor, rows: int, dim: int, runs: int, sigma: float
) -> tuple[np.ndarray, list[Tensor]]:
    """How often each row survived, and the gradients of survivors, over many steps on the same batch."""
    model = OneRow(rows, dim)
    _, private = make(
        model,
        TensorDataset(ids, torch.zeros(len(ids))),
        selection,
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        loss_reduction="sum",
    )
    survived, values = np.zeros(rows), []
    for _ in range(runs):
        for batch, _ in private.data_loader:
            private.optimizer.zero_grad()
            private.module(batch).sum().backward()
            private.optimizer.step()
            grad = model.table.weight.grad
            assert grad is not None
            survived[grad.indices()[0].numpy()] += 1
            values.append(grad.to_dense())
    return survived, values


def test_one_adafest_step_has_the_law_of_the_dense_textbook_form() -> None:
    """Survivors and noise of the sparse step against the dense formula; each test at 1e-8."""
    ids = torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [3])
    rows, runs, sigma = 40, 3000, 0.8
    selection = sdp.AdaFEST(noise_ratio=1.5, threshold=2.5, always_on_rows=0, contribution_norm=1.0)
    survived, values = repeated_steps(selection, ids, rows, 2, runs, sigma)
    sigma1, sigma2 = sdp.accounting.split_sigma(sigma, 1.5)
    counts = np.bincount(ids.numpy(), minlength=rows)
    probability = stats.norm.sf((2.5 - counts) / sigma1)
    z = (survived - runs * probability) / np.sqrt(runs * probability * (1 - probability))
    assert np.sum(z**2) < stats.chi2.isf(1e-8, rows)
    wrong = stats.norm.sf((2.5 - counts) / sigma1**2)  # the variance printed as the deviation
    z_wrong = (survived - runs * wrong) / np.sqrt(runs * wrong * (1 - wrong))
    assert np.sum(z_wrong**2) > stats.chi2.isf(1e-8, rows)
    stacked = torch.stack(values).numpy() * len(ids)
    noise = stacked[:, 4:][stacked[:, 4:] != 0]  # rows that no example touched
    assert noise.size > 500
    assert stats.kstest(noise, "norm", (0, sigma2)).pvalue > 1e-8
    assert stats.kstest(noise, "norm", (0, 1.15 * sigma2)).pvalue < 1e-3
    clipped = 1.0 / np.sqrt(2) * clip_share(len(ids))  # each example's gradient (1, 1) clipped to norm 1
    touched = stacked[:, 0][(stacked[:, 0] != 0).all(axis=1)] - 6 * clipped
    assert stats.kstest(touched.ravel(), "norm", (0, sigma2)).pvalue > 1e-8
