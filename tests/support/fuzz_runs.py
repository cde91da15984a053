"""The readers of what runs write and are told, for fuzzing: settings, ledgers, folders of runs and models."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from sparsedp.accounting import Ledger
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.ledger.format import (
    SEAL_BYTES,
    Seal,
    decode_head,
    encode,
    encode_head,
    encode_seal,
    scan,
)
from sparsedp.core.durable import write_file
from sparsedp.data.new_rows import NewRows
from sparsedp.data.preparation import prepare
from sparsedp.data.table import Table
from sparsedp.report.finished_run import FinishedRun
from sparsedp.report.run_report import privacy_card
from sparsedp.runs import RunConfig, RunFolder, load, resume
from sparsedp.runs import train as train_run
from sparsedp.runs.plain_yaml import parse_yaml
from sparsedp.runs.prediction import TrainedModel
from sparsedp.runs.scores import predict_file
from sparsedp.runs.sweep import Sweep, gather
from sparsedp.runs.text_config import read_config
from support.fuzz_checkpoints import CHECKPOINT
from support.fuzz_data import COLUMNS, RULES, TABLE, fresh_folder, place, workplace
from support.fuzzing import (
    Reader,
    mutate_bytes,
    mutate_cell,
    mutate_json,
    mutate_line,
    mutate_value,
)

# Settings


def mutate_yaml(rng: random.Random, data: bytes) -> bytes:
    """Change a value of a YAML text."""
    try:
        value = parse_yaml(data.decode(), "seed")
        return yaml.safe_dump(mutate_value(rng, value), sort_keys=False).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return mutate_bytes(rng, data)


def read_settings(name: str, data: bytes) -> None:
    """Settings that are taken are the same after they were written; those of a sweep too."""
    path = place(name, data)
    if name == "plan.yaml":
        configs = Sweep.read(path).configs()
    else:
        configs = [read_config(path)]
    for config in configs[:5] if sum(data) % 4 == 0 else ():
        again = place("again.yaml", config.to_yaml().encode())
        assert read_config(again) == config


def settings_seeds() -> Mapping[str, bytes]:
    click = {
        "data": "generated:400",
        "algorithm": "adafest",
        "epsilon": 2.0,
        "epochs": 1.5,
        "expected_batch_size": 46,
        "model_options": {"hidden": [16], "dims": [1, 2]},
        "seed": 3,
        "unit": "user",
        "rows_per_user": 4,
    }
    text = {
        "task": "text",
        "data": "train.tsv",
        "algorithm": "fest",
        "epsilon": 8,
        "rows": 1000,
        "max_length": 64,
    }
    plan = {
        "base": {"data": "generated:400", "epsilon": 1},
        "grid": [{"algorithm": ["dp-sgd"], "epochs": [1, 2.5]}],
    }
    bomb = "a: &a [x, x]\n" + "".join(
        f"{here}: &{here} [*{before}, *{before}, *{before}, *{before}, *{before}, *{before}]\n"
        for before, here in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
    )
    return {
        "config.yaml": yaml.safe_dump(click, sort_keys=False).encode(),
        "text.yaml": yaml.safe_dump(text, sort_keys=False).encode(),
        "plan.yaml": yaml.safe_dump(plan, sort_keys=False).encode(),
        "swelling.yaml": bomb.encode(),
        "deep.yaml": b"model_options: " + b"[" * 3000,
    }


SETTINGS = Reader("settings", read_settings, settings_seeds, (mutate_yaml, mutate_line))


# Ledgers


def records_of(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head and the sound records of a ledger's bytes."""
    head, first_seal, chain = decode_head(data, "ledger")
    begin = first_seal + 2 * SEAL_BYTES
    return head, scan(data[begin:], begin, chain, watch=0).records


