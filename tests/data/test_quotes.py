import csv
import io

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data.quotes import Quotes

QUOTES = Quotes(",")


def values(text):
    """What a parser that counts quotes reads."""
    return list(csv.reader(io.StringIO(text.decode(), newline=""), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'1,5" pipe\n0,b\n1,c\n', [["1", '5" pipe'], ["0", "b"], ["1", "c"]]),
        (b'1,5" pipe\r\n0,6"\r\n1,c\r\n', [["1", '5" pipe'], ["0", '6"'], ["1", "c"]]),
        (b'1,"open\n0,b\n1,c', [["1", '"open'], ["0", "b"], ["1", "c"]]),
        (b'1,"open\n0,"b"\n', [["1", '"open'], ["0", "b"]]),
        (b'1,"a"b,c\n', [["1", '"a"b', "c"]]),
        (b'1, "a,b"\n', [["1", ' "a', 'b"']]),
        (b'"two\nlines",5"\n', [["two\nlines", '5"']]),
        (b'5",\n,"', [['5"', ""], ["", '"']]),
        (b'"""x",5"\r', [['"x', '5"']]),
    ],
)
def test_a_quote_encloses_only_where_a_value_begins_and_ends(text, expected):
    closed = QUOTES.closed(text)
    assert values(closed) == expected
    assert closed.count(b"\n") == text.count(b"\n")
    read = pl.read_csv(
        closed, has_header=False, schema=dict.fromkeys("abc"[: len(expected[0])], pl.String), quote_char='"'
    )
    assert [[value or "" for value in row] for row in read.rows()] == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(st.text(alphabet='ab,"\n', max_size=6), min_size=1, max_size=5), min_size=1, max_size=9)
)
def test_what_a_writer_quotes_is_left_alone(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    assert QUOTES.closed(text.getvalue().encode()) == text.getvalue().encode()


@settings(deadline=None, max_examples=400)
@given(st.text(alphabet='ab,"\r\n', max_size=30), st.text(alphabet='ab,"\n', max_size=30))
def test_what_goes_on_does_not_change_the_lines_before(first, more):
    begun, whole = first.encode(), (first + more).encode()
    end = QUOTES.last_line_end(begun)
    assert begun[:end].endswith(b"\n") or not end
    assert QUOTES.closed(whole) == QUOTES.closed(begun[:end]) + QUOTES.closed(whole[end:])


@settings(deadline=None, max_examples=400)
@given(st.text(alphabet='ab,"\r\n', max_size=40))
def test_closed_quotes_can_be_counted(text):
    closed = QUOTES.closed(text.encode())
    assert QUOTES.closed(closed) == closed
    assert closed.count(b'"') % 2 == 0
    assert closed.count(b"\n") == text.count("\n")


def test_a_text_waits_only_for_a_value_that_may_be_closed():
    assert QUOTES.last_line_end(b'1,5" pipe\n0,b\n') == 14
    assert QUOTES.last_line_end(b'0,b\n1,"open\n0,b\n') == 4
    assert QUOTES.last_line_end(b'0,5"\n1,"open\n0,"b"\n1,"more\n2') == 19
    assert Quotes("\t").last_line_end(b'5"\t,"\n"a\n') == 6
