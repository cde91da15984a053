import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from sparsedp.data.hashing import CROSS, GAMMA, buckets, cross, first_words, hash_of_length, hash_strings, mix

WORD = 2**64 - 1


def reference_mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


def reference_hash(value):
    """The rule as the module's docstring words it, in plain integers."""
    if not value:
        return 0
    data = value.encode()
    state = reference_mix(len(data) * int(GAMMA) & WORD)
    for at in range(0, len(data), 8):
        state = reference_mix(state ^ int.from_bytes(data[at : at + 8], "little"))
    return state


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=40), max_size=30), st.integers(0, 30))
def test_the_hash_is_the_documented_rule(values, start):
    series = pl.Series(values, dtype=pl.String)
    assert hash_strings(series).tolist() == [reference_hash(value) for value in values]
    part = series.slice(min(start, len(values)))
    assert hash_strings(part).tolist() == [reference_hash(value) for value in values[start:]]


def test_long_values_and_several_chunks():
    values = ["x" * length for length in (1, 8, 12, 13, 16, 17, 100, 5000)] * 3
    series = pl.concat([pl.Series(values[:9]), pl.Series(values[9:])], rechunk=False)
    assert len(series.get_chunks()) == 2
    assert hash_strings(series).tolist() == [reference_hash(value) for value in values]


def test_the_hash_never_changes():
    """Prepared folders and trained tables depend on these numbers: they must not move between versions."""
    values = pl.Series(["a", "68fd1e64", "a somewhat longer value", "é"])
    assert hash_strings(values).tolist() == GOLDEN
    assert buckets(hash_strings(values), 1472).tolist() == GOLDEN_IDS


GOLDEN = [0x343E69370AD4A4EE, 0x8DDE7F02783D2F08, 0xBD0EB5CE756FD899, 0x9D1D06098468081D]
GOLDEN_IDS = [301, 816, 1087, 903]


def test_words_of_eight_bytes_hash_as_strings_do():
    values = pl.Series(["68fd1e64", "80e26c9b", "", None])
    ((lengths, words),) = first_words(values)
    assert lengths.tolist() == [8, 8, 0, 0]
    assert mix(words[:2] ^ hash_of_length(8)).tolist() == hash_strings(values)[:2].tolist()


def test_ids_fill_the_buckets_evenly_and_leave_row_zero_to_missing_values():
    rows, count = 101, 100_000
    ids = buckets(hash_strings(pl.Series([str(n) for n in range(count)])), rows)
    assert (ids.min(), ids.max()) == (1, rows - 1)
    found = np.bincount(ids, minlength=rows)[1:]
    statistic = ((found - count / 100) ** 2 / (count / 100)).sum()
    assert chi2.sf(statistic, 99) > 1e-9
    assert buckets(hash_strings(pl.Series(["", None], dtype=pl.String)), rows).tolist() == [0, 0]


def test_a_cross_depends_on_the_order_and_on_every_part():
    a, b = (hash_strings(pl.Series(values)) for values in (["x", "x", ""], ["y", "z", ""]))
    assert cross([a, b])[0] != cross([b, a])[0]
    assert cross([a, b])[0] != cross([a, b])[1]
    assert cross([a, b])[2] == 0
    assert cross([a, np.zeros(3, np.uint64)])[0] not in (0, a[0])
    start = reference_mix(2 * int(CROSS) & WORD)
    assert int(cross([a, b])[0]) == reference_mix(reference_mix(start ^ int(a[0])) ^ int(b[0]))


@pytest.mark.parametrize("rows", [-1, 0, 1, 2**31])
def test_a_table_needs_a_bucket_and_32_bit_ids(rows):
    with pytest.raises(ValueError, match=r"^rows must lie"):
        buckets(np.zeros(1, np.uint64), rows)


def test_only_strings_are_hashed():
    with pytest.raises(ValueError, match=r"^values must be a column of strings"):
        hash_strings(pl.Series([1, 2]))
