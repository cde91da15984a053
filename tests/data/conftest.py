from pathlib import Path

import pytest

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data import HashRule, write_criteo_tsv
from sparsedp.data.criteo import CATEGORIES


@pytest.fixture(scope="session")
def criteo_rules():
    return {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES, strict=True)}


@pytest.fixture(scope="session")
def criteo_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("criteo") / "train.txt"
    write_criteo_tsv(path, 4000)
    return path


def folder_bytes(path):
    """Every file of a folder with its content."""
    return {file.name: file.read_bytes() for file in sorted(Path(path).iterdir()) if file.is_file()}


@pytest.fixture(name="folder_bytes")
def folder_bytes_fixture():
    return folder_bytes
