"""Predictions for a file of sentences: those that the evaluation of the run saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.command_line import assert_refused, invoke
from support.language import write_model, write_reviews

from sparsedp.runs import TextConfig, load, train

pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "data").mkdir()
    write_reviews(folder / "data" / "train.tsv", 120)
    write_reviews(folder / "data" / "dev.tsv", 40, seed=1)
    write_model(folder / "model")
    fields = {
        "data": str(folder / "data"),
        "model": str(folder / "model"),
        "algorithm": "non-private",
        "epochs": 1.0,
        "expected_batch_size": 60,
        "lora_rank": 2,
        "seed": 3,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEDP_CACHE", str(folder / "cache"))
        result = train(TextConfig.parse(fields), folder / "run")
    return folder, result


def test_predictions_are_those_of_the_evaluation(run: Any, tmp_path: Path) -> None:
    folder, result = run
    lines = (folder / "data" / "dev.tsv").read_text().splitlines()
    at = lines[0].split("\t").index("sentence")
    label = lines[0].split("\t").index("label")
    (tmp_path / "new.tsv").write_text("".join(line.split("\t")[at] + "\n" for line in lines))
    done = invoke("predict", folder / "run", "--input", tmp_path / "new.tsv", "--out", tmp_path / "s.csv")
    assert done.exit_code == 0, done.output
    assert "40 rows" in done.stdout
    found = pl.read_csv(tmp_path / "s.csv", infer_schema=False)
    assert found.columns == ["predicted", "probability_0", "probability_1"]
    right = [
        mine == line.split("\t")[label] for mine, line in zip(found["predicted"], lines[1:], strict=True)
    ]
    assert sum(right) / 40 == pytest.approx(result.accuracy)
    total = found["probability_0"].cast(pl.Float64) + found["probability_1"].cast(pl.Float64)
    assert (total - 1).abs().max() < 1e-9  # type: ignore[operator]


def test_bad_input_is_one_line(run: Any, tmp_path: Path) -> None:
    folder, _ = run
    (tmp_path / "new.tsv").write_text("words\na b\n")
    command = ["predict", folder / "run", "--input", tmp_path / "new.tsv", "--out", tmp_path / "s.csv"]
    assert_refused(invoke(*command), "no column 'sentence'")
    assert_refused(invoke(*command, "--id", "words"), "id, separator and strict are for click data")
    with pytest.raises(ValueError, match=r"holds a text classifier: .*save_pretrained"):
        load(folder / "run")
    assert_refused(invoke("export", folder / "run", "--out", tmp_path / "out"), "save_pretrained")
