"""Heads and seals that are sound by themselves and yet not those of their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsedp.accounting import GaussianDpEvent, Ledger
from sparsedp.accounting.ledger.format import (
    FORMAT,
    SEAL_BYTES,
    VERSION,
    LedgerDamaged,
    Seal,
    decode_head,
    decode_seal,
    encode,
    encode_head,
    encode_seal,
)

HEAD: dict[str, Any] = {"id": "0" * 16, "adjacency": "add-or-remove-one", "unit": "example", "budget": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger.open(tmp_path / "ledger") as ledger:
        ledger.spend(GaussianDpEvent(2.0), 3)
    return tmp_path / "ledger"


def test_seals_of_the_right_length_with_another_chain_are_damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    first = data.index(b"\n") + 1
    for slot in (0, 1):
        data[first + slot * SEAL_BYTES : first + (slot + 1) * SEAL_BYTES] = encode_seal(
            slot, Seal(len(data), "f" * 16)
        )
    path.write_bytes(data)
    with pytest.raises(LedgerDamaged, match="seals do not belong to its records"):
        Ledger.read(path)


def test_a_seal_stands_in_its_own_slot_only() -> None:
    seal = Seal(1234, "a" * 16)
    for slot in (0, 1):
        line = encode_seal(slot, seal)
        assert len(line) == SEAL_BYTES
        assert decode_seal(slot, line) == seal
        assert decode_seal(1 - slot, line) is None
        assert decode_seal(slot, line.replace(b"1234", b"1235")) is None


@pytest.mark.parametrize(
    ("changed", "value"), [("version", VERSION + 1), ("version", VERSION - 1), ("format", FORMAT + "x")]
)
def test_a_ledger_of_another_version_or_format_is_refused(changed: str, value: Any, tmp_path: Path) -> None:
    line, chain = encode({"format": FORMAT, "version": VERSION, **HEAD, changed: value}, "")
    seal = Seal(len(line) + 2 * SEAL_BYTES, chain)
    (tmp_path / "ledger").write_bytes(line + encode_seal(0, seal) + encode_seal(1, seal))
    with pytest.raises(ValueError, match="this program reads"):
        Ledger.read(tmp_path / "ledger")


def test_a_head_is_read_back(tmp_path: Path) -> None:
    data = encode_head(HEAD)
    head, first, _ = decode_head(data, "ledger")
    assert head == {"format": FORMAT, "version": VERSION, **HEAD}
    assert len(data) == first + 2 * SEAL_BYTES
    (tmp_path / "ledger").write_bytes(data)
    assert list(Ledger.read(tmp_path / "ledger").events()) == []


def test_an_empty_unit_is_refused_and_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unit must not be empty"):
        Ledger.open(tmp_path / "ledger", unit="")
    assert not (tmp_path / "ledger").exists()
