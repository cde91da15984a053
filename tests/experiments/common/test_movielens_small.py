import numpy as np
import pytest

from experiments.common.movielens_small import MOVIES, NAME, RATINGS, movielens
from sparsedp.cli.data_sets import find_data_set


def test_ratings_come_with_the_genres_of_their_films_in_time_order(tmp_path):
    (tmp_path / "movies.csv").write_text('movieId,title,genres\n1,"Toy, Story",Comedy|Drama\n2,Heat,Drama\n')
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,2,3.5,30\n1,1,4.0,10\n2,3,5.0,20\n"
    )
    data = movielens(tmp_path, tmp_path / "out")
    batch = data.take(np.arange(3))
    assert (batch.time.tolist(), batch.label.tolist()) == ([10, 20, 30], [1, 1, 0])
    assert batch.multi_hot[0].offsets.tolist() == [0, 2, 2, 3]
    assert batch.multi_hot[0].values[1] == batch.multi_hot[0].values[2]


def test_all_small_ratings(shared_data, tmp_path):
    folder = find_data_set(NAME, [RATINGS, MOVIES], shared_data)
    data = movielens(folder, tmp_path)
    assert (len(data), data.schema.malformed) == (100_836, 0)
    assert data.label.mean() == pytest.approx(0.4818, abs=1e-4)
    assert data.is_time_ordered
