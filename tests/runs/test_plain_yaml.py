"""Settings of strangers are plain values of a bounded size."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from sparsedp.runs import plain_yaml
from sparsedp.runs.plain_yaml import MOST_VALUES, parse_yaml, read_yaml


def test_plain_values_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &x [1, 2.5]\nb: *x\nc: {d: é}\n", encoding="utf-8")
    assert read_yaml(tmp_path / "a.yaml") == {"a": [1, 2.5], "b": [1, 2.5], "c": {"d": "é"}}


def swelling(levels: int) -> str:
    """Ten times as many values with every line."""
    names = "abcdefghijklmnop"[: levels + 1]
    repeated = [(here, ", ".join([f"*{before}"] * 10)) for before, here in itertools.pairwise(names)]
    lines = [f"{here}: &{here} [{values}]" for here, values in repeated]
    return "\n".join(["a: &a [x]", *lines])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "here is not YAML"),
        ("a: 2001-99-99", "here is not YAML: month must be"),
        ("a: !!int ''", "here is not YAML"),
        ("!!python/object/apply:os.getcwd []", "here is not YAML: could not determine a constructor"),
        (swelling(9), f"here has more than {MOST_VALUES:,} values"),
        ("a: &a [*a]", "here has a value that contains itself"),
        ("a: " + "[" * 5000, "here is larger or nested deeper"),
        ("- " * 150 + "a", "here is nested more than 100 deep"),
        ("- " * 5000 + "a", "here is not YAML"),
        ("- " * 400_000, "here is not YAML"),  # libyaml's own loader ends the process here
        ('a: "\\ud800"', "here (has a text that is not Unicode|is not YAML: while parsing)"),
        ("#" * 1_000_001, "here is larger or nested deeper"),
    ],
)
def test_others_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_yaml(text, "here")


def test_repeated_values_are_allowed() -> None:
    assert len(parse_yaml(swelling(4), "here")["e"]) == 10


def test_without_libyaml_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &x [1, 2.5, 'it''s', ~, 2020-01-02]\nb: *x\nc: {d: é, <<: {e: 0x1F}}\nf: |\n  two\n  lines\n"
    read = parse_yaml(text, "here")
    assert read["c"] == {"d": "é", "e": 31}
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    monkeypatch.setattr(plain_yaml, "LOADER", plain_yaml._loader())
    assert plain_yaml.LOADER is yaml.SafeLoader
    assert parse_yaml(text, "here") == read
