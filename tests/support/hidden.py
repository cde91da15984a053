"""A Python process in which some packages are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import sparsedp

SOURCE = Path(sparsedp.__file__).parents[1]


def run_without(
    modules: Iterable[str], code: str, *arguments: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new process where importing ``modules`` fails, as if they were not installed.

    The process's own children hide them too: the hiding is done by a ``sitecustomize`` module on their path.
    """
    hide = f"import sys\nfor name in {sorted(modules)!r}:\n    sys.modules[name] = None\n"
    folder = cwd / "hidden"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(hide)
    paths = os.pathsep.join([str(folder), str(SOURCE)])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
