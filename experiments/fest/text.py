"""Tables 1, 2 and 6 of FEST and the text panels of its Figure 3: fine-tuning on SST-2.

A pretrained MiniLM (6 layers, 30,522 tokens) stands for RoBERTa, whose weights cannot be bundled; for the larger
vocabulary of XLM-R every token has eight copies, told apart by the token before (244,176 rows). LoRA in the
attention blocks and a new head are trained in every case. All runs are seeded, so that they can be repeated: the
printed epsilon is what the same run costs unseeded.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
import torch

from experiments.common.study import Study
from experiments.common.wide_vocabulary import widen_model, widen_texts
from experiments.fest.text_data import Texts, TextSet, made_up, read
from sparsedp.data import TextData
from sparsedp.models.text_classifier import TextClassifier, word_embedding_of
from sparsedp.runs import ALGORITHMS, TextConfig, evaluate
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.text import fresh_classifier
from sparsedp.runs.trainer import PrivateTrainer, Trainer, open_ledger
from sparsedp.runs.training import take_steps

EPSILONS = [1.0, 3.0, 8.0]
LOSSES = [0.001, 0.005, 0.01]
COPIES = 8
"""Of every token in the larger vocabulary."""

COMMON = {
    "learning_rate": 0.003,
    "head_learning_rate": 0.03,
    "table_learning_rate": 1.0,
    "max_grad_norm": 1.0,
}
DATA_SETS = [
    TextSet(
        "sst2-short",
        "12,288 phrases of at most 10 tokens, 1 epoch, the lowest 2 of MiniLM's 6 layers",
        12_288,
        {"epochs": 1.0, "expected_batch_size": 768, "physical_batch_size": 64, **COMMON},
        longest=10,
        layers=2,
    ),
    TextSet(
        "sst2-8k",
        "8,192 phrases, 4 epochs",
        8192,
        {"epochs": 4.0, "expected_batch_size": 1024, "physical_batch_size": 32, **COMMON},
    ),
    TextSet(
        "sst2",
        "all phrases, 6 epochs",
        None,
        {"epochs": 6.0, "expected_batch_size": 2048, "physical_batch_size": 32, **COMMON},
        (0, 1, 2),
    ),
]
DEFAULT = ("sst2-short",)
"""What runs on two cores within an hour."""
QUICK = TextSet(
    "made-up",
    "256 made-up reviews",
    256,
    {"epochs": 1.0, "expected_batch_size": 64, "physical_batch_size": 32, **COMMON},
    (0,),
)

METHODS: dict[str, dict[str, Any]] = {
    "frozen": {"algorithm": "dp-sgd", "embedding": "frozen"},
    "LoRA": {"algorithm": "dp-sgd", "embedding": "lora"},
    "DP-SGD": {"algorithm": "dp-sgd"},
    "DP-AdaFEST": {"algorithm": "adafest"},
    "DP-FEST, public": {"algorithm": "fest", "row_source": "words"},
    "without privacy": {"algorithm": "non-private"},
}
RATES: dict[str, dict[str, float]] = {
    "frozen": {"learning_rate": 0.001, "head_learning_rate": 0.1},
    "LoRA": {"learning_rate": 0.001, "head_learning_rate": 0.1},
    "DP-SGD": {"table_learning_rate": 3.0, "head_learning_rate": 0.1},
    "DP-AdaFEST": {"table_learning_rate": 0.3, "head_learning_rate": 0.1},
    "DP-FEST, public": {"table_learning_rate": 1.0, "head_learning_rate": 0.1},
    "without privacy": {"learning_rate": 0.001, "head_learning_rate": 0.01, "expected_batch_size": 128},
}
"""Where they differ from the common ones: chosen by ``fest-text-tuning``."""
ADAFEST: list[dict[str, Any]] = [
    {"false_positives": count, "noise_ratio": 5.0} for count in (50.0, 5.0, 500.0)
]
FEST: list[dict[str, Any]] = [{"rows": rows} for rows in (4000, 500)]
RANKS = [16, 4]
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
            texts = made_up(Path(scratch)) if study.quick else read(each, study)
            found = pl.DataFrame([_figures(case, each, texts, study) for case in cases(each, study.quick)])
        private = found.filter(pl.col("epsilon").is_not_null())
        tables = {
            f"{each.name}: accuracy ({each.description})": by_method(found),
            f"{each.name}: best reduction within an accuracy loss of DP-SGD, epsilon 1": reductions(
                private, len(texts.held_out)
            ),
        }
        panels = {f"{each.name}: accuracy against gradient size, epsilon 1": _figure(private)}
        written = study.write("Fine-tuning text classifiers", LEAD, tables, panels, found)
    return written


def _figures(case: Case, each: TextSet, texts: Texts, study: Study) -> dict[str, Any]:
    key = [each.name, each.settings, asdict(case)]
    return finished(key, study, lambda: train_case(case, each, texts, texts.held_out))


def cases(each: TextSet, quick: bool) -> Iterator[Case]:
    """All methods at epsilon 1, one setting of each at the other epsilons, the larger vocabulary at epsilon 1."""
    for seed in each.seeds:
        for epsilon in EPSILONS[:1] if quick else EPSILONS:
            yield from _methods(epsilon, seed, first=True)
        yield _case("without privacy", {}, None, seed)
        yield _case("DP-SGD", {}, EPSILONS[0], seed, COPIES)
        for knobs in ADAFEST:
            yield _case("DP-AdaFEST", knobs, EPSILONS[0], seed, COPIES)
        yield from _methods(EPSILONS[0], seed, first=False)


def _methods(epsilon: float, seed: int, *, first: bool) -> Iterator[Case]:
    """The first setting of every method, or the other settings."""
    these = slice(0, 1) if first else slice(1, None)
    if first:
        yield _case("DP-SGD", {}, epsilon, seed)
        yield _case("frozen", {}, epsilon, seed)
    for knobs in ADAFEST[these]:
        yield _case("DP-AdaFEST", knobs, epsilon, seed)
    for knobs in FEST[these]:
        yield _case("DP-FEST, public", knobs, epsilon, seed)
    for rank in RANKS[these]:
        yield _case("LoRA", {"embedding_rank": rank}, epsilon, seed)


def _case(method: str, knobs: dict[str, Any], epsilon: float | None, seed: int, copies: int = 1) -> Case:
    name = method if copies == 1 else f"{method}, {copies} copies"
    return Case(name, {**METHODS[method], **RATES.get(method, {}), **knobs}, epsilon, seed, copies)


def finished(key: list[Any], study: Study, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures of a training: those of an earlier, interrupted study are used again."""
    name = json.dumps(key, sort_keys=True)
    known = study.out / "runs" / "finished.jsonl"
    if known.exists():
        for line in known.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["case"] == name:
                return dict(record["figures"])
    figures = measure()
    known.parent.mkdir(parents=True, exist_ok=True)
    with known.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"case": name, "figures": figures}) + "\n")
    return figures


