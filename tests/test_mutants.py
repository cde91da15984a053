"""The list of mutants is well-formed, and some of them are tried for real."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "mutants.py"


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_each_mutant_changes_one_place_and_names_a_test(mutants: ModuleType) -> None:
    listed = mutants.read()
    assert not [*mutants.faults(listed)]
    assert len(listed) >= 150
    assert {
        "training",
        "clipping",
        "rows",
        "selection",
        "randomness",
        "mechanisms",
        "accounting",
        "planning",
    } <= {mutant.room for mutant in listed}


def test_what_is_wrong_with_a_list_is_said(mutants: ModuleType) -> None:
    good = mutants.read()[0]
    wrong = [
        mutants.Mutant(good.name, good.file, "no such text", "", good.test),
        mutants.Mutant(good.name, "training/nowhere.py", good.old, good.new, good.test),
        mutants.Mutant("same", good.file, good.old, good.old, good.test),
        mutants.Mutant("test", good.file, good.old, good.new, "tests/test_mutants.py::test_nothing"),
    ]
    faults = [*mutants.faults([good, *wrong])]
    assert len(faults) == 5
    assert faults[0] == f"{good.name!r} stands 3 times"


def test_loops_that_may_hold_the_mutant_are_compiled_anew(mutants: ModuleType) -> None:
    stale = mutants._stale_loops(mutants.Mutant("", "training/batch.py", "", "", ""))
    files = ["a.cpython-311.pyc", "a.f-1.py311.nbi", "a.f-1.py311.1.nbc"]
    for room, expected in (
        ("randomness", []),
        ("rows", []),
        ("training", files[1:]),
        ("distributed", files[1:]),
    ):
        assert stale(str(mutants.SOURCE / "sparsedp" / room / "__pycache__"), files) == {*expected}, room


TRY = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {scripts!r})
import mutants
mutants._import_heavy()
few = [mutant for mutant in mutants.read() if mutant.file == "training/account.py"][:3]
for _, by in mutants.tried(few, workers=2, quick=True):
    print("killed:", by, flush=True)
with tempfile.TemporaryDirectory() as folder:
    unharmed = mutants._copy_with(mutants.Mutant("", few[0].file, few[0].old, few[0].old, few[0].test), Path(folder))
    print("unharmed:", mutants.first_failure(unharmed, [few[0].test], 60))
"""


def test_a_few_mutants_are_killed_and_the_source_as_it_is_is_not() -> None:
    """In a process of its own, as `make mutants` runs."""
    code = TRY.format(scripts=str(SCRIPT.parent))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["killed"] * 3 + ["unharmed"], done.stdout + done.stderr
    assert all("tests/training/test_" in line and "::" in line for line in lines[:3])
    assert lines[3] == "unharmed: None"


def test_a_survivor_fails_unless_its_entry_says_why(
    mutants: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = [mutants.read()[0]] * 40
    explained = dataclasses.replace(listed[0], survives="a rounding that nobody can see")
    monkeypatch.setattr(mutants, "_import_heavy", lambda: None)
    monkeypatch.setattr(mutants, "faults", lambda listed: [])
    monkeypatch.setattr(sys, "argv", ["mutants.py"])
    for odd, status in ((explained, 0), (listed[0], 1)):
        monkeypatch.setattr(mutants, "read", lambda: listed)
        results = [*((mutant, "a test") for mutant in listed[1:]), (odd, None)]
        monkeypatch.setattr(mutants, "tried", lambda *_given, results=results: iter(results))
        assert mutants.main() == status
        assert "39 of 40 killed" in capsys.readouterr().out
