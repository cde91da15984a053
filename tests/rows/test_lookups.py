from __future__ import annotations

import pytest
import torch

from sparsedp.rows import EmbeddingLookups


def lookups(each: EmbeddingLookups) -> list[tuple[int, int, float]]:
    """(example, id, gradient) of every lookup."""
    found = []
    for n in range(len(each)):
        source = n if each.sources is None else int(each.sources[n])
        scale = 1.0 if each.scales is None else float(each.scales[n])
        found.append((int(each.examples[n]), int(each.ids[n]), scale * float(each.output_grads[source, 0])))
    return found


PLAIN = EmbeddingLookups(
    torch.tensor([4, 5, 4]), torch.tensor([0, 1, 1]), torch.tensor([[1.0], [2.0], [3.0]])
)
BAGS = EmbeddingLookups(
    torch.tensor([7, 8, 9]),
    torch.tensor([0, 0, 2]),
    torch.tensor([[10.0], [20.0], [30.0]]),
    sources=torch.tensor([0, 0, 2]),
    scales=torch.tensor([0.5, 0.25, 1.0]),
)


FULL_BAG = EmbeddingLookups(
    torch.tensor([1, 2, 3]), torch.tensor([0, 0, 0]), torch.tensor([[5.0]]), sources=torch.tensor([0, 0, 0])
)


@pytest.mark.parametrize("calls", [(PLAIN, BAGS), (BAGS, PLAIN), (FULL_BAG, PLAIN, FULL_BAG, BAGS)])
def test_concatenation_keeps_every_reading_and_sorts_by_example(calls: tuple[EmbeddingLookups, ...]) -> None:
    both = EmbeddingLookups.concatenate(calls)
    assert sorted(lookups(both)) == sorted(lookup for call in calls for lookup in lookups(call))
    assert both.examples.tolist() == sorted(both.examples.tolist())


def test_calls_without_scales_stay_without() -> None:
    assert EmbeddingLookups.concatenate([PLAIN, PLAIN]).scales is None
    assert EmbeddingLookups.concatenate([PLAIN]) is PLAIN


def test_examples_of_a_later_physical_batch_are_renumbered() -> None:
    assert PLAIN.after(10).examples.tolist() == [10, 11, 11]
    assert PLAIN.after(0) is PLAIN


def test_dropped_examples_take_their_readings_with_them() -> None:
    kept = torch.tensor([True, False, True])
    for each in (PLAIN, BAGS, EmbeddingLookups.concatenate([PLAIN, BAGS])):
        assert lookups(each.of_examples(kept)) == [r for r in lookups(each) if kept[r[0]]]
