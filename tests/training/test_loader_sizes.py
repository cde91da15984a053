"""How many examples a batch holds, whatever holds them, and how a dataset is asked for them."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.spies import spy
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import sparsedp as sdp
from sparsedp.randomness import NoiseSource
from sparsedp.training import loader as loaders
from sparsedp.training.batch_owner import BatchOwner
from sparsedp.training.loader import PoissonLoader, array_leaves, examples_in


@dataclass
class Both:
    ids: Tensor
    others: list[np.ndarray]
    name: str = "a"


A, B = torch.zeros(3, 2), np.zeros((3, 1))


@pytest.mark.parametrize(
    ("batch", "leaves", "examples"),
    [
        (A, 1, 3),
        (B, 1, 3),
        ([A, (B, "name")], 2, 3),
        ({"a": A, "b": {"c": B}}, 2, 3),
        (UserDict(a=A), 1, 3),
        (Both(A, [B, B]), 3, 3),
        (Both, 0, None),
        ("text", 0, None),
        ([A, torch.zeros(2)], 2, None),
        ([A, torch.tensor(1.0)], 2, None),
        (torch.tensor(1.0), 1, None),
    ],
)
def test_the_examples_of_a_batch_are_what_its_tensors_share(
    batch: Any, leaves: int, examples: int | None
) -> None:
    assert len(array_leaves(batch)) == leaves
    assert examples_in(batch) == examples


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def _fixed(loader: Any, **options: Any) -> Any:
    model = nn.Linear(2, 1)
    return sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson=False,
        **options,
    )


def test_a_stream_of_batches_of_unknown_size_is_refused() -> None:
    private = _fixed(
        DataLoader(Stream([torch.zeros(2, 2), torch.zeros(3)]), batch_size=None), expected_batch_size=2
    )
    with pytest.raises(ValueError, match="the number of examples in a batch is unclear"):
        next(iter(private.data_loader))


def test_a_fixed_loader_tells_the_size_and_still_answers_for_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = spy(monkeypatch, BatchOwner, "hand_out")
    own = DataLoader(TensorDataset(torch.zeros(5, 2)), batch_size=2)
    private = _fixed(own)
    assert private.data_loader.dataset is own.dataset
    assert len(private.data_loader) == 3
    for (x,) in private.data_loader:
        private.module(x).sum().backward()
        private.optimizer.step()
    assert [(call["examples"], call["first"], call["last"]) for call in told] == [(2, True, True)] * 2 + [
        (1, True, True)
    ]


class AtOnce(Dataset):  # type: ignore[type-arg]
    """Gives examples one by one, or several at once as torch's own fetcher asks for them."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, n: int) -> Tensor:
        raise AssertionError("asked one by one")

    def __getitems__(self, rows: list[int]) -> list[Tensor]:
        assert all(type(row) is int for row in rows)
        return [torch.tensor([float(row)]) for row in rows]


