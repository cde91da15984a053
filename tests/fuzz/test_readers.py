"""Everything that reads a file or an option: stored inputs, and some fresh ones, are taken or refused in a sentence.

`make fuzz` tries 100,000 inputs a reader; what fails there is stored in `corpus`, and stays here.
"""

from __future__ import annotations

import csv
import io
import itertools
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuzz_data import place
from support.fuzz_readers import READERS
from support.fuzzing import FAULT, SEED, Fault, Reader, is_refusal
from support.hidden import run_without

from sparsedp.data.hashing import hash_strings
from sparsedp.data.label import Label
from sparsedp.data.scales import Scale
from sparsedp.data.schema import SourcePosition
from sparsedp.data.table import Columns, Table

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


SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz.py"
GUIDED = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def test_without_atheris_one_line_says_what_to_install(tmp_path: Path) -> None:
    done = run_without(["atheris"], GUIDED, str(SCRIPT), "--engine", "atheris", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "atheris is not installed: run pip install '.[fuzz]'\n"


def test_atheris_gives_a_reader_so_many_inputs(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    options = ["--engine", "atheris", "--reader", "texts", "--inputs", "50"]
    done = subprocess.run([sys.executable, SCRIPT, *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("texts: 50 inputs, ")


VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("01"), VALUES, st.floats(-1e6, 1e6)), min_size=1, max_size=8))
def test_rows_that_are_written_are_the_rows_that_are_read(rows: list[tuple[str, str, float]]) -> None:
    """Whatever the values hold: separators, quotes, line breaks, any letters."""
    text = io.StringIO()
    written = csv.writer(text, lineterminator="\n")
    written.writerows([("click", "site", "price"), *rows])
    path = place("written.csv", text.getvalue().encode())
    reader = Table.of(
        [path], Columns(Label.parse("click"), ("price",), ("site",), scales={"price": Scale(-1.0, 1.0)})
    )
    found = [reader.read(block) for block in reader.blocks(SourcePosition())]
    assert not [line for examples in found for line in examples.malformed]
    plain = pl.concat([examples.plain for examples in found])
    assert plain["label"].to_list() == [float(label) for label, _, _ in rows]
    hashes = np.concatenate([examples.hashes[0] for examples in found])
    assert hashes.tolist() == hash_strings(pl.Series([site for _, site, _ in rows])).tolist()


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
