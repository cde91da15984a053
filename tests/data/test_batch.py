from itertools import chain

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data.batch import Batch, MultiHot


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=10), st.data())
def test_bags_of_chosen_rows(bags, data):
    chosen = data.draw(st.lists(st.integers(0, len(bags) - 1), max_size=12))
    offsets = np.append(0, np.cumsum([len(bag) for bag in bags]))
    taken = MultiHot(np.array([*chain(*bags)], np.int32), offsets).take(np.array(chosen, np.int64))
    assert (
        taken.offsets.tolist()
        == np.append(0, np.cumsum([len(bags[row]) for row in chosen])).astype(int).tolist()
    )
    assert taken.values.tolist() == [*chain.from_iterable(bags[row] for row in chosen)]


def batch(rows=3):
    return Batch(
        np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        np.arange(3 * rows, dtype=np.int32).reshape(rows, 3),
        np.arange(rows, dtype=np.float32),
        np.arange(rows),
        (MultiHot(np.arange(2 * rows, dtype=np.int32), 2 * np.arange(rows + 1)),),
    )


def test_tensors_have_the_form_that_models_take():
    (numeric, ids, (values, offsets)), label = batch().take(np.array([2, 0])).tensors()
    assert (numeric.dtype, ids.dtype, values.dtype, label.dtype) == (
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    )
    assert numeric.tolist() == [[4, 5], [0, 1]]
    assert ids.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert (values.tolist(), offsets.tolist(), label.tolist()) == ([4, 5, 0, 1], [0, 2], [2, 0])


def test_an_empty_batch_keeps_its_widths():
    (numeric, ids, (values, offsets)), label = batch().take(np.empty(0, np.int64)).tensors()
    assert (numeric.shape, ids.shape, values.shape, offsets.shape, label.shape) == (
        (0, 2),
        (0, 3),
        (0,),
        (0,),
        (0,),
    )


def test_batches_are_put_together_in_order():
    plain = Batch(*[getattr(batch(), name) for name in ("numeric", "ids", "label", "time")])
    joined = Batch.concatenate([plain, plain.take(np.array([1]))])
    assert joined.label.tolist() == [0, 1, 2, 1]
    assert joined.time is not None
    assert len(joined) == 4


def test_rows_that_follow_one_another():
    whole = batch(7)
    for start, stop in ((0, 3), (2, 7), (5, 100)):
        part, taken = whole.between(start, stop), whole.take(np.arange(start, min(stop, 7)))
        assert len(part) == len(taken)
        for mine, other in zip(part.tensors()[0][:2], taken.tensors()[0][:2], strict=True):
            assert torch.equal(mine, other)
        assert part.time.tolist() == taken.time.tolist()
        assert part.multi_hot[0].values.tolist() == taken.multi_hot[0].values.tolist()
