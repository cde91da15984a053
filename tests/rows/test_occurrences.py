from __future__ import annotations

import pytest
import torch

from sparsedp.rows import Occurrences


def readings(each: Occurrences) -> list[tuple[int, int, float]]:
    """(example, id, gradient) of every reading."""
    found = []
    for n in range(len(each)):
        source = n if each.sources is None else int(each.sources[n])
        scale = 1.0 if each.scales is None else float(each.scales[n])
        found.append((int(each.examples[n]), int(each.ids[n]), scale * float(each.output_grads[source, 0])))
    return found


PLAIN = Occurrences(torch.tensor([4, 5, 4]), torch.tensor([0, 1, 1]), torch.tensor([[1.0], [2.0], [3.0]]))
BAGS = Occurrences(
    torch.tensor([7, 8, 9]),
    torch.tensor([0, 0, 2]),
    torch.tensor([[10.0], [20.0], [30.0]]),
    sources=torch.tensor([0, 0, 2]),
    scales=torch.tensor([0.5, 0.25, 1.0]),
)


FULL_BAG = Occurrences(
    torch.tensor([1, 2, 3]), torch.tensor([0, 0, 0]), torch.tensor([[5.0]]), sources=torch.tensor([0, 0, 0])
)


@pytest.mark.parametrize("calls", [(PLAIN, BAGS), (BAGS, PLAIN), (FULL_BAG, PLAIN, FULL_BAG, BAGS)])
def test_concatenation_keeps_every_reading_and_sorts_by_example(calls: tuple[Occurrences, ...]) -> None:
    both = Occurrences.concatenate(calls)
    assert sorted(readings(both)) == sorted(reading for call in calls for reading in readings(call))
    assert both.examples.tolist() == sorted(both.examples.tolist())


def test_calls_without_scales_stay_without() -> None:
    assert Occurrences.concatenate([PLAIN, PLAIN]).scales is None
    assert Occurrences.concatenate([PLAIN]) is PLAIN


def test_examples_of_a_later_physical_batch_are_renumbered() -> None:
    assert PLAIN.after(10).examples.tolist() == [10, 11, 11]
    assert PLAIN.after(0) is PLAIN


def test_dropped_examples_take_their_readings_with_them() -> None:
    kept = torch.tensor([True, False, True])
    for each in (PLAIN, BAGS, Occurrences.concatenate([PLAIN, BAGS])):
        assert readings(each.of_examples(kept)) == [r for r in readings(each) if kept[r[0]]]
