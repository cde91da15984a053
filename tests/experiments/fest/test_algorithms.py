from __future__ import annotations

from experiments.fest.algorithms import COLOURS, TITLES
from sparsedp.runs.config import ALGORITHMS


def test_every_algorithm_has_a_title_and_a_colour_of_its_own() -> None:
    assert set(TITLES) == set(COLOURS) == set(ALGORITHMS)
    assert len(set(TITLES.values())) == len(set(COLOURS.values())) == len(ALGORITHMS)
