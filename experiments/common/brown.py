"""The Brown corpus: 57,340 sentences of American English, as words in lower case."""

from __future__ import annotations

import zipfile
from pathlib import Path

from sparsedp.data.corpus import split_words

NAME, FILE = "brown", "brown.zip"


def brown_sentences(folder: str | Path) -> list[list[str]]:
    """The sentences of ``brown.zip`` in the order of its files; part-of-speech tags are dropped."""
    sentences = []
    with zipfile.ZipFile(Path(folder) / FILE) as archive:
        for name in sorted(archive.namelist()):
            if len(name.split("/")[-1]) != 4:  # texts are called ca01 to cr09
                continue
            for line in archive.read(name).decode("ascii").splitlines():
                words = [word for token in line.split() for word in split_words(token.rpartition("/")[0])]
                if words:
                    sentences.append(words)
    return sentences
