import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data import Batch, ClickData, GeneratedClicks, HashRule, prepare, write_criteo_tsv
from sparsedp.data.clicks import STRIDE
from sparsedp.data.criteo import CATEGORIES, Criteo
from sparsedp.data.row_sets import RowRange


@pytest.fixture(scope="module")
def data():
    return GeneratedClicks(3000, days=6, seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("clicks")
    write_criteo_tsv(path / "train.txt", 2000)
    rules = {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES, strict=True)}
    prepare(Criteo.of([path / "train.txt"]), path / "out", rules)
    return path / "out"


def at_times(data, times):
    """The same rows at other times."""
    examples = data.take(np.arange(len(times)))
    return ClickData(Batch(examples.numeric, examples.ids, examples.label, np.array(times)), data.schema)


def test_a_batch_is_its_rows_in_order(data):
    everything = data.take(np.arange(len(data)))
    batch = data.take([7, 3, 3])
    assert batch.ids.tolist() == everything.ids[[7, 3, 3]].tolist()
    assert batch.numeric.tolist() == everything.numeric[[7, 3, 3]].tolist()


def test_the_data_set_collates_by_itself(data):
    assert data.collates
    (numeric, ids), label = data.__getitems__(np.array([5, 9]))
    assert (numeric.shape, ids.shape, label.shape) == ((2, 13), (2, 26), (2,))
    assert (numeric.dtype, ids.dtype, label.dtype) == (torch.float32, torch.int64, torch.float32)
    (one_numeric, one_ids), one_label = data[9]
    assert torch.equal(one_numeric, numeric[1])
    assert torch.equal(one_ids, ids[1])
    assert one_label == label[1]


def test_an_empty_batch_has_the_right_shapes(data):
    (numeric, ids), label = data.__getitems__([])
    assert (numeric.shape, ids.shape, label.shape) == ((0, 13), (0, 26), (0,))


def test_a_loader_gives_whole_batches(data):
    batches = list(data.loader(1024))
    assert [len(label) for _, label in batches] == [1024, 1024, 952]
    assert torch.equal(torch.cat([label for _, label in batches]), torch.from_numpy(data.label))
    assert isinstance(data.loader(10, shuffle=True), DataLoader)


@pytest.mark.parametrize("rows", [[-1], [3000], [0, 5000]])
def test_rows_outside_are_refused(data, rows):
    with pytest.raises(IndexError, match=r"^rows must lie in"):
        data.take(rows)
    with pytest.raises(ValueError, match=r"^rows must be a list"):
        data.take([[1, 2]])


def test_a_split_is_disjoint_complete_and_always_the_same(data):
    rest, held_out = data.split(0.2)
    assert 450 < len(held_out) < 750  # Binomial(3000, 0.2), both tails below 1e-11
    together = np.concatenate([part.take(np.arange(len(part))).numeric for part in (rest, held_out)])
    everything = data.take(np.arange(len(data))).numeric
    assert np.array_equal(np.sort(together, axis=0), np.sort(everything, axis=0))
    assert np.array_equal(data.split(0.2)[1].label, held_out.label)
    assert not np.array_equal(
        data.split(0.2, salt=1)[1].take(np.arange(50)).ids, held_out.take(np.arange(50)).ids
    )


def test_splits_by_time_put_no_time_on_both_sides(data):
    earlier, later = data.split_by_time(1 / 3)
    assert (set(earlier.time), set(later.time)) == ({0, 1, 2, 3}, {4, 5})
    earlier, later = data.split_at(2)
    assert (len(earlier), len(later)) == (1000, 2000)
    mixed = at_times(data, [5, 1, 3, 1, 9, 2])
    assert [part.time.tolist() for part in mixed.split_at(3)] == [[1, 1, 2], [5, 3, 9]]
    assert [part.time.tolist() for part in mixed.split_by_time(0.5)] == [[1, 1, 2], [5, 3, 9]]


def test_periods_are_ranges_of_ordered_data(data):
    periods = data.periods(4)
    assert [(period.start, period.stop, period.rows) for period in periods] == [
        (0, 4, RowRange(0, 2000)),
        (4, 8, RowRange(2000, 3000)),
    ]
    assert set(data.subset(periods[1].rows).time) == {4, 5}


def test_periods_of_unordered_data_with_gaps(data):
    mixed = at_times(data, [50, 11, 3, 12, 51, 19])
    assert not mixed.is_time_ordered
    found = {period.start: mixed.subset(period.rows).time.tolist() for period in mixed.periods(10, start=0)}
    assert found == {0: [3], 10: [11, 12, 19], 50: [50, 51]}
    assert [period.start for period in mixed.periods(10)] == [3, 13, 43]
    assert [period.start for period in mixed.periods(10, start=12)] == [12, 42]


def test_order_is_judged_across_strides(data):
    times = np.repeat(np.arange(3000), -(-STRIDE // 1000))[: STRIDE + 10]
    examples = data.take(np.zeros(len(times), np.int64))
    for fault, ordered in ((None, True), (STRIDE, False)):
        changed = times.copy()
        if fault:
            changed[fault:] = 0
        assert (
            ClickData(
                Batch(examples.numeric, examples.ids, examples.label, changed), data.schema
            ).is_time_ordered
            == ordered
        )


def test_subsets_of_subsets(data):
    part = data.subset(np.arange(100, 200)).subset(range(10, 20))
    assert np.array_equal(part.label, data.label[110:120])
    assert len(data.subset(RowRange(5, 9)).subset(RowRange(1, 3))) == 2


def test_a_folder_opens_as_a_map_and_travels_by_name(folder):
    data = ClickData.open(folder)
    assert (len(data), data.schema.rows) == (2000, 2000)
    part = data.split(0.5)[1]
    packed = pickle.dumps(part)
    assert len(packed) < 100_000, "the rows must not be copied into the pickle"
    again = pickle.loads(packed)
    assert np.array_equal(again.label, part.label)


def test_generated_data_travels_whole(data):
    again = pickle.loads(pickle.dumps(data.subset([1, 2])))
    assert np.array_equal(again.label, data.label[1:3])


def test_data_without_time_says_so(data):
    examples = data.take([0])
    timeless = ClickData(Batch(examples.numeric, examples.ids, examples.label), data.schema)
    with pytest.raises(ValueError, match=r"^time: the data was prepared without"):
        timeless.periods(1)


@pytest.mark.parametrize("fraction", [0, 1, -0.5, float("nan")])
def test_fractions_lie_between(data, fraction):
    with pytest.raises(ValueError, match=r"^fraction must lie"):
        data.split(fraction)
    with pytest.raises(ValueError, match=r"^length"):
        data.periods(0)


def test_batches_go_through_everything(data):
    assert np.concatenate([batch.label for batch in data.batches(700)]).tolist() == data.label.tolist()
