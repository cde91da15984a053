"""Processes that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.processes import Processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()
