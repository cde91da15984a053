from __future__ import annotations

from pathlib import Path

from support.hidden import run_without

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data.click_process import ClickProcess
from sparsedp.planning.tables import criteo_tables


def test_every_user_of_the_sizes_has_the_same_ones() -> None:
    assert tuple(table.rows for table in criteo_tables()) == VOCABULARY_SIZES
    assert ClickProcess().vocabulary_sizes == VOCABULARY_SIZES


def test_they_are_there_without_polars(tmp_path: Path) -> None:
    code = "from sparsedp.data import VOCABULARY_SIZES; print(sum(VOCABULARY_SIZES))"
    assert run_without(["polars"], code, cwd=tmp_path).stdout == "338782\n"
