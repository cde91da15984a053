"""The batch without examples has the form of others and nothing of any example in it."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from sparsedp.training.empty_batch import empty_batch

DATA = torch.arange(12.0).reshape(4, 3)
Pair = namedtuple("Pair", ["features", "label"])


@dataclass
class Record:
    features: Tensor
    task: str


def test_tensors_arrays_and_lists_are_cut_to_nothing() -> None:
    made = empty_batch(lambda n: (DATA[n], DATA[n].numpy(), [str(i) for i in n], {"x": DATA[n, 0]}), 4)
    features, array, words, named = made
    assert features.shape == (0, 3)
    assert array.shape == (0, 3)
    assert words == []
    assert named["x"].shape == (0,)


@pytest.mark.parametrize(
    "kind",
    [
        lambda x: UserDict({"x": x}),
        lambda x: OrderedDict(x=x),
        lambda x: Pair(x, x[:, 0]),
        lambda x: Record(x, "clicks"),
        lambda x: [x, x],
    ],
)
def test_containers_keep_their_type(kind: Any) -> None:
    made, like = empty_batch(lambda n: kind(DATA[n]), 4), kind(DATA)
    assert type(made) is type(like)
    values = (
        made.values()
        if isinstance(made, dict | UserDict)
        else vars(made).values()
        if isinstance(made, Record)
        else made
    )
    assert [len(value) for value in values if isinstance(value, Tensor)] != []
    assert all(len(value) == 0 for value in values if isinstance(value, Tensor))


def test_what_is_the_same_for_all_examples_is_kept() -> None:
    mask = torch.ones(5)
    made = empty_batch(lambda n: {"x": DATA[n], "mask": mask, "task": "clicks", "none": None, "k": 3}, 4)
    assert torch.equal(made["mask"], mask)
    assert (made["task"], made["none"], made["k"]) == ("clicks", None, 3)


@pytest.mark.parametrize(
    ("part", "where"),
    [
        (lambda n: DATA[n[0]], r"batch\['part'\] is a Tensor"),
        (lambda n: DATA[n[0]].numpy(), r"batch\['part'\] is a ndarray"),
        (lambda n: int(n[0]), "is a int"),
        (lambda n: f"user {n[0]}", "is a str"),
        (lambda n: [f"user {n[0]}"], r"batch\['part'\]\[0\] is a str"),
        (lambda n: pack_sequence([DATA[i] for i in n]), "PackedSequence"),
        (lambda n: object(), "is a object"),
        (lambda n: DATA[n] if len(n) == 1 else [DATA[i] for i in n], "is a Tensor"),
    ],
)
def test_what_would_hold_an_example_is_refused(part: Any, where: str) -> None:
    """Each of these is the same for one example and for that example twice."""
    with pytest.raises(ValueError, match=where):
        empty_batch(lambda n: {"x": DATA[n], "part": part(n)}, 4)


class _Fixed(UserDict):  # type: ignore[type-arg]
    """Cannot be made from its items alone."""

    def __init__(self, features: Tensor, number: int) -> None:
        super().__init__(x=features)
        self.number = number


def test_a_mapping_that_cannot_be_made_from_its_items_is_refused() -> None:
    with pytest.raises(ValueError, match="batch is a _Fixed of which no empty batch can be made"):
        empty_batch(lambda n: _Fixed(DATA[n], int(n[0])), 4)


def test_three_batches_are_fetched_and_none_is_larger_than_two() -> None:
    asked: list[list[int]] = []

    def fetch(n: np.ndarray) -> Tensor:
        asked.append(n.tolist())
        return DATA[n]

    empty_batch(fetch, 4)
    assert asked == [[0], [0, 0], [3]]


def test_a_bag_that_is_empty_in_the_first_example() -> None:
    """Values and offsets of a multi-hot feature: the first example has no value, the last has two."""
    bags = [torch.tensor([]), torch.tensor([1.0]), torch.tensor([2.0, 3.0])]

    def fetch(numbers: Any) -> Any:
        chosen = [bags[number] for number in numbers]
        return torch.cat(chosen), torch.tensor([0] * len(chosen))

    values, offsets = empty_batch(fetch, 3)
    assert values.shape == (0,)
    assert offsets.shape == (0,)