@pytest.mark.parametrize("physical", [None, 2])
def test_a_dataset_that_gives_several_examples_at_once_is_asked_so(physical: int | None) -> None:
    loader = PoissonLoader(
        DataLoader(AtOnce(), batch_size=4),
        sampling_rate=0.5,
        stream=NoiseSource(1).sampling,
        physical_batch_size=physical,
    )
    found = [float(x) for batch in loader for x in batch.flatten()]
    assert found == [float(row) for step in range(2) for row in loader.indices(step)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("physical", [None, 1, 3, 100])
def test_every_piece_is_told_with_its_size_and_its_place(
    monkeypatch: pytest.MonkeyPatch, physical: int | None, workers: int
) -> None:
    """The pieces of a batch are its examples, in order, each once; the first and the last are marked."""

    class Note:
        def __init__(self) -> None:
            self.told: list[tuple[Any, ...]] = []

        def begin_epoch(self) -> None:
            self.told.append(("begin",))

        def end_epoch(self) -> None:
            self.told.append(("end",))

        def hand_out(
            self, contents: Any, examples: int, *, first: bool, last: bool, batch: Any, units: Any = ()
        ) -> None:
            self.told.append((contents[0].flatten().tolist(), examples, first, last, len(batch)))

    for whole in (False, True):
        note = Note()
        loader = PoissonLoader(
            DataLoader(TensorDataset(torch.arange(12.0)[:, None]), batch_size=4, num_workers=workers),
            sampling_rate=1 / 3,
            stream=NoiseSource(2).sampling,
            physical_batch_size=physical,
            owner=note,
        )
        loader.whole_batches = whole
        loader.position = 3  # the second epoch
        for _ in loader:
            pass
        due: list[tuple[Any, ...]] = [("begin",)]
        for step in (3, 4, 5):
            rows = loader.indices(step)
            size = physical or max(rows.size, 1)
            pieces = [rows[start : start + size] for start in range(0, max(rows.size, 1), size)]
            due += [
                (
                    piece.astype(float).tolist(),
                    piece.size,
                    n == 0,
                    n == len(pieces) - 1,
                    len(pieces) - n if whole else 0,
                )
                for n, piece in enumerate(pieces)
            ]
        assert note.told == [*due, ("end",)]
        assert loader.position == 6


def test_the_rate_and_the_number_of_examples_reach_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = spy(monkeypatch, loaders, "bernoulli_positions")
    data = DataLoader(TensorDataset(torch.zeros(11, 1)), batch_size=4)
    loader = PoissonLoader(data, sampling_rate=0.3, stream=NoiseSource(2).sampling)
    assert len(list(loader)) == len(loader) == 4
    assert [(call["size"], call["probability"]) for call in drawn] == [(11, 0.3)] * 4


@pytest.mark.parametrize("size", [0, -1])
def test_a_physical_batch_holds_at_least_one_example(size: int) -> None:
    data = DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2)
    with pytest.raises(ValueError, match="physical_batch_size must be at least 1"):
        PoissonLoader(data, sampling_rate=0.5, stream=NoiseSource(1).sampling, physical_batch_size=size)
    assert PoissonLoader(data, sampling_rate=0.5, stream=NoiseSource(1).sampling, physical_batch_size=1)


@pytest.mark.parametrize("whole", [False, True])
def test_pieces_are_fetched_one_at_a_time_unless_the_whole_batch_is_wanted(whole: bool) -> None:
    class Counted(Dataset):  # type: ignore[type-arg]
        asked = 0

        def __len__(self) -> int:
            return 40

        def __getitem__(self, n: int) -> Tensor:
            self.asked += 1
            return torch.tensor([float(n)])

    data = Counted()
    loader = PoissonLoader(
        DataLoader(data, batch_size=20),
        sampling_rate=0.5,
        stream=NoiseSource(2).sampling,
        physical_batch_size=2,
    )
    loader.whole_batches = whole
    batch = loader.indices(0).size
    assert batch > 10
    data.asked = 0
    next(iter(loader))
    assert data.asked == (batch if whole else 2)


@pytest.mark.parametrize("physical", [None, 1, 3])
def test_a_batch_that_was_begun_is_not_drawn_again(physical: int | None) -> None:
    """The position moves on with the first piece: what is left of the batch is given up, and the next one comes."""
    loader = PoissonLoader(
        DataLoader(TensorDataset(torch.arange(30.0)[:, None]), batch_size=10),
        sampling_rate=1 / 3,
        stream=NoiseSource(3).sampling,
        physical_batch_size=physical,
    )
    for step in range(5):
        assert loader.position == step
        (piece,) = next(iter(loader))
        assert loader.position == step + 1
        rows = loader.indices(step)
        assert piece.flatten().tolist() == rows[: physical or rows.size].astype(float).tolist()


@pytest.mark.parametrize("batched", [True, False])
def test_the_users_own_collate_fn_makes_every_batch(batched: bool) -> None:
    """Of a fixed loader, and of a pass that looks for repeats."""

    def doubled(examples: Any) -> Tensor:
        return 2 * (torch.stack([x for (x,) in examples]) if isinstance(examples, list) else examples[0])

    data = TensorDataset(torch.arange(6.0)[:, None])
    sampler: dict[str, Any] = (
        {"batch_sampler": [[0, 1], [4, 5]]} if batched else {"batch_size": None, "sampler": [[0, 1], [4, 5]]}
    )
    loader = DataLoader(data, collate_fn=doubled, **sampler)
    assert [batch.flatten().tolist() for batch in loaders.each_once(loader)] == [[0.0, 2.0], [8.0, 10.0]]
    model = nn.Linear(1, 1)
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson=False,
        expected_batch_size=2,
    )
    found = []
    for batch in private.data_loader:
        found.append(batch.flatten().tolist())
        private.module(batch).sum().backward()
        private.optimizer.step()
    assert found == [[0.0, 2.0], [8.0, 10.0]]
