"""The list of dependencies is complete, well-formed, and has no licence that would bind users."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "sbom.py"


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sbom"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_no_licence_extends_to_users_and_the_page_has_every_package(sbom: ModuleType) -> None:
    found = sbom.packages()
    assert not [*sbom.faults(found, sbom.PAGE.read_text())]
    assert {"torch", "numpy", "polars", "typer"} <= {each.name for each in found if each.direct}
    assert "not stated" not in {each.licence for each in found if each.direct}


def test_what_is_wrong_is_said(sbom: ModuleType) -> None:
    good = next(each for each in sbom.packages() if each.direct)
    wrong = [
        replace(good, licence="GPL-3.0-only"),
        replace(good, licence="GNU AGPL v3"),
        replace(good, name="new"),
    ]
    assert len([*sbom.faults(wrong, sbom.PAGE.read_text())]) == 3
    assert not [*sbom.faults([replace(good, licence="LGPL-2.1-or-later")], sbom.PAGE.read_text())]


def test_the_list_is_cyclonedx(sbom: ModuleType) -> None:
    found = sbom.packages()
    bill = json.loads(json.dumps(sbom.bill(found)))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert len(bill["components"]) == len(found)
    assert bill == sbom.bill(found)  # the same every time
    for each in bill["components"]:
        assert each["purl"].startswith("pkg:pypi/")
        assert each["version"] in each["purl"]
        assert each["licenses"][0]["license"]["name"]
