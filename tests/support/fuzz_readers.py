"""All readers that are fuzzed, by name."""

from __future__ import annotations

from support.fuzz_commands import COMMAND
from support.fuzz_data import DATA_READERS
from support.fuzz_runs import RUN_READERS
from support.fuzzing import Reader

READERS: dict[str, Reader] = {reader.name: reader for reader in (*DATA_READERS, *RUN_READERS, COMMAND)}
