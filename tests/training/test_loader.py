"""Poisson loading: independent inclusion, empty batches, pieces, workers, position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from sparsedp.randomness import NoiseSource
from sparsedp.training.loader import FixedLoader, PoissonLoader, check_loader


class Receiver:
    """Writes down what a loader hands out."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int | None, bool, bool]] = []
        self.batches: list[Sequence[object]] = []

    def begin_epoch(self) -> None:
        pass

    def end_epoch(self) -> None:
        pass

    def hand_out(
        self,
        contents: object,
        examples: int | None,
        *,
        first: bool,
        last: bool,
        batch: Sequence[object],
        units: Sequence[object] = (),
    ) -> None:
        assert not units, "every example is a unit"
        self.pieces.append((examples, first, last))
        self.batches.append(batch)


def loader(n: int, q: float, seed: int = 0, **options: object) -> PoissonLoader:
    data = TensorDataset(torch.arange(n), torch.zeros(n))
    own = {name: options.pop(name) for name in ("physical_batch_size", "owner") if name in options}
    return PoissonLoader(
        DataLoader(data, batch_size=4, **options),  # type: ignore[arg-type]
        sampling_rate=q,
        stream=NoiseSource(seed).sampling,
        **own,  # type: ignore[arg-type]
    )


def test_inclusion_is_independent_and_of_the_right_rate() -> None:
    """Each example's count is binomial; pairs are uncorrelated; sizes vary as binomial. Each at 1e-8."""
    n, q, steps = 60, 0.1, 4000
    made = loader(n, q)
    included = np.zeros((steps, n))
    for step in range(steps):
        included[step, made.indices(step)] = 1
    counts = included.sum(axis=0)
    assert np.sum((counts - steps * q) ** 2 / (steps * q * (1 - q))) < stats.chi2.isf(1e-8, n)
    sizes = included.sum(axis=1)
    dispersion = np.sum((sizes - n * q) ** 2) / (n * q * (1 - q))
    assert stats.chi2.isf(1 - 1e-8, steps) < dispersion < stats.chi2.isf(1e-8, steps)
    fixed_size = np.sum((np.full(steps, 6) - n * q) ** 2) / (n * q * (1 - q))
    assert fixed_size < stats.chi2.isf(1 - 1e-8, steps)  # shuffled batches of fixed size would be caught
    correlation = np.corrcoef(included.T)[np.triu_indices(n, 1)]
    assert np.abs(correlation).max() < stats.norm.isf(1e-8 / correlation.size) / np.sqrt(steps)


def test_an_epoch_and_the_position_within_it() -> None:
    made = loader(40, 0.1)
    assert len(made) == 10
    first = [batch[0].tolist() for batch in islice(made, 4)]
    assert made.position == 4
    again = loader(40, 0.1)
    again.position = 4
    rest = [batch[0].tolist() for batch in again]
    whole = [batch[0].tolist() for batch in loader(40, 0.1)]
    assert first + rest == whole
    assert again.position == 10


def test_empty_batches_have_the_structure_of_full_ones() -> None:
    class Records(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, n: int) -> dict[str, object]:
            return {"x": (torch.zeros(3), torch.tensor(n)), "y": 1.0}

    made = PoissonLoader(
        DataLoader(Records(), batch_size=1), sampling_rate=1e-3, stream=NoiseSource(0).sampling
    )
    batches = []
    for batch in islice(made, 30):
        batches.append(dict(batch))
        batch.clear()  # what a loop does to its batch reaches no later one
    empty = [batch for batch in batches if not len(batch["y"])]
    assert empty
    assert empty[0]["x"][0].shape == (0, 3)
    assert empty[0]["x"][1].dtype == torch.int64


def test_a_logical_batch_arrives_in_pieces() -> None:
    whole = [batch[0].tolist() for batch in loader(200, 0.1)]
    owner = Receiver()
    made = loader(200, 0.1, physical_batch_size=3, owner=owner)
    joined: list[list[int]] = []
    for ids, _ in made:
        examples, first, last = owner.pieces[-1]
        assert len(ids) == examples <= 3
        joined += [[]] if first else []
        joined[-1] += ids.tolist()
        assert last == (len(joined[-1]) == len(whole[len(joined) - 1]))
    assert joined == whole


def test_a_piece_of_a_whole_batch_comes_with_those_after_it_and_none_before() -> None:
    """A piece that came twice would be counted twice where rows are chosen before the last piece."""
    owner = Receiver()
    made = loader(200, 0.1, physical_batch_size=3, owner=owner)
    made.whole_batches = True
    pieces = [ids.tolist() for ids, _ in made]
    ends = [n + 1 for n, (_, _, last) in enumerate(owner.pieces) if last]
    for n, batch in enumerate(owner.batches):
        end = next(end for end in ends if end > n)
        assert [ids.tolist() for ids, _ in batch] == pieces[n:end]  # type: ignore[misc]
    assert max(len(batch) for batch in owner.batches) > 2


def test_workers_give_the_same_batches() -> None:
    plain = [batch[0].tolist() for batch in loader(100, 0.05)]
    assert [batch[0].tolist() for batch in loader(100, 0.05, num_workers=2)] == plain


def test_sampling_does_not_pass_over_the_data() -> None:
    class Huge(Dataset):  # type: ignore[type-arg]
        collates = True

        def __len__(self) -> int:
            return 45_000_000

        def __getitems__(self, indices: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(indices)

    made = PoissonLoader(
        DataLoader(Huge(), batch_size=2048), sampling_rate=2048 / 45e6, stream=NoiseSource(0).sampling
    )
    import tracemalloc

    tracemalloc.start()
    batch = next(iter(made))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1500 < len(batch) < 2600
    assert peak < 2e6
    assert made.steps_per_epoch == 21973


def test_an_older_iterator_is_refused() -> None:
    """It would hand out the samples of the newer one once more."""
    made = loader(100, 0.05)
    older = iter(made)
    next(older)
    newer = iter(made)
    next(newer)
    with pytest.raises(RuntimeError, match="newer iterator"):
        next(older)
    next(newer)


@pytest.mark.parametrize("twice", [[[0, 1, 2], [3, 4, 3]], [[5, 5]]])
def test_an_example_twice_in_a_fixed_batch_is_refused(twice: list[list[int]]) -> None:
    """It would move the step by 2 C. In two batches it may be."""
    data, owner = TensorDataset(torch.arange(6)), Receiver()

    def fixed(batches: list[list[int]]) -> FixedLoader:
        return FixedLoader(DataLoader(data, batch_sampler=batches), owner, lambda: None)

    with pytest.raises(ValueError, match="twice in one batch"):
        list(fixed(twice))
    owner.pieces.clear()
    found = [ids.tolist() for (ids,) in fixed([[0, 1, 2], [2, 4]])]
    assert found == [[0, 1, 2], [2, 4]]
    assert owner.pieces == [(3, True, True), (2, True, True)]


class Endless(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield torch.zeros(1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "DataLoader"),
        (DataLoader(Endless()), "map-style"),
        (DataLoader(TensorDataset(torch.empty(0))), "empty"),
        (
            DataLoader(TensorDataset(torch.zeros(3)), sampler=WeightedRandomSampler([1.0, 1.0, 1.0], 3)),
            "WeightedRandomSampler",
        ),
        (DataLoader(TensorDataset(torch.zeros(3)), batch_sampler=[[0, 1], [2]]), "samples with list"),
    ],
)
def test_loaders_that_cannot_be_sampled_are_refused(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_loader(given)
