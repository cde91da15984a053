"""docs/data-sets.md: every file that a loader reads is on it, with the size and checksum of the file itself."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from experiments.common import atp_tennis, brown, flights_3m, movielens_small, nycflights13
from experiments.fest import text_data
from sparsedp.cli import scripts

PAGE = (Path(__file__).parents[2] / "docs" / "data-sets.md").read_text()
LINES = {
    name: (int(size.replace(",", "")), checksum)
    for name, size, checksum in re.findall(r"^\| `(\S+/\S+)` \| ([\d,]+) \| `([0-9a-f]{64})` \|$", PAGE, re.M)
}
LOADERS = {
    flights_3m.NAME: [flights_3m.FILE],
    atp_tennis.NAME: [atp_tennis.FILE],
    movielens_small.NAME: [movielens_small.RATINGS, movielens_small.MOVIES],
    nycflights13.NAME: [nycflights13.FILE],
    brown.NAME: [brown.FILE],
    text_data.SOURCE: text_data.FILES,
}


def test_the_page_has_the_files_of_every_loader_and_no_others() -> None:
    loaders = LOADERS | scripts.load("benchmarks", "logistic").FILES
    assert set(LINES) == {f"{name}/{file}" for name, files in loaders.items() for file in files}
    assert all(f"\n## {name}\n" in PAGE for name in loaders)


@pytest.mark.parametrize("name", LINES)
def test_sizes_and_checksums_are_those_of_the_files(name: str, shared_data: Path) -> None:
    content = (shared_data / name).read_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()) == LINES[name]


def test_every_study_that_needs_data_is_on_the_page() -> None:
    for name in scripts.names("experiments"):
        needs = getattr(scripts.load("experiments", name), "DATA_SETS", ())
        for each in needs:
            if not each.source.startswith("generated:"):
                section = PAGE.split(f"\n## {each.source}\n")[1].split("\n## ")[0]
                assert f"`{name}`" in section, (name, each.source)
