"""Pages in a real headless Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 180_000
"""Milliseconds that a busy machine may take to draw a page."""
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@contextmanager
def chromium() -> Iterator[Any]:
    """The installed browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE)
        yield browser
        browser.close()


def opened(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str], list[str]]:
    """(the page, its console errors, what it asked the network for)."""
    page = browser.new_context(**options).new_page()
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri(), timeout=PATIENCE)
    page.wait_for_selector(
        ".plot svg.main-svg" if page.locator(".plot").count() else ".chart", timeout=PATIENCE
    )
    return page, errors, requests


def marks(page: Any) -> list[int]:
    """How many lines and bars each chart has."""
    count = (
        "each => each.map(chart => chart.querySelectorAll('.trace path.js-line, .trace .point path').length)"
    )
    found: list[int] = page.eval_on_selector_all(".chart", count)
    return found


def dots(page: Any) -> list[int]:
    """How many dots each drawn chart shows at the page's width."""
    count = "each => each.map(chart => [...chart.querySelectorAll('.dot')].filter(dot => dot.getClientRects().length).length)"
    found: list[int] = page.eval_on_selector_all(".chart", count)
    return found
