"""The bytes of a ledger: JSON lines in a hash chain, under a head that states how much was committed.

    {"format":"sparsedp-ledger","version":1,"id":...,"budget":...,...,"chain":"<16 hex>"}      head
    {"seal":0,"length":         461,"chain":"<16 hex>","check":"<16 hex>"}                     two seals
    {"seal":1,"length":         812,"chain":"<16 hex>","check":"<16 hex>"}
    {"kind":"run",...,"chain":"<16 hex>"}                                                      records
    {"kind":"reserve","writer":"5f0c...","event":0,"count":64,"chain":"<16 hex>"}

Records are only appended. Each line's `chain` hashes the line and the chain before it, so a changed, missing
or moved line breaks the chain at a known byte. Cutting the file between two lines would leave a sound but
shorter chain; the seals, which have a fixed width, catch that. They are overwritten in turn, each after the
records it covers are on disk, so a crash never leaves a seal that promises too much:

- records end before the seal's length: the file was cut or damaged, never a crash;
- bytes after the seal form whole records: a crash came before the seal; they count;
- bytes after the seal are incomplete: a write that was interrupted, whose result was never released.

The hashes detect accidents. They do not protect against deliberate changes of the file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, REPLACE_ONE
from sparsedp.core.validation import check_delta, check_epsilon

FORMAT = "sparsedp-ledger"
VERSION = 1

Record = dict[str, Any]

_HEX = 16
_CHAIN_TAIL = len(b',"chain":""}') + _HEX
_SEAL = '{{"seal":{slot},"length":{length:>16d},"chain":"{chain}"'
SEAL_BYTES = len(_SEAL.format(slot=0, length=0, chain="0" * _HEX)) + len(',"check":""}\n') + _HEX


class LedgerDamaged(ValueError):
    """The committed part of a ledger is cut, altered or reordered; the message says at which byte."""


@dataclass(frozen=True)
class Seal:
    """A promise that the first `length` bytes were on disk and that their chain ended in `chain`."""

    length: int
    chain: str


@dataclass(frozen=True)
class Scan:
    """Sound records from a byte position on: where they end, their last chain value, why the scan stopped."""

    records: list[Record]
    end: int
    chain: str
    fault: str | None
    chain_at: str | None  # the chain value at the byte `watch`, if a record ends there


def digest(*parts: bytes) -> str:
    """64 bits of SHA-256, as hexadecimal."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:_HEX]


def encode(record: Record, chain: str) -> tuple[bytes, str]:
    """One line for `record`, following a line whose chain value was `chain`; and the new chain value."""
    body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()[:-1]
    chain = digest(chain.encode(), body)
    return body + b',"chain":"' + chain.encode() + b'"}\n', chain


def decode(line: bytes, chain: str) -> tuple[Record, str] | None:
    """The record of a line that follows `chain`, or None if any bit of it was changed."""
    body, tail = line[:-_CHAIN_TAIL], line[-_CHAIN_TAIL:]
    expected = digest(chain.encode(), body)
    if tail != b',"chain":"' + expected.encode() + b'"}':
        return None
    try:
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return (record, expected) if isinstance(record, dict) else None


def scan(data: bytes, position: int, chain: str, *, watch: int) -> Scan:
    """Read records from `data`, which begins at byte `position` of the file, as far as they are sound."""
    records: list[Record] = []
    start, fault = 0, None
    chain_at = chain if position == watch else None
    while start < len(data):
        stop = data.find(b"\n", start)
        decoded = decode(data[start:stop], chain) if stop >= 0 else None
        if decoded is None:
            fault = "a record fails its checksum" if stop >= 0 else "a record is incomplete"
            break
        record, chain = decoded
        records.append(record)
        start = stop + 1
        if position + start == watch:
            chain_at = chain
    return Scan(records, position + start, chain, fault, chain_at)


def encode_seal(slot: int, seal: Seal) -> bytes:
    """The line of a seal, always `SEAL_BYTES` long, so that it can be overwritten in place."""
    body = _SEAL.format(slot=slot, length=seal.length, chain=seal.chain).encode()
    return body + b',"check":"' + digest(body).encode() + b'"}\n'


def decode_seal(slot: int, line: bytes) -> Seal | None:
    """The seal of a line, or None if the line is not exactly what `encode_seal` wrote."""
    try:
        fields = json.loads(line)
        seal = Seal(int(fields["length"]), str(fields["chain"]))
        return seal if line == encode_seal(slot, seal) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def encode_head(head: Record) -> bytes:
    """A new ledger without records: the head and its two seals."""
    line, chain = encode({"format": FORMAT, "version": VERSION, **head}, "")
    seal = Seal(len(line) + 2 * SEAL_BYTES, chain)
    return line + encode_seal(0, seal) + encode_seal(1, seal)


def decode_head(data: bytes, name: str) -> tuple[Record, int, str]:
    """The head, the byte position of the first seal and the chain value with which the records begin."""
    stop = data.find(b"\n")
    decoded = decode(data[:stop], "") if stop >= 0 else None
    if decoded is None:
        raise LedgerDamaged(f"{name} is not a ledger, or its head, at byte 0, is cut or altered")
    head, chain = decoded
    if head.get("format") != FORMAT or head.get("version") != VERSION:
        raise ValueError(f"{name} is a ledger of version {head.get('version')}, this program reads {VERSION}")
    if fault := _fault_of(head):
        raise LedgerDamaged(f"{name} has a head with {fault}")
    return head, stop + 1, chain


def _fault_of(head: Record) -> str | None:
    """What is wrong with the fields of a head; a reader must not find out one by one."""
    for field in ("id", "unit"):
        if not isinstance(head.get(field), str) or not head[field]:
            return f"no {field}"
    if head.get("adjacency") not in (ADD_OR_REMOVE_ONE, REPLACE_ONE) or ":" in head["id"]:
        return "another adjacency" if ":" not in head["id"] else "no id"
    budget = head.get("budget", ())
    if budget is None:
        return None
    if not isinstance(budget, dict) or budget.keys() != {"epsilon", "delta"}:
        return "no budget"
    if not all(type(value) in (int, float) for value in budget.values()):
        return "a budget that is none"
    try:
        check_epsilon(budget["epsilon"])
        check_delta(budget["delta"])
    except ValueError as error:
        return f"a budget that is none ({error})"
    return None
