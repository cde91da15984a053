"""Two hosts that are really apart: a delay between them, and one of them cut off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import distributed_killed
from support.distributed_killed import DELTA, TARGET, draws
from support.network import TwoHosts, missing_rights

from sparsedp.accounting import Ledger

SCRIPT = Path(distributed_killed.__file__)


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    if reason := missing_rights():
        pytest.skip(reason)
    made = TwoHosts(delay_milliseconds=20)
    yield made
    made.close()


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_an_error_within_a_minute_and_a_restart_works(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    assert hosts.round_trip() > 40
    running = hosts.start(SCRIPT, tmp_path, 29571, PAUSE="0.2")
    marks = tmp_path / "draws-0"
    deadline = time.monotonic() + 120
    while not (marks.exists() and marks.stat().st_size >= 5):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in running), running[0].communicate()[0]
        time.sleep(0.05)
    hosts.cut()
    began = time.monotonic()
    output, _ = running[0].communicate(timeout=120)
    assert time.monotonic() - began < 60
    assert "PeerLost" in output
    assert "out of reach" in output
    assert running[0].returncode != 0
    running[1].communicate(timeout=120)
    assert running[1].returncode != 0
    hosts.join()
    finished = hosts.start(SCRIPT, tmp_path, 29572)
    for process in finished:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    result = json.loads((tmp_path / "result-0").read_text())
    assert result["steps"] == result["planned"] or result["stopped"]
    ledger = Ledger.read(tmp_path / "run.ledger")
    assert sum(count for _, count in ledger.events()) >= max(draws(tmp_path))
    assert ledger.statement(DELTA).epsilon <= TARGET
