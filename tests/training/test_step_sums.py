"""What a step sums and what it hands to the sampler: touched rows of whole tables, and single coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsedp as sdp
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import Rule, Selected
from sparsedp.training.noise import Noise
from sparsedp.training.step import StepSums, merged_rows

NOISE, DRAWN_WITH_SUMS = -1.0, 100.0


def rule_of(*selectable: TableShape, always_on: tuple[TableShape, ...] = ()) -> Rule:
    space = RowSpace(selectable=selectable, always_on=always_on)
    return sdp.DPSGD().rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1.0)


@pytest.mark.parametrize("touched", [[], [4], [0, 2, 5]])
def test_touched_rows_of_a_whole_table_are_what_the_sampler_made_of_their_sums(
    monkeypatch: pytest.MonkeyPatch, touched: list[int]
) -> None:
    """Nothing is added to noise that was drawn: sums go into the sampler, and what comes out is released."""

    def marked(out: np.ndarray, sums: np.ndarray | None, **_: Any) -> None:
        out[...] = NOISE if sums is None else sums + DRAWN_WITH_SUMS

    monkeypatch.setattr("sparsedp.training.noise.release_on_lattice", marked)
    rule = rule_of(always_on=(TableShape("table", 6, 2),))
    sums = np.arange(2.0 * len(touched)).reshape(-1, 2)
    found = Noise(rule, 12, NoiseSource(0)).release_table(6, 2, np.array(touched, np.int64), sums)
    expected = np.full((6, 2), NOISE)
    expected[touched] = sums + DRAWN_WITH_SUMS
    np.testing.assert_array_equal(found, expected)


TABLES = (TableShape("first", 5, 3), TableShape("second", 4, 2))
CHOSEN = {"first": [(1, 0), (1, 2), (4, 1)], "second": [(0, 1), (3, 0)]}
COORDINATES = np.array([3, 5, 13, 15 + 1, 15 + 6])


def chosen_coordinates() -> StepSums:
    return StepSums(rule_of(*TABLES), Selected(np.array([1, 4, 5, 8]), COORDINATES), {})


def test_masks_flag_the_selected_coordinates_and_no_others() -> None:
    sums = chosen_coordinates()
    for place, table in enumerate(TABLES):
        rows, mask = sums.masks[place]
        assert [(int(rows[n]), int(c)) for n, c in np.argwhere(mask == 1.0)] == CHOSEN[table.name]
        assert np.count_nonzero(mask) == len(CHOSEN[table.name])


def test_coordinates_that_are_not_selected_get_no_noise_and_release_no_sums() -> None:
    sums = chosen_coordinates()
    sums._flat[...] = 1e6
    released = sums.release(NoiseSource(1))
    assert released.gradient_size == COORDINATES.size
    for table in TABLES:
        gradient = released.tables[table.name]
        found = gradient.values.numpy()  # type: ignore[union-attr]
        rows = gradient.ids.tolist()  # type: ignore[union-attr]
        assert [(rows[n], int(c)) for n, c in np.argwhere(found != 0)] == CHOSEN[table.name]


def test_sums_of_pieces_are_merged_row_by_row_in_float64() -> None:
    tiny = 1.0 + 2.0**-40
    first = (np.array([1, 4]), np.array([[tiny, 2.0], [3.0, 4.0]]))
    second = (np.array([0, 4]), np.array([[5.0, 6.0], [2.0**-40, tiny]]))
    rows, sums = merged_rows(first, second)
    assert rows.tolist() == [0, 1, 4]
    assert sums.dtype == np.float64
    assert sums.tolist() == [[5.0, 6.0], [tiny, 2.0], [3.0 + 2.0**-40, 4.0 + tiny]]
    nothing = (np.empty(0, dtype=np.int64), np.empty((0, 2)))
    for merged in (merged_rows(nothing, first), merged_rows(first, nothing)):
        assert merged[0].tolist() == [1, 4]
        assert merged[1].tolist() == first[1].tolist()
