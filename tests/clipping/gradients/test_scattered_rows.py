from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.scattered_rows import ScatteredRows
from sparsedp.rows.lookups import EmbeddingLookups

BATCH, ROWS, DIM = 4, 5, 3
READINGS = st.lists(st.tuples(st.integers(0, BATCH - 1), st.integers(0, ROWS - 1)), max_size=15)


@settings(deadline=None, max_examples=40)
@given(READINGS)
def test_duplicates_add_up_before_the_norm(lookups):
    lookups.sort()
    examples = torch.tensor([e for e, _ in lookups], dtype=torch.int64)
    ids = torch.tensor([i for _, i in lookups], dtype=torch.int64)
    grads = torch.randn(len(lookups), DIM).double()
    gradient = ScatteredRows(EmbeddingLookups(ids, examples, grads), BATCH, ROWS)
    made = torch.zeros(BATCH, ROWS, DIM).double()
    for (e, i), grad in zip(lookups, grads, strict=True):
        made[e, i] += grad
    assert torch.allclose(gradient.instantiate(), made)
    assert torch.allclose(gradient.squared_norms(), made.square().sum((1, 2)))
    other = OuterProducts(torch.randn(BATCH, 2, DIM).double(), torch.randn(BATCH, 2, ROWS).double())
    assert torch.allclose(gradient.dot(other), (made * other.instantiate()).sum((1, 2)))


def test_bags_with_scales():
    read = EmbeddingLookups(
        ids=torch.tensor([0, 1, 1]),
        examples=torch.tensor([0, 0, 2]),
        output_grads=torch.tensor([[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]]),
        sources=torch.tensor([0, 0, 2]),
        scales=torch.tensor([0.5, 0.5, 1.0]),
    )
    gradient = ScatteredRows(read, 3, 2)
    assert torch.allclose(gradient.squared_norms(), torch.tensor([2.5, 0.0, 25.0]).double())
    out = torch.zeros(2, 2)
    gradient.accumulate(out, torch.tensor([1.0, 1.0, 2.0]))
    assert torch.allclose(out, torch.tensor([[0.5, 1.0], [6.5, 9.0]]))


def test_a_selection_of_examples_keeps_their_gradients_in_its_order():
    read = EmbeddingLookups(
        torch.tensor([0, 3, 3, 4]), torch.tensor([0, 1, 1, 3]), torch.randn(4, DIM).double()
    )
    gradient = ScatteredRows(read, BATCH, ROWS)
    for examples in ([0, 1], [1, 3], [3, 0], [2], []):
        chosen = torch.tensor(examples, dtype=torch.int64)
        found = gradient.select(chosen)
        assert found.batch_size == len(examples)
        assert torch.equal(found.instantiate(), gradient.instantiate()[chosen])
