"""The command's way in."""

from __future__ import annotations

import sys
import warnings

import pytest

from sparsedp import __version__
from sparsedp.__main__ import main


def test_the_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sparsedp", "--version"])
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main sets its own
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out == f"sparsedp {__version__}\n"
    assert warnings.formatwarning("no curves", UserWarning, "file.py", 3) == "warning: no curves\n"


def test_without_its_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "sparsedp.cli.app", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "sparsedp: typer is not installed: run pip install 'sparsedp[cli]'\n"


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sparsedp.cli.app", None)
    with pytest.raises(ModuleNotFoundError, match="cli"):
        main()