def sealed(head: Mapping[str, Any], records: list[Any]) -> bytes:
    """The bytes of a ledger with these records, whatever they say: their chain and seals are right."""
    own = {name: value for name, value in head.items() if name not in ("format", "version", "chain")}
    begin = encode_head(own)
    line_end = begin.index(b"\n") + 1
    _, _, chain = decode_head(begin, "ledger")
    lines = []
    for record in records:
        body = json.dumps(record).encode()
        line, chain = encode(json.loads(body), chain)
        lines.append(line)
    seal = Seal(len(begin) + sum(map(len, lines)), chain)
    return begin[:line_end] + encode_seal(0, seal) + encode_seal(1, seal) + b"".join(lines)


def mutate_records(rng: random.Random, data: bytes) -> bytes:
    """Change what the records (or the head) say, and chain and seal them again."""
    try:
        head, records = records_of(data)
        if rng.random() < 0.2:
            head = mutate_value(rng, head)
        else:
            records = mutate_value(rng, records)
        return sealed(head, [record if isinstance(record, dict) else {"kind": record} for record in records])
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return mutate_bytes(rng, data)


def read_ledger(name: str, data: bytes) -> None:
    """A ledger that is taken counts at least what its sound records say, in every way to ask it."""
    path = place(name, data)
    ledger = Ledger.read(path)
    counts = {event_key(event): count for event, count in ledger.events()}
    events: list[str] = []
    truth: dict[str, int] = {}
    for record in records_of(data)[1]:
        if record["kind"] == "event":
            from sparsedp.accounting.event_json import event_from_json

            events.append(event_key(event_from_json(record["event"])))
        elif record["kind"] in ("spend", "reserve"):
            truth[events[record["event"]]] = truth.get(events[record["event"]], 0) + record["count"]
        elif record["kind"] == "settle":
            truth[events[record["event"]]] -= record["unused"]
    for key, count in truth.items():
        assert counts.get(key, 0) >= count
    assert ledger.mark
    assert all(isinstance(notice, str) for notice in ledger.notices)
    assert ledger.released(ledger.events())
    before = path.read_bytes()
    writer = Ledger.open(path, run="later", unit=None)
    with writer:
        writer.spend(GaussianDpEvent(20.0))
    after = {event_key(event): count for event, count in Ledger.read(path).events()}
    own = event_key(GaussianDpEvent(20.0))
    assert after == {**counts, own: counts.get(own, 0) + 1}
    assert len(path.read_bytes()) >= len(before) - ledger._file.truncated


def ledger_seeds() -> Mapping[str, bytes]:
    folder = fresh_folder("ledgers")
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8))
    with Ledger.open(folder / "run.ledger", run="first") as ledger:
        ledger.spend(GaussianDpEvent(20.0), 2)
        steps = ledger.step_reserver(step, reserve=4)
        for _ in range(6):
            steps()
    with Ledger.open(folder / "budget.ledger", budget=(3.0, 1e-6), unit="user", private=False) as ledger:
        ledger.spend(GaussianDpEvent(20.0))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["cut.ledger"] = files["run.ledger"][:-20]
    return files


LEDGER = Reader("ledger", read_ledger, ledger_seeds, (mutate_records, mutate_line))


# Trained models


def _fill(folder: Path, reader: Reader, name: str, data: bytes) -> Path:
    """A folder of a reader's seeds, one of which is replaced by the input."""
    (reader.fill(folder, name) / name).write_bytes(data)
    return folder


ROWS = {"price": [1.0, None], "site": ["a", "b"], "app": ["x", None], "tags": ["a|b", ""], "at": [1, 2]}


def read_model(name: str, data: bytes) -> None:
    """A model that is taken predicts, one probability a row."""
    model = load(_fill(fresh_folder("model"), MODEL, name, data))
    scores = model.predict_proba({column: ROWS.get(column, ["1", "2"]) for column in model.columns})
    assert scores.shape == (2,)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert model.statement is None or model.statement.epsilon >= 0
    assert model.privacy


