import numpy as np
import polars as pl
import pytest

from sparsedp.accounting import BudgetExceeded, GaussianDpEvent
from sparsedp.accounting.ledger import Ledger
from sparsedp.data import PartitionSelection, PublicValues, Vocabulary, learn_privately, learn_public
from sparsedp.data.hashing import hash_strings
from sparsedp.data.label import Label
from sparsedp.data.rules import keys_of
from sparsedp.data.schema import SourcePosition
from sparsedp.data.table import Columns, Table
from sparsedp.data.vocabulary import FILE, count_keys
from sparsedp.randomness import NoiseSource

COUNTS = {"often": 3000, "sometimes": 900, "once": 1}


@pytest.fixture
def reader(tmp_path):
    values = [value for value, count in COUNTS.items() for _ in range(count)] + [""] * 99
    path = tmp_path / "data.csv"
    pl.DataFrame({"click": [0] * len(values), "word": values, "same": "x"}).write_csv(path)
    columns = Columns(Label.parse("click"), categorical=("same", "word"))
    return Table((path,), columns, block_bytes=4000)


def keys(*values):
    return keys_of(hash_strings(pl.Series(values, dtype=pl.String))).tolist()


def selection(features=2):
    return PartitionSelection(1.0, 1e-6, features, false_positives=0.001)


def test_frequent_values_are_listed_and_the_price_is_in_the_ledger(reader, tmp_path):
    with Ledger.open(tmp_path / "ledger") as ledger:
        learned = learn_privately(reader, tmp_path / "out", ["same", "word"], selection(), ledger=ledger)
        assert ledger.events() == [(selection().event, 1)]
    assert learned.keys["same"].tolist() == keys("x")
    assert sorted(learned.keys["word"].tolist()) == sorted(keys("often", "sometimes"))
    assert "(1, 1e-06)-DP" in str(learned.statement)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [FILE]


def test_a_learned_vocabulary_is_kept_and_not_paid_for_twice(reader, tmp_path):
    with Ledger.open(tmp_path / "ledger") as ledger:
        first = learn_privately(reader, tmp_path / "out", ["word"], selection(1), ledger=ledger)
        second = learn_privately(reader, tmp_path / "out", ["word"], selection(1), ledger=ledger)
        assert ledger.events() == [(selection(1).event, 1)]
        with pytest.raises(ValueError, match=r"learned from other files or with other settings"):
            learn_privately(reader, tmp_path / "out", ["same"], selection(1), ledger=ledger)
    assert second.keys["word"].tolist() == first.keys["word"].tolist()
    assert second.statement == first.statement
    with Ledger.open(tmp_path / "another") as ledger:
        learn_privately(reader, tmp_path / "out", ["word"], selection(1), ledger=ledger)
        assert ledger.events() == [(selection(1).event, 1)], "a kept list must be in the ledger that is named"


def test_nothing_is_drawn_when_the_budget_is_spent(reader, tmp_path):
    with Ledger.open(tmp_path / "ledger", budget=(0.5, 1e-6)) as ledger:
        with pytest.raises(BudgetExceeded):
            learn_privately(reader, tmp_path / "out", ["word"], selection(1), ledger=ledger)
        assert ledger.events() == []
    assert not (tmp_path / "out" / FILE).exists()


def test_the_ledger_is_written_before_noise_is_drawn(reader, tmp_path):
    """A source that fails when it is asked for noise: by then the event must be on disk."""

    class Broken:
        is_private = True

        @property
        def selection(self):
            raise RuntimeError("no noise")

    with Ledger.open(tmp_path / "ledger") as ledger, pytest.raises(RuntimeError, match=r"no noise"):
        learn_privately(reader, tmp_path / "out", ["word"], selection(1), ledger=ledger, noise=Broken())
    assert Ledger.read(tmp_path / "ledger").events() == [(selection(1).event, 1)]


def test_a_seeded_source_is_said_not_to_be_private(reader, tmp_path):
    with Ledger.open(tmp_path / "ledger") as ledger:
        learned = learn_privately(
            reader, tmp_path / "out", ["word"], selection(1), ledger=ledger, noise=NoiseSource(seed=1)
        )
    assert "NOT PRIVATE" in str(learned.statement)


def test_an_interrupted_count_goes_on(reader, tmp_path, monkeypatch):
    monkeypatch.setattr("sparsedp.data.vocabulary.ValueCounts.__init__.__defaults__", (2,))
    seen = []

    def stop(done):
        seen.append(done)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_public(reader, tmp_path / "out", ["word"], PublicValues(1, 1), progress=stop)
    again = []
    learned = learn_public(reader, tmp_path / "out", ["word"], PublicValues(1, 1), progress=again.append)
    assert 0 < len(again) < len(list(reader.blocks(SourcePosition())))
    assert sorted(learned.keys["word"].tolist()) == sorted(keys(*COUNTS))


def test_public_values_need_their_count(reader, tmp_path):
    learned = learn_public(reader, tmp_path / "out", ["word"], PublicValues(2, 1))
    assert sorted(learned.keys["word"].tolist()) == sorted(keys("often", "sometimes"))
    assert learned.statement is None


def test_a_feature_of_which_nothing_is_listed_is_still_a_feature(reader, tmp_path):
    for _ in range(2):
        learned = learn_public(reader, tmp_path / "out", ["word", "same"], PublicValues(4000, 2))
        assert {name: len(found) for name, found in learned.keys.items()} == {"word": 0, "same": 1}


def test_the_selection_must_be_for_as_many_features(reader, tmp_path):
    with pytest.raises(ValueError, match=r"^selection is for 2 features, 1 are to be learned"):
        learn_public(reader, tmp_path / "out", ["word"], PublicValues(1, 2))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_files_of_values_number_them_in_their_order(tmp_path, suffix):
    path = tmp_path / f"words{suffix}"
    frame = pl.DataFrame({"feature": ["a", "b", "a"], "value": ["x", "y", "z"]})
    if suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if suffix == ".tsv" else ",")
    rules = Vocabulary.read(path).rules
    assert rules["a"].ids(hash_strings(pl.Series(["z", "x", "y"]))).tolist() == [2, 1, 0]
    assert rules["b"].rows == 2


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("name,value\na,b\n")
    with pytest.raises(ValueError, match=r"^vocabulary: .* must have the columns feature and value"):
        Vocabulary.read(path)


def test_keys_of_different_features_stay_apart():
    column = hash_strings(pl.Series(["a", "a", None]))
    counts = count_keys([column, column])
    assert counts.ids.tolist() == [*keys("a"), keys("a")[0] + 2**40]
    assert counts.values.tolist() == [2, 2]
    assert counts.ids.dtype == np.int64
    assert selection(2).event == GaussianDpEvent(selection(2).std / np.sqrt(2))
