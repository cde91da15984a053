from __future__ import annotations

from pathlib import Path

import pytest

import sparsedp as sdp
from experiments.common.study import Study
from experiments.wide import settings
from experiments.wide.brown_examples import load
from experiments.wide.word_vectors import Setting


@pytest.mark.parametrize("setting", [*settings.ALL, *settings.AT_THREE, *settings.MANY], ids=lambda s: s.name)
def test_every_setting_has_a_private_selection_or_says_that_it_has_none(
    setting: Setting, tmp_path: Path
) -> None:
    examples = load(Study("a", tmp_path, quick=True), 100)
    if setting.selection is None:
        assert setting.name == "without privacy"
    else:
        assert setting.selection(examples, setting).is_private


def test_the_rules_of_wide_choose_single_coordinates_and_as_many(tmp_path: Path) -> None:
    examples = load(Study("a", tmp_path, quick=True), 100)
    chosen = []
    for setting in (settings.EXPONENTIAL, settings.SPARSE_VECTOR, settings.RANDOM):
        assert setting.selection is not None
        selection = setting.selection(examples, setting)
        assert isinstance(
            selection, sdp.ExponentialSelection | sdp.SparseVectorSelection | sdp.RandomSelection
        )
        chosen.append(selection.coordinates)
    assert chosen == [settings.coordinates(examples)] * 3 == [500] * 3
