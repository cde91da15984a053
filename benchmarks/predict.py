"""`predict` of a Criteo file beside `prepare criteo` of the same file, for networks of several sizes.

    python benchmarks/predict.py [--json] [--full]

All run in one process and take turns. Both read and encode on all cores, where `predict` also runs the model. The first
case has a network of next to nothing: what predicting costs besides its model. Ratios are of processor time, which
other work on the machine does not stretch; seconds are those of the clock. `--full` takes a million rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from torch import nn

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data import HashRule, Schema, prepare, write_criteo_tsv
from sparsedp.data.criteo import CATEGORIES, Criteo
from sparsedp.data.encoding import Encoding
from sparsedp.data.new_rows import NewRows
from sparsedp.models import DLRM, PCTR
from sparsedp.runs.choosing import HIDDEN, WIDTH
from sparsedp.runs.prediction import TrainedModel
from sparsedp.runs.scores import predict_file

ROWS, FULL_ROWS = 100_000, 1_000_000
ROUNDS = 3


def run(rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_criteo_tsv(folder / "train.txt", rows)
        seconds, processor = _seconds(folder, rounds)
    prepared = processor["prepare"]
    return {
        "rows": rows,
        "seconds": seconds,
        "processor_seconds": processor,
        "times_of_preparing": {case: spent / prepared for case, spent in processor.items()},
    }


def _models(schema: Schema) -> dict[str, nn.Module]:
    columns = len(schema.categorical)
    return {
        "predict, a layer of 8": PCTR.from_schema(schema, dims=[1] * columns, hidden=[8]),
        "predict, the recipe's model": PCTR.from_schema(schema, dims=[WIDTH] * columns, hidden=HIDDEN),
        "predict, DLRM": DLRM.from_schema(schema),
        "predict, pCTR with layers of 128 and 64": PCTR.from_schema(schema, hidden=[128, 64]),
        "predict, pCTR with four layers of 598": PCTR.from_schema(schema),
    }


def _seconds(folder: Path, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each case, of the clock and of the processor; the first turn warms the page cache and is not counted."""
    source, out, scores = folder / "train.txt", folder / "out", folder / "scores.parquet"
    rules = {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES, strict=True)}
    prepare(Criteo.of([source]), folder / "first", rules)
    schema, encoding = Schema.read(folder / "first"), Encoding.read(folder / "first")
    models = {case: TrainedModel(module, encoding, schema, None) for case, module in _models(schema).items()}
    clock: dict[str, list[float]] = {case: [] for case in ("prepare", *models)}
    processor: dict[str, list[float]] = {case: [] for case in clock}
    for turn in range(rounds + 1):
        for case in clock:
            shutil.rmtree(out, ignore_errors=True)
            scores.unlink(missing_ok=True)
            start, used = time.perf_counter(), time.process_time()
            if case == "prepare":
                prepare(Criteo.of([source]), out, rules)
            else:
                predict_file(models[case], NewRows.of(source, encoding), scores)
            if turn:
                clock[case].append(time.perf_counter() - start)
                processor[case].append(time.process_time() - used)
    return _medians(clock), _medians(processor)


def _medians(spent: dict[str, list[float]]) -> dict[str, float]:
    return {case: statistics.median(each) for case, each in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    result = run(FULL_ROWS if options.full else ROWS)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['rows']:,} rows of Criteo's form")
    for case, spent in result["seconds"].items():
        used, times = result["processor_seconds"][case], result["times_of_preparing"][case]
        print(f"{case:<42} {spent:7.2f} s, {used:7.2f} s of processor time, {times:5.2f} times preparing")


if __name__ == "__main__":
    main()
