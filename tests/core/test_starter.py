"""Real processes: one starts another, which starts a third; the first is ended in every way."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

WATCH = (
    "import subprocess, sys, time; from sparsedp.core.starter import end_with_starter; end_with_starter({})"
)
READY = "print('ready', flush=True); time.sleep(600)"
THIRD = f"{WATCH.format(0.3)}; {READY}"
SECOND = f"{WATCH.format('')}; subprocess.Popen([sys.executable, '-c', {THIRD!r}]); time.sleep(600)"
FIRST = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have had ignored
started = subprocess.Popen([sys.executable, "-c", {SECOND!r}], stdin=subprocess.PIPE)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_first(how: signal.Signals) -> None:
    """Their output ends when the last of them has ended."""
    first = subprocess.Popen([sys.executable, "-c", FIRST], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == b"ready\n"
    with pytest.raises(subprocess.TimeoutExpired):
        first.communicate(timeout=0.5)  # the third watches, and waits longer than its delay
    first.send_signal(how)
    first.communicate(timeout=60)
    assert first.returncode == -how


def test_without_an_end_of_the_input_nothing_ends() -> None:
    watching = f"{WATCH.format('')}; time.sleep(1); print('alive')"
    process = subprocess.Popen(
        [sys.executable, "-c", watching], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    time.sleep(0.1)
    assert process.stdout.read() == "alive\n"
    assert process.wait() == 0
