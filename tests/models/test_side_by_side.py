"""Rows side by side are those of the tables; a table that something is attached to is told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparsedp.clipping.hooks import ForwardWrapper
from sparsedp.models.side_by_side import SideBySide, is_plain

WIDTHS = (1, 3, 4, 8, 11)
ROWS = 20


def tables() -> list[nn.Embedding]:
    torch.manual_seed(0)
    return [nn.Embedding(ROWS, width) for width in WIDTHS]


@pytest.mark.parametrize("scale", [(1.0,) * 5, (0.3,) * 5, (20.0, 1.0, 0.3, 7.0, 2.0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_those_of_the_tables_bit_for_bit(scale: tuple[float, ...], order: str) -> None:
    ids = np.random.default_rng(1).integers(0, ROWS, (50, len(WIDTHS))).astype(np.int32, order=order)
    rows = SideBySide(tables(), scale)
    out = np.full((60, rows.width + 2), np.nan, np.float32)
    rows.write(ids, out)
    wide = torch.from_numpy(ids.astype(np.int64))
    expected = torch.cat([table(wide[:, n]) * scale[n] for n, table in enumerate(tables())], dim=1)
    np.testing.assert_array_equal(out[:50, : rows.width], expected.detach().numpy())
    assert np.isnan(out[50:]).all()
    assert np.isnan(out[:, rows.width :]).all()


@pytest.mark.parametrize("wrong", [-1, ROWS, 2**31 - 1])
def test_ids_outside_a_table_are_refused(wrong: int) -> None:
    ids = np.zeros((4, len(WIDTHS)), np.int32)
    ids[2, 3] = wrong
    with pytest.raises(IndexError, match="ids: table 3 has rows 0 to 19 only"):
        SideBySide(tables(), [1.0] * len(WIDTHS)).write(ids, np.empty((4, sum(WIDTHS)), np.float32))


class Doubled(nn.Embedding):
    pass


class Wrapper(ForwardWrapper):
    def __call__(self, *args: object) -> object:
        return self.original_forward(*args)


def test_what_is_attached_to_a_table_is_told() -> None:
    def changed(table: nn.Module) -> bool:
        return not is_plain(nn.Module(), [*tables(), table])

    wrapped, before, after = tables()[:3]
    Wrapper(wrapped).attach()
    before.register_forward_pre_hook(lambda module, given: None)
    after.register_forward_hook(lambda module, given, found: None)
    assert is_plain(nn.Module(), tables())
    assert all(map(changed, (wrapped, before, after)))
    assert changed(Doubled(3, 2))
    assert changed(nn.Embedding(3, 2, max_norm=1.0))
    assert changed(nn.Embedding(3, 2, dtype=torch.float64))
    assert changed(nn.Embedding(3, 2, device="meta"))
    model = nn.Module()
    model.register_forward_hook(lambda module, given, found: None)
    assert not is_plain(model, tables())
