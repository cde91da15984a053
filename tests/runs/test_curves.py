"""Curves where TensorBoard is installed; a warning and no folder where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparsedp.runs.curves import curves


def test_values_are_written(tmp_path: Path) -> None:
    with curves(tmp_path / "board") as board:
        board.add_scalar("auc", 0.5, 1)
    assert any((tmp_path / "board").iterdir())


def test_without_tensorboard_a_warning_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with (
        pytest.warns(UserWarning, match=r"pip install 'sparsedp\[report\]'"),
        curves(tmp_path / "board") as board,
    ):
        board.add_scalar("auc", 0.5, 1)
    assert not (tmp_path / "board").exists()
