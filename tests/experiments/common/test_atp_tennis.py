import numpy as np
import polars as pl
import pytest

from experiments.common.atp_tennis import FILE, NAME, tennis
from sparsedp.cli.data_sets import find_data_set

HEADER = (
    "tourney_id,tourney_name,surface,tourney_level,tourney_date,match_num,winner_id,loser_id,best_of,round,"
    "winner_rank,loser_rank,src\n"
)


def matches(path, games):
    lines = [
        f"t{n},Open,Clay,A,{year}0704,{n},{winner},{loser},3,R32,{rank},,atp\n"
        for n, year, winner, loser, rank in games
    ]
    path.write_text(HEADER + "".join(lines))
    return path


def test_the_order_of_the_players_is_a_fair_coin_that_ignores_who_won(tmp_path):
    games = [(n, 1990 + n % 7, 100 + n % 50, 300 + n % 71, 1 + n % 9) for n in range(4000)]
    swapped = [(n, year, loser, winner, rank) for n, year, winner, loser, rank in games]
    data = tennis(matches(tmp_path / "a.csv", games), tmp_path / "a")
    other = tennis(matches(tmp_path / "b.csv", swapped), tmp_path / "b")
    assert 0.45 < data.label.mean() < 0.55  # 4000 fair coins: beyond with chance below 1e-9
    first, second = data.take(np.arange(4000)), other.take(np.arange(4000))
    # Had the loser won, label and order of names would both turn: the coin looked at the pair alone.
    assert np.array_equal(first.label, second.label)
    assert np.array_equal(first.ids[:, 0], second.ids[:, 1])
    assert sorted(set(first.time.tolist())) == list(range(1990, 1997))


def test_ranks_go_with_their_players_and_unranked_ones_come_last(tmp_path):
    data = tennis(matches(tmp_path / "a.csv", [(n, 2000, 7, 8, 5) for n in range(50)]), tmp_path / "out")
    batch = data.take(np.arange(50))
    winner, loser = np.log1p(5), np.log1p(2500)
    for label, (first, second) in zip(batch.label, batch.numeric, strict=True):
        expected = (winner, loser) if label else (loser, winner)
        assert (first, second) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_every_match(shared_data, tmp_path):
    folder = find_data_set(NAME, [FILE], shared_data)
    data = tennis(folder, tmp_path)
    assert (len(data), data.schema.malformed) == (941_649, 0)
    assert data.label.mean() == pytest.approx(0.5, abs=0.005)
    assert (data.time.min(), data.time.max() > 2020) == (1877, True)
    assert pl.read_parquet_schema(tmp_path / data.schema.parts[0].file)["first*year"] == pl.Int32
