from __future__ import annotations

import zipfile
from pathlib import Path

from experiments.common.brown import FILE, NAME, brown_sentences


def test_tags_and_marks_are_dropped_and_sentences_kept(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / FILE, "w") as archive:
        archive.writestr("brown/ca02", "\n\n\tHe/pps said/vbd ./.\n")
        archive.writestr(
            "brown/ca01", "\tThe/at Jury's/nn$ 3/cd over-all/jj and\\/or/cc ``/`` plan/nn ./.\n\n./.\n"
        )
        archive.writestr("brown/README", "not/nn a/at text/nn\n")
    assert brown_sentences(tmp_path) == [
        ["the", "jury's", "over-all", "and", "or", "plan"],
        ["he", "said"],
    ]


def test_the_shared_corpus(shared_data: Path) -> None:
    sentences = brown_sentences(shared_data / NAME)
    assert (len(sentences), sum(map(len, sentences))) == (56_833, 1_006_060)
    assert sentences[0][:8] == ["the", "fulton", "county", "grand", "jury", "said", "friday", "an"]
