"""The core alone trains a model; each extra that is missing is one line; the wheel has all of the package."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.hidden import run_without

from sparsedp.core.extras import EXTRAS

ROOT = Path(__file__).parents[1]
ALL = [module for modules in EXTRAS.values() for module in modules]
COMMAND = "from sparsedp.__main__ import main; main()"

NAMES = {
    "data": ["sparsedp.data:ClickData", "sparsedp.data:prepare", "sparsedp.runs:train"],
    "cli": ["sparsedp.runs:RunConfig"],
    "convex": ["sparsedp.convex:PrivateLogisticRegression", "sparsedp.convex.estimators:ridge"],
}
"""What cannot be had without an extra."""

TRY_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    module, name = name.split(":")
    try:
        getattr(importlib.import_module(module), name)
    except ImportError as error:
        print(f"{type(error).__name__}: {error}")
"""

COMMANDS = [
    ("data", f"prepare criteo {__file__} --out clicks"),
    ("cli", "plan --help"),
    ("cli", ""),
    *[
        pytest.param(extra, command, marks=pytest.mark.slow)
        for extra, command in [
            ("data", "demo"),
            ("data", "train --data generated:100 --algorithm dp-sgd --epsilon 1 --out run"),
            ("data", "evaluate run"),
            ("data", f"predict run --input {__file__} --out scores.csv"),
            ("data", "export run --out exported"),
            ("data", "sweep sweep.yaml --out runs"),
            ("data", "bench prepare"),
            ("report", "demo"),
            ("report", "reproduce fest-knobs"),
            ("convex", "bench logistic"),
        ]
    ],
]
"""An extra, and a command that needs it."""


def one_line(extra: str) -> str:
    return rf"\w+ is not installed: run pip install 'sparsedp\[{extra}\]'\n"


def readme_snippet() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_core_alone_has_every_name_of_the_front_page(tmp_path: Path) -> None:
    code = "import sparsedp, sparsedp.models, sparsedp.convex as c; from sparsedp.data import Batch, Schema\n"
    code += "[getattr(sparsedp, name) for name in sparsedp.__all__]; c.private_sparse_mean, c.rates"
    done = run_without(ALL, code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_readme_trains_a_model_with_the_core_alone(tmp_path: Path) -> None:
    done = run_without(ALL, readme_snippet(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-DP, add-or-remove-one adjacency" in done.stdout


@pytest.mark.parametrize("extra", NAMES)
def test_a_name_without_its_extra_says_what_to_install(extra: str, tmp_path: Path) -> None:
    done = run_without(EXTRAS[extra], TRY_EACH, *NAMES[extra], cwd=tmp_path)
    assert re.fullmatch(f"(MissingExtra: {one_line(extra)}){{{len(NAMES[extra])}}}", done.stdout), done.stdout
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("extra", "command"), COMMANDS)
def test_a_command_without_its_extra_is_one_line(extra: str, command: str, tmp_path: Path) -> None:
    done = run_without(EXTRAS[extra], COMMAND, *command.split(), cwd=tmp_path)
    assert re.fullmatch(f"sparsedp: {one_line(extra)}", done.stderr), done.stderr
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_the_wheel_has_the_package_and_its_scripts_but_no_tests(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("sparsedp-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "sparsedp = sparsedp.__main__:main" in archive.read(entry_points).decode()
        archive.extractall(tmp_path / "installed")
    source = ROOT / "src"
    expected = {str(path.relative_to(source)) for path in (source / "sparsedp").rglob("*.py")}
    assert (
        expected
        | {"sparsedp/py.typed", "sparsedp/_benchmarks/pctr_step.py", "sparsedp/_experiments/fest/utility.py"}
        <= names
    )
    assert not [name for name in names if "test" in Path(name).name or name.startswith("tests")]
    where = "import sparsedp; from sparsedp.cli import scripts; print(sparsedp.__file__, scripts.folder('benchmarks'))"
    done = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [
        str(tmp_path / "installed/sparsedp/__init__.py"),
        str(tmp_path / "installed/sparsedp/_benchmarks"),
    ]
