"""Everything that reads a file or an option: stored inputs, and some fresh ones, are taken or refused in a sentence.

`make fuzz` tries 100,000 inputs a reader; what fails there is stored in `corpus`, and stays here.
"""

from __future__ import annotations

import itertools
import random

import polars as pl
import pytest
from support.fuzz_readers import READERS
from support.fuzzing import FAULT, SEED, Fault, Reader, is_refusal

FRESH = {"command": 10}
"""How many mutated inputs, where 25 would take too long."""
REFUSED = {"cut.ledger", "deep.yaml", "swelling.yaml", "08", "11", "13", "14", "15", "19", "22", "24"}
"""Seeds that a reader refuses, for the ways that lead there."""


@pytest.mark.parametrize("name", READERS)
def test_seeds_are_taken(name: str) -> None:
    reader = READERS[name]
    for file, data in reader.corpus(SEED):
        assert reader.check(file, data) is (file not in REFUSED), file


@pytest.mark.parametrize("name", READERS)
def test_what_once_failed_does_not(name: str) -> None:
    for file, data in READERS[name].corpus(FAULT):
        READERS[name].check(file, data)


@pytest.mark.parametrize("name", READERS)
def test_a_few_fresh_inputs(name: str) -> None:
    made = READERS[name].inputs(random.Random(f"test {name}"))
    for file, data in itertools.islice(made, FRESH.get(name, 25)):
        READERS[name].check(file, data)


def _careless(_name: str, data: bytes) -> None:
    if data == b"key":
        {}["key"]
    if data == b"wrong":
        raise AssertionError
    if data == b"text":
        b"\xff".decode()
    if data == b"panic":
        raise pl.exceptions.PanicException


@pytest.mark.parametrize("data", [b"key", b"wrong", b"text", b"panic"])
def test_a_careless_reader_is_found_out(data: bytes) -> None:
    """The control: what a reader must not do is a fault."""
    reader = Reader("careless", _careless, dict)
    assert reader.check("file", b"fine")
    with pytest.raises(Fault):
        reader.check("file", data)


def test_only_the_librarys_own_sentences_are_refusals() -> None:
    for value, own in (("x", True), (object(), False)):
        try:
            if own:
                from sparsedp.core.validation import check_number

                check_number("epsilon", value)  # type: ignore[arg-type]
            else:
                int("no number")
        except ValueError as error:
            assert is_refusal(error) is own  # noqa: PT017
