from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
