import csv
import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data.lines import Separated

fields = st.lists(
    st.lists(st.text(alphabet='ab,"\n', max_size=6), min_size=1, max_size=5), min_size=1, max_size=12
)


@settings(deadline=None)
@given(fields)
def test_columns_are_counted_as_the_csv_module_counts_them(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    found = Separated(",", '"', 3).lines(text.getvalue().encode())
    assert found.columns.tolist() == [len(row) for row in rows]
    even = found.columns == 3
    kept = list(csv.reader(io.StringIO(found.keep(even).decode(), newline="")))
    assert kept == [row for row in rows if len(row) == 3]


def test_numbers_are_those_of_the_file_also_after_a_break_in_quotes():
    found = Separated(",", '"', 2).lines(b'a,b\n"c\nd",e\nf,g')
    assert found.numbers.tolist() == [0, 1, 3]
    assert found.lengths.tolist() == [4, 8, 3]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_even_means_as_many_separators_as_the_lines_need(separators):
    text = b"".join(b"\t" * count + b"\n" for count in separators)
    form = Separated("\t", None, 3)
    assert form.is_even(text, len(separators)) == (sum(separators) == 2 * len(separators))
    assert (form.lines(text).columns == np.array(separators) + 1).all()


def test_an_empty_text_has_no_lines():
    assert len(Separated(",", None, 2).lines(b"").columns) == 0
