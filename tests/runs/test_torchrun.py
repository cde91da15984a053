"""The whole command on several processes: none of them outlives it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.runs import config

from sparsedp.accounting import Ledger
from sparsedp.runs import RunFolder

HEARS_SIGINT = """
import signal
from sparsedp.cli.app import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have had ignored
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_processes_of_a_command_end_with_it(tmp_path: Path, how: signal.Signals) -> None:
    """Their messages end when the last of them has ended."""
    asked = config(data="generated:20000", epochs=40.0, seed=None, checkpoint_every=1)
    (tmp_path / "run.yaml").write_text(asked.to_yaml())
    command = [
        "train",
        "--config",
        str(tmp_path / "run.yaml"),
        "--out",
        str(tmp_path / "run"),
        "--nproc",
        "2",
    ]
    started = subprocess.Popen([sys.executable, "-c", HEARS_SIGINT, *command], stderr=subprocess.PIPE)
    folder, deadline = RunFolder(tmp_path / "run"), time.monotonic() + 300
    while not folder.shared_checkpoint.exists() and time.monotonic() < deadline:
        assert started.poll() is None
        time.sleep(0.2)
    started.send_signal(how)
    _, messages = started.communicate(timeout=240)
    assert started.returncode != 0, messages
    assert folder.read_json("result") is None
    charged = max(count for _, count in Ledger.read(folder.ledger).events())
    time.sleep(2)
    assert charged == max(count for _, count in Ledger.read(folder.ledger).events())
