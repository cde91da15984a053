"""What of a batch the model is given when its rows are counted, and which loaders are not counted."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.models import TwoTables
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.clipping import Capture
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.rows import RowSpace
from sparsedp.training.counting import count_rows, inputs_of

IDS = torch.stack([torch.arange(6) * 3, torch.arange(6)], 1)
SPACE = RowSpace(selectable=(TableShape("large", 300, 5), TableShape("small", 7, 3)))


class One(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return ids


class Two(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids


class Optional(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor | None = None, *, label: Tensor | None = None) -> Tensor:
        return ids


class Named(nn.Module):
    def forward(self, ids: Tensor, **others: Tensor) -> Tensor:
        return ids


class Nothing(nn.Module):
    def forward(self) -> None:
        pass


@pytest.mark.parametrize(
    ("model", "batch", "args", "kwargs"),
    [
        (One, "ids", ("ids",), {}),
        (One, ("ids",), ("ids",), {}),
        (One, ("ids", "label"), ("ids",), {}),
        (One, ["ids", "label", "weight"], ("ids",), {}),
        (Two, ("ids", "mask", "label"), ("ids", "mask"), {}),
        (Two, ("ids", "mask"), ("ids", "mask"), {}),
        (Two, (("ids", "mask"), "label"), ("ids", "mask"), {}),
        (Two, (["ids", "mask"], "label"), ("ids", "mask"), {}),
        (Optional, ("ids", "label"), ("ids",), {}),
        (Nothing, ("ids", "label"), ("ids",), {}),
        (Two, {"ids": 1, "mask": 2, "label": 3}, (), {"ids": 1, "mask": 2}),
        (Named, {"ids": 1, "mask": 2, "label": 3}, (), {"ids": 1, "mask": 2, "label": 3}),
        (Two, UserDict({"ids": 1, "label": 3}), (), {"ids": 1}),
        (Two, ({"ids": 1, "mask": 2}, "label"), (), {"ids": 1, "mask": 2}),
    ],
)
def test_the_model_is_given_its_inputs_and_no_label(
    model: Callable[[], nn.Module], batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert inputs_of(model(), batch) == (args, kwargs)


def test_a_batch_with_too_few_items_is_refused() -> None:
    with pytest.raises(ValueError, match="gives 1 items a batch and the model's forward takes 2"):
        inputs_of(Two(), ("ids",))


class ByName(TwoTables):
    """The inputs of a watched model are found through the watcher's own forward."""

    def forward(self, ids: Tensor, unused: Tensor | None = None) -> Tensor:
        assert unused is None
        return super().forward(ids)


@pytest.mark.parametrize(
    "batches",
    [
        [IDS],
        [IDS[:2], IDS[2:]],
        [{"ids": IDS, "label": torch.zeros(6)}],
        [({"ids": IDS}, torch.zeros(6))],
        [((IDS,), torch.zeros(6))],
        [(IDS[n : n + 1], torch.zeros(1)) for n in range(6)],
    ],
)
def test_every_form_of_a_batch_counts_the_same(batches: list[Any]) -> None:
    model = ByName()
    capture = Capture(model, loss_reduction="mean")
    found = count_rows(model, capture, batches, 1.0, SPACE)
    assert found["large"].ids.tolist() == [0, 3, 6, 9, 12, 15]
    assert found["small"].ids.tolist() == [0, 1, 2, 3, 4, 5]
    for counts in found.values():
        np.testing.assert_allclose(counts.values, 2**-0.5)
        assert counts.values.dtype == np.float64
    capture.detach()


def test_what_was_counted_is_added_row_by_row() -> None:
    first = SparseCounts(np.array([1, 5]), np.array([0.5, 2.0]), 10)
    second = SparseCounts(np.array([0, 5, 9]), np.array([1.0, 0.25, 4.0]), 10)
    total = first + second
    assert total.ids.tolist() == [0, 1, 5, 9]
    assert total.values.tolist() == [1.0, 0.5, 2.25, 4.0]


@pytest.mark.parametrize("poisson", [True, False])
def test_a_loader_for_training_is_refused(poisson: bool) -> None:
    """A Poisson batch may hold an example in every batch of a pass, or in none."""
    model = TwoTables()
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(IDS, torch.zeros(6)), batch_size=2),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson=poisson,
    )
    other = TwoTables()
    capture = Capture(other, loss_reduction="mean")
    with pytest.raises(ValueError, match="give the plain loader"):
        count_rows(other, capture, private.data_loader, 1.0, SPACE)
    capture.detach()


class TwoOutputs(TwoTables):
    """Each table feeds an output of its own; one output needs no gradient."""

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        return {
            "flag": ids.float(),
            "large": self.hidden(torch.cat([self.large(ids[:, 0]), torch.zeros(len(ids), 3)], 1)),
            "small": self.small(ids[:, 1]),
        }


def test_every_output_is_followed_to_its_tables() -> None:
    model = TwoOutputs()
    capture = Capture(model, loss_reduction="mean")
    found = count_rows(model, capture, [IDS], 10.0, SPACE)
    assert found["large"].ids.tolist() == [0, 3, 6, 9, 12, 15]
    assert found["small"].ids.tolist() == [0, 1, 2, 3, 4, 5]
    capture.detach()
