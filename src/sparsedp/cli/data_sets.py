"""Public data sets that studies and benchmarks read: their folders, and a clear error where one is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "SPARSEDP_DATA"
PAGE = "docs/data-sets.md"


class MissingDataSet(ValueError):
    """A data set is absent; the message names it, the files looked for, and the page that says where to get it."""


def find_data_set(name: str, files: Sequence[str], data: Path | None = None) -> Path:
    """The folder of a data set: `name` under `data`, or under the folder that SPARSEDP_DATA names.

    It is nowhere else looked for. Refuses if one of `files` is not in it.
    """
    root = data or os.environ.get(VARIABLE)
    if not root:
        required = ", ".join(f"{name}/{file}" for file in files)
        raise MissingDataSet(
            f"data set {name}: give the folder that holds {required} as --data DIR or {VARIABLE}; see {PAGE}"
        )
    folder = Path(root) / name
    for file in files:
        if not (folder / file).is_file():
            raise MissingDataSet(f"data set {name}: there is no file {folder / file}; see {PAGE}")
    return folder
