"""Counting rows over a loader, against counting by hand."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from support.models import MultiHot, TwoTables
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset, WeightedRandomSampler

from sparsedp.clipping import Capture
from sparsedp.core.tables import TableShape
from sparsedp.rows import RowSpace
from sparsedp.training.counting import count_rows, inputs_of

WORDS = RowSpace(selectable=(TableShape("words", 40, 4), TableShape("tags", 40, 3)))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("norm", [1.0, 1.9, 10.0])
def test_a_row_counts_once_an_example_and_an_example_at_most_its_norm(batch_size: int, norm: float) -> None:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(0, 40, (30, 4), generator=generator)
    tags = torch.randint(0, 40, (30, 2), generator=generator)
    words[3] = 5  # one word four times
    words[4] = 0  # nothing but padding
    model = MultiHot()
    capture = Capture(model, loss_reduction="mean")
    data = DataLoader(TensorDataset(words, tags, torch.zeros(30)), batch_size=batch_size)
    found = count_rows(model, capture, [((w, t), y) for w, t, y in data], norm, WORDS)
    expected: dict[tuple[str, int], float] = defaultdict(float)
    for w, t in zip(words.tolist(), tags.tolist(), strict=True):
        rows = {("words", row) for row in w if row != 0} | {("tags", row) for row in t}
        for row in rows:
            expected[row] += min(1.0, norm / np.sqrt(len(rows)))
    for name in ("words", "tags"):
        due = {row: value for (table, row), value in expected.items() if table == name}
        assert found[name].ids.tolist() == sorted(due)
        np.testing.assert_allclose(found[name].values, [due[row] for row in sorted(due)])
    capture.detach()


def test_always_on_tables_are_not_counted_and_the_model_is_left_as_it_was() -> None:
    model = TwoTables().eval()
    capture = Capture(model, loss_reduction="mean")
    space = RowSpace(selectable=(TableShape("large", 300, 5),), always_on=(TableShape("small", 7, 3),))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.tensor([[1, 2], [1, 3], [299, 2]])
    found = count_rows(model, capture, [(ids, torch.zeros(3))], 1.0, space)
    assert set(found) == {"large"}
    assert found["large"].ids.tolist() == [1, 299]
    assert found["large"].values.tolist() == [2.0, 1.0]
    assert not model.training
    assert capture.take() == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    capture.detach()


def test_no_examples_count_nothing() -> None:
    model = TwoTables()
    capture = Capture(model, loss_reduction="mean")
    space = RowSpace(selectable=(TableShape("large", 300, 5),))
    assert count_rows(model, capture, [], 1.0, space)["large"].ids.size == 0
    capture.detach()


@pytest.mark.parametrize(
    "sampler", [RandomSampler(range(8), replacement=True), WeightedRandomSampler([1.0] * 8, 8)]
)
def test_a_loader_that_may_hold_an_example_twice_is_refused(sampler: Sampler[int]) -> None:
    """It would count twice."""
    model = TwoTables()
    capture = Capture(model, loss_reduction="mean")
    data = TensorDataset(torch.zeros(8, 2, dtype=torch.int64), torch.zeros(8))
    with pytest.raises(ValueError, match="replacement"):
        count_rows(model, capture, DataLoader(data, batch_size=4, sampler=sampler), 1.0, WORDS)
    capture.detach()


LARGE = RowSpace(selectable=(TableShape("large", 300, 5),))
EIGHT = TensorDataset(torch.stack([torch.arange(8), torch.zeros(8, dtype=torch.int64)], 1), torch.zeros(8))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sampler": [[0, 1], [2, 1]]},
        {"batch_sampler": [[0, 0]]},
        {"batch_size": 2, "sampler": [3, 4, 5, 3]},
        {"batch_size": 4, "sampler": RandomSampler(range(8), num_samples=16)},
        {"batch_size": None, "sampler": [[0, 1], [2, 1]]},
    ],
)
def test_a_sampler_that_gives_an_example_twice_is_refused(options: dict[str, object]) -> None:
    """Over the whole pass, not only within a batch: the histogram would move by twice its norm."""
    model = TwoTables()
    capture = Capture(model, loss_reduction="mean")
    with pytest.raises(ValueError, match="an example twice"):
        count_rows(model, capture, DataLoader(EIGHT, **options), 1.0, LARGE)  # type: ignore[arg-type]
    capture.detach()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3, "shuffle": True},
        {"batch_sampler": [[0, 1, 5], [2], [7, 6, 4, 3]]},
        {"batch_size": 3, "sampler": [7, 6, 5, 4, 3, 2, 1, 0]},
        {"batch_size": None, "sampler": [[0, 1, 5], [2], [7, 6, 4, 3]]},
    ],
)
def test_any_order_of_the_examples_counts_the_same(options: dict[str, object]) -> None:
    model = TwoTables()
    capture = Capture(model, loss_reduction="mean")
    found = count_rows(model, capture, DataLoader(EIGHT, **options), 1.0, LARGE)["large"]  # type: ignore[arg-type]
    assert found.ids.tolist() == list(range(8))
    assert found.values.tolist() == [1.0] * 8
    capture.detach()


@pytest.mark.parametrize("shape", [(12,), (2, 6)])
def test_positions_in_the_place_of_examples_are_refused(shape: tuple[int, ...]) -> None:
    """Each position of an example would be clipped by itself, or several examples as one."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(40, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.words(ids.reshape(shape)).sum(1)

    model = Flat()
    capture = Capture(model, loss_reduction="mean")
    space = RowSpace(selectable=(TableShape("words", 40, 4),))
    with pytest.raises(ValueError, match="dimension 0"):
        count_rows(model, capture, [(torch.arange(12).view(3, 4), torch.zeros(3))], 1.0, space)
    capture.detach()


def test_a_forward_of_any_number_of_inputs_is_given_no_label() -> None:
    class Open(nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return torch.cat(inputs)

    assert inputs_of(Open(), (1, 2, 3)) == ((1, 2), {})
    assert inputs_of(Open(), (1,)) == ((1,), {})
