"""Runs on texts, from the command line to the released model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import assert_refused, invoke
from support.language import write_model, write_reviews

from sparsedp.core.counts import SparseCounts
from sparsedp.runs import RunFolder, TextConfig, evaluate
from sparsedp.runs.evaluation import evaluate_run
from sparsedp.runs.optimizers import optimizers_of
from sparsedp.runs.resuming import resume, start
from sparsedp.runs.sources import data_of, fresh_model, split
from sparsedp.runs.text import token_rows
from sparsedp.selection import FEST, PrivateTopK

pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "data").mkdir()
    write_reviews(folder / "data" / "train.tsv", 400)
    write_reviews(folder / "data" / "dev.tsv", 60, seed=1)
    write_model(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEDP_CACHE", str(tmp_path / "cache"))


def settings(here: Path, algorithm: str = "adafest", **changes: Any) -> dict[str, Any]:
    fields = {
        "data": str(here / "data"),
        "model": str(here / "model"),
        "algorithm": algorithm,
        "epsilon": None if algorithm == "non-private" else 8.0,
        "epochs": 2.0,
        "expected_batch_size": 100,
        "seed": 3,
        "always_on_rows": 16,
        "lora_rank": 2,
    }
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


def config(here: Path, algorithm: str = "adafest", **changes: Any) -> TextConfig:
    return TextConfig.parse(settings(here, algorithm, **changes))


def options(fields: dict[str, Any]) -> list[str]:
    return [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def test_from_the_command_line_to_the_statement(here: Path, tmp_path: Path) -> None:
    done = invoke("train", "text", *options(settings(here)), "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["steps"] == 8
    assert 0 <= result["accuracy"] <= 1
    assert result["held_out_rows"] == 60
    assert result["training_rows"] == 400
    assert result["statement"]["epsilon"] == pytest.approx(8.0, rel=0.01)
    assert result["table_coordinates"] == 40 * 8
    assert list(result["rows_per_table"]) == ["encoder.embeddings.word_embeddings"]
    assert evaluate_run(tmp_path / "run").accuracy == pytest.approx(result["accuracy"])
    other = evaluate_run(tmp_path / "run", str(here / "data" / "dev.tsv"))
    assert other.accuracy == pytest.approx(result["accuracy"])
    shown = invoke("evaluate", tmp_path / "run")
    assert shown.stdout.startswith("accuracy 0.")


def test_without_privacy_it_learns(here: Path, tmp_path: Path) -> None:
    fields = config(here, "non-private", epochs=12.0, table_learning_rate=1.0, learning_rate=0.01)
    result = start(fields, tmp_path / "run")
    assert result.accuracy is not None
    assert result.accuracy > 0.9
    assert result.statement is None


def test_pieces_of_a_batch_train_like_the_whole(here: Path, tmp_path: Path) -> None:
    weights = []
    for name, size in (("whole", 400), ("pieces", 7)):
        fields = config(here, "non-private", physical_batch_size=size, optimizer="sgd", epochs=0.5)
        start(fields, tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    from safetensors.torch import load

    whole, pieces = map(load, weights)
    for name, values in whole.items():
        assert torch.allclose(values, pieces[name], atol=1e-5), name


def test_an_interrupted_run_is_resumed_to_the_same_result(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = config(here, checkpoint_every=1)
    whole = start(fields, tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(fields, tmp_path / "cut", stop)
    again = resume(tmp_path / "cut")
    assert again.steps == whole.steps - again.lost_steps
    assert again.statement is not None
    assert again.statement["epsilon"] <= 8.0
    assert isinstance(RunFolder(tmp_path / "cut").config(), TextConfig)


@pytest.mark.parametrize("embedding", ["frozen", "lora"])
def test_frozen_and_adapted_embeddings_have_no_table(here: Path, tmp_path: Path, embedding: str) -> None:
    result = start(config(here, "dp-sgd", embedding=embedding, epochs=0.5), tmp_path / "run")
    assert result.table_coordinates == 0
    assert result.rows_per_table == {}


@pytest.mark.parametrize("source", ["private", "ranks"])
def test_rows_chosen_before_training(here: Path, tmp_path: Path, source: str) -> None:
    fields = config(here, "fest", rows=12, row_source=source, epochs=0.5)
    result = start(fields, tmp_path / "run")
    assert result.rows_per_table == {"encoder.embeddings.word_embeddings": 12.0}


def test_private_frequencies_are_counted_without_the_model(here: Path) -> None:
    fields = config(here, "fest", rows=12)
    data = data_of(fields)
    found = token_rows(fields, fresh_model(fields, data), data)  # type: ignore[arg-type]
    assert isinstance(found, PrivateTopK)
    [counts] = found.source.values()
    assert isinstance(counts, SparseCounts)
    assert counts.values[counts.ids == 1] <= len(data) / np.sqrt(3)  # every text has three tokens or more
    public = fields.model_copy(update={"row_source": "ranks"})
    assert isinstance(token_rows(public, fresh_model(fields, data), data), FEST)  # type: ignore[arg-type]


def test_a_single_file_is_split_by_hash(here: Path) -> None:
    fields = config(here, data=str(here / "data" / "train.tsv"), holdout=0.25)
    data = data_of(fields)
    training, held_out = split(fields, data)
    assert len(training) + len(held_out) == 400
    assert 60 <= len(held_out) <= 140


def test_held_out_texts_in_a_column_of_another_name(here: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts"
    data.mkdir()
    (data / "train.tsv").write_text((here / "data" / "train.tsv").read_text())
    dev = (here / "data" / "dev.tsv").read_text().replace("sentence\tlabel", "content\tlabel")
    (data / "dev.tsv").write_text(dev)
    fields = config(here, data=str(data), text_column="sentence, content")
    assert [len(part) for part in split(fields, data_of(fields))] == [400, 60]
    arguments = options(settings(here, data=str(data)))
    refused = invoke("train", "text", *arguments, "--json", "--out", tmp_path / "run")
    assert_refused(refused, "no column 'sentence', only 'content', 'label'; where files name it differently")
    assert not (tmp_path / "run").exists()


def test_more_than_two_classes(here: Path, tmp_path: Path) -> None:
    lines = (here / "data" / "train.tsv").read_text().splitlines()
    lines[1:] = [f"{line.rpartition(chr(9))[0]}\t{'abc'[n % 3]}" for n, line in enumerate(lines[1:])]
    (tmp_path / "three.tsv").write_text("\n".join(lines) + "\n")
    fields = config(here, "non-private", data=str(tmp_path / "three.tsv"), classes="a,b,c", epochs=0.25)
    data = data_of(fields)
    found = evaluate(fresh_model(fields, data), split(fields, data)[1])
    assert found.auc == pytest.approx(0.5)  # the new head is zero
    assert found.log_loss == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "nowhere"}, "data: nowhere is neither a TSV file nor a folder"),
        ({"model": "nowhere"}, "model: nowhere is neither a folder"),
        ({"label_column": "gold"}, "has no column 'gold'"),
        ({"classes": "a,b"}, "label '0' of text number 0 is not one of 'a', 'b'"),
        ({"max_length": 99}, "max_length: must lie between 3 and 16"),
        ({"lora_targets": "nothing"}, "lora_targets: "),
    ],
)
def test_bad_input_is_one_line(here: Path, tmp_path: Path, changes: dict[str, str], words: str) -> None:
    arguments = options({**settings(here), **changes})
    assert_refused(invoke("train", "text", *arguments, "--json", "--out", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


def test_a_text_longer_than_the_model_takes(here: Path, tmp_path: Path) -> None:
    (tmp_path / "long.tsv").write_text("sentence\tlabel\n" + "good " * 30 + "\t1\nbad\t0\n")
    arguments = options(settings(here, data=str(tmp_path / "long.tsv")))
    refused = invoke("train", "text", *arguments, "--json", "--out", tmp_path / "run")
    assert_refused(
        refused, "text number 0 has 32 tokens, and the model takes 16; give max_length to truncate"
    )


def test_options_before_the_word_text_are_refused(tmp_path: Path) -> None:
    refused = invoke("train", "--epsilon", "1", "text", "--out", tmp_path / "run")
    assert_refused(refused, "--epsilon: options come after the word text")


@pytest.mark.parametrize("rank", [0, 2])
def test_the_head_has_a_learning_rate_of_its_own(here: Path, rank: int) -> None:
    fields = config(here, "dp-sgd", lora_rank=rank, head_learning_rate=0.5, learning_rate=0.25)
    model = fresh_model(fields, data_of(fields))
    dense, tables = optimizers_of(fields, model)
    assert isinstance(dense, torch.optim.Adam)
    rates = {group["lr"]: len(group["params"]) for group in dense.param_groups}
    assert rates == ({0.5: 2} if rank == 0 else {0.25: 8, 0.5: 2})
    assert [len(group["params"]) for group in tables.param_groups] == [1]
