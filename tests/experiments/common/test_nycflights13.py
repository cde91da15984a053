import numpy as np
import pytest

from experiments.common.nycflights13 import FILE, NAME, nyc_flights
from sparsedp.cli.data_sets import find_data_set

HEADER = "time_hour,carrier,flight,tailnum,origin,dest,distance,hour,month,arr_delay\n"


def test_late_flights_are_the_label_and_cancelled_ones_are_left_out(tmp_path):
    flights = tmp_path / "flights.csv"
    flights.write_text(
        HEADER
        + "2013-01-01T10:00:00Z,UA,1545,N14228,EWR,IAH,1400,5,1,11.0\n"
        + "2013-01-01T11:00:00Z,AA,1141,N619AA,JFK,MIA,1089,6,1,33.0\n"
        + "2013-01-01T12:00:00Z,AA,1141,N619AA,JFK,MIA,1089,7,1,\n"
    )
    data = nyc_flights(flights, tmp_path / "out")
    batch = data.take(np.arange(2))
    assert (len(data), data.schema.malformed, batch.label.tolist()) == (2, 1, [0, 1])


def test_all_flights(shared_data, tmp_path):
    data = nyc_flights(find_data_set(NAME, [FILE], shared_data), tmp_path)
    assert (len(data), data.schema.malformed) == (327_346, 9_430)
    assert data.label.mean() == pytest.approx(0.237, abs=1e-3)
