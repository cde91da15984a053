import numpy as np
import pytest

from experiments.common.flights_3m import FILE, NAME, flights
from sparsedp.cli.data_sets import find_data_set


@pytest.mark.slow
def test_three_million_flights(shared_data, tmp_path):
    folder = find_data_set(NAME, [FILE], shared_data)
    data = flights(folder, tmp_path)
    assert (len(data), data.schema.malformed) == (3_000_000, 0)
    assert 1.29e6 < sum(data.schema.vocabulary_sizes) < 1.33e6
    assert data.label.mean() == pytest.approx(0.199685)
    assert data.is_time_ordered
    assert len(data.periods(7 * 86400)) == 26
    batch = data.take(np.arange(5))
    # The first flight: 2001-01-01 00:01, 33 minutes late, 2176 miles.
    assert batch.label[0] == 1
    assert batch.numeric[0, 0] == pytest.approx(np.log1p(2176))
    assert batch.time[0] == 978_307_260
    assert len(np.unique(batch.ids[:, 2])) == 1, "all five left in the same minute"