def train_case(case: Case, each: TextSet, texts: Texts, judged: TextData) -> dict[str, Any]:
    """Train once, and evaluate on the judged part."""
    config = TextConfig.parse(
        {
            "data": each.name,
            "model": texts.model,
            "epsilon": case.epsilon,
            "seed": case.seed,
            **each.settings,
            **case.settings,
        }
    )
    model, training = fresh_classifier(config), texts.training
    if each.layers is not None:
        keep_layers(model, each.layers)
    if case.copies > 1:
        widen_model(model, case.copies)
        training, judged = widen_texts(training, case.copies), widen_texts(judged, case.copies)
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
        evaluation = evaluate(model, judged)
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
        "embedding_share": embedding_share(model, judged),
        "examples_per_second": stats.examples_per_second,
    }


def keep_layers(model: TextClassifier, layers: int) -> None:
    """Use the lowest layers of a BERT encoder only."""
    stack = model.encoder.encoder
    stack.layer = stack.layer[:layers]  # type: ignore[union-attr, index]


def embedding_share(model: TextClassifier, data: TextData, texts: int = 100) -> float | None:
    """How much of an example's squared gradient norm lies in the word embedding's rows, on average over some texts.

    An example is clipped as a whole: this share of its length is not there for the head and the adapters.
    """
    words = word_embedding_of(model.encoder).weight
    if not words.requires_grad:
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shares = []
    for batch in data.subset(np.linspace(0, len(data) - 1, texts).astype(np.int64)).batches(1):
        gradients = torch.autograd.grad(model.loss(batch), trained)
        squares = [
            float((each.coalesce().values() if each.is_sparse else each).square().sum()) for each in gradients
        ]
        of_words = sum(square for square, weight in zip(squares, trained, strict=True) if weight is words)
        shares.append(of_words / max(sum(squares), 1e-30))
    return float(np.mean(shares))


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


def reductions(private: pl.DataFrame, sentences: int) -> pl.DataFrame:
    """Tables 1 and 2: per method the largest reduction within each loss, at epsilon 1; empty where there is none.

    The last loss is the standard error of an accuracy on so many sentences.
    """
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
        error = math.sqrt(level * (1 - level) / sentences)
        line: dict[str, Any] = {"method": method}
        for name, loss in [
            *((f"loss {loss:g}", loss) for loss in LOSSES),
            (f"one standard error ({error:.4f})", error),
        ]:
            near = group.filter(pl.col("accuracy") >= level - loss)["reduction"]
            line[name] = near.max() if near.len() else None
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
