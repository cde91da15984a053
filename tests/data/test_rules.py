import numpy as np
import polars as pl
import pytest

from sparsedp.data.hashing import buckets, hash_strings
from sparsedp.data.rules import KEY_BITS, HashRule, VocabularyRule, keys_of


def hashes(*values):
    return hash_strings(pl.Series(values, dtype=pl.String))


def test_a_hash_rule_is_its_buckets():
    rule = HashRule(10)
    assert rule.rows == 10
    assert rule.ids(hashes("a", "b", None)).tolist() == buckets(hashes("a", "b", None), 10).tolist()
    with pytest.raises(ValueError, match=r"^rows"):
        HashRule(1)


def test_a_vocabulary_numbers_its_keys_in_order_and_nothing_else():
    rule = VocabularyRule(keys_of(hashes("b", "a", "c")))
    assert rule.rows == 4
    assert rule.ids(hashes("a", "b", "c", "d", None, "")).tolist() == [2, 1, 3, 0, 0, 0]
    assert rule.ids(hashes()).dtype == np.int32


def test_a_repeated_key_keeps_its_first_place():
    assert VocabularyRule(keys_of(hashes("a", "b", "a"))).ids(hashes("a", "b")).tolist() == [1, 2]


def test_an_empty_vocabulary_knows_nothing():
    rule = VocabularyRule(np.empty(0, np.int64))
    assert (rule.rows, rule.ids(hashes("a")).tolist()) == (1, [0])


def test_a_missing_value_is_not_the_key_zero():
    assert VocabularyRule(np.array([0])).ids(np.zeros(1, np.uint64)).tolist() == [0]


def test_descriptions_tell_rules_apart():
    first, second = VocabularyRule(np.array([1, 2])), VocabularyRule(np.array([2, 1]))
    assert len({first.description, second.description, HashRule(3).description, HashRule(4).description}) == 4


def test_keys_are_the_upper_bits():
    assert keys_of(np.array([2**64 - 1, 2**24 - 1], np.uint64)).tolist() == [2**KEY_BITS - 1, 0]
