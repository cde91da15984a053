from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).parents[1] / "support" / "other_device_cases.py"


def test_a_step_runs_where_the_parameters_live():
    """Every layer rule, selection and sparse optimiser on a device that stands in for an accelerator."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(CASES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-1000:]