def model_seeds() -> Mapping[str, bytes]:
    files = _run_files()
    wanted = ("schema.json", "encoding.json", "model.safetensors", "statement.json", "config.yaml")
    description = {"format": "sparsedp-model-1", "model": "dlrm", "options": MODEL_OPTIONS}
    exported = json.dumps(description, indent=1).encode()
    return {**{name: files[name] for name in wanted}, "model.json": exported}


MODEL_OPTIONS = {"dim": 2, "bottom": [2], "top": [2]}


@functools.cache
def _run_files() -> dict[str, bytes]:
    """The files of a small seeded run."""
    prepared, run = fresh_folder("seed-data"), workplace() / "seed-run"
    shutil.rmtree(run, ignore_errors=True)
    head, rows = TABLE.split(b"\n", 1)
    source = place("rows.csv", head + b"\n" + rows * 8)
    prepare(Table.of([source], COLUMNS), prepared, RULES)
    config = {
        "data": str(prepared),
        "algorithm": "adafest",
        "epsilon": 4.0,
        "epochs": 2,
        "expected_batch_size": 8,
        "max_grad_norm": 1.0,
        "learning_rate": 0.1,
        "table_learning_rate": 0.1,
        "optimizer": "sgd",
        "table_optimizer": "sgd",
        "model": "dlrm",
        "model_options": MODEL_OPTIONS,
        "always_on_rows": 10,
        "evaluate_every": 2,
        "holdout": 0.4,
        "seed": 1,
    }
    train_run(RunConfig.parse(config), run)
    config["data"] = "generated:400"  # a finished run is read without its data
    write_file(run / "config.yaml", RunConfig.parse(config).to_yaml())
    return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}


MODEL = Reader("model", read_model, model_seeds, (mutate_json, mutate_yaml))


# Folders of finished runs


def read_run(name: str, data: bytes) -> None:
    """A finished run that is taken can be asked for its result, by `resume`, a report and a sweep."""
    folder = _fill(fresh_folder("run"), RUN, name, data)
    run = FinishedRun.read(folder)
    assert privacy_card(run)
    assert isinstance(run.rows_per_column, dict)
    result = resume(folder)
    assert isinstance(result.steps, int)
    assert result.statement is None or run.statement is not None
    gather([], folder)
    RunFolder(folder).discard_after(1)


def run_seeds() -> Mapping[str, bytes]:
    files = _run_files()
    return {
        name: files[name]
        for name in ("config.yaml", "result.json", "statement.json", "metrics.jsonl", "data.json")
    }


RUN = Reader("run", read_run, run_seeds, (mutate_json, mutate_line, mutate_yaml))


# Rows to predict


@functools.cache
def _model() -> TrainedModel:
    return load(MODEL.fill(fresh_folder("predicts")))


def read_new_rows(name: str, data: bytes) -> None:
    """As many rows come out as go in, each with a probability or without one and named."""
    import polars as pl

    out = workplace() / "out.csv"
    out.unlink(missing_ok=True)
    scored = predict_file(_model(), NewRows.of(place(name, data), _model().encoding), out)
    written = pl.read_csv(out, schema={"probability": pl.Float64})["probability"]
    assert len(written) == scored.rows
    assert written.null_count() == scored.unreadable
    known = np.asarray(written.drop_nulls())
    assert ((known >= 0) & (known <= 1)).all()


def new_row_seeds() -> Mapping[str, bytes]:
    from support.fuzz_data import table_seeds

    seeds = table_seeds()
    return {
        name: seeds[name] for name in ("rows.csv", "rows.tsv", "rows.parquet", "rows.csv.gz", "rows.csv.zst")
    }


PREDICT = Reader("predict", read_new_rows, new_row_seeds, (mutate_cell, mutate_line))

RUN_READERS = (SETTINGS, LEDGER, CHECKPOINT, MODEL, RUN, PREDICT)
