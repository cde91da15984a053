"""Users against examples: the same rows and the same work, protected row by row or user by user, in two ways."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from sparsedp.accounting import epsilon_of
from sparsedp.accounting.users import events_of_users
from sparsedp.data import ClickData, Columns, HashRule, Label, Table, prepare
from sparsedp.runs import RunConfig
from sparsedp.runs.evaluation import evaluate
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.run_stats import RunStats
from sparsedp.runs.sources import fresh_model
from sparsedp.runs.trainer import PrivateTrainer, Trainer
from sparsedp.runs.training import take_steps

EPSILONS = (2.0, 8.0)
SEED = 1
RATE, EPOCHS, CLIP = 0.08, 12.0, 2.0
"""Of all rows in a step, expected passes over them, and clipping norm of a row's gradient."""
LEARNING_RATE, TABLE_LEARNING_RATE = 0.3, 10.0
SCALES = (1.0, 0.25)
"""Every run is made with the learning rates times each of these; the better AUC is shown."""


@dataclass(frozen=True)
class DataSet:
    """Rows with a user each; ``write`` puts them into a folder as one table."""

    name: str
    rows_per_user: int
    label: str
    features: dict[str, int]
    """Categorical columns and the rows of their tables."""
    write: Callable[[Study, Path], Path]
    source: str
    """The name of a real data set, or ``generated:...``."""

    def prepared(self, study: Study, out: Path) -> ClickData:
        """The rows, each user cut by the library."""
        columns = Columns(
            label=Label.parse(self.label),
            categorical=tuple(self.features),
            user="userId",
            rows_per_user=self.rows_per_user,
        )
        rules = {name: HashRule(rows) for name, rows in self.features.items()}
        prepare(Table.of([self.write(study, out)], columns), out / "data", rules)
        return ClickData.open(out / "data")


def _movielens(study: Study, out: Path) -> Path:
    folder = study.find("movielens-small", ["ratings.csv", "movies.csv"])
    movies = pl.read_csv(folder / "movies.csv").select("movieId", "genres")
    ratings = pl.read_csv(folder / "ratings.csv").sort("timestamp", maintain_order=True)
    ratings.join(movies, on="movieId", how="left", maintain_order="left").write_parquet(
        out / "ratings.parquet"
    )
    return out / "ratings.parquet"


def _generated(study: Study, out: Path) -> Path:
    """Users with a taste of their own like items of a quality of their own; popular items are seen more often."""
    users, rows, items = (60 if study.quick else 2000), 20, 400
    random = np.random.default_rng(0)
    quality, taste = random.normal(0, 1.2, items), random.normal(0, 0.7, users)
    weights = 1 / np.arange(1, items + 1)
    seen = random.choice(items, users * rows, p=weights / weights.sum())
    user = np.repeat(np.arange(users), rows)
    liked = random.random(user.size) < 1 / (1 + np.exp(-quality[seen] - taste[user]))
    frame = pl.DataFrame({"userId": user, "item": seen, "liked": liked.astype(int)})
    frame.sample(fraction=1.0, shuffle=True, seed=0).write_parquet(out / "generated.parquet")
    return out / "generated.parquet"


DATA_SETS = (
    DataSet(
        "movielens-small", 50, "rating>=4", {"movieId": 2**14, "genres": 1024}, _movielens, "movielens-small"
    ),
    DataSet("generated", 20, "liked", {"item": 1024}, _generated, "generated:users"),
)
WAYS: dict[str, dict[str, Any]] = {
    "without privacy": {"algorithm": "non-private", "epsilon": None},
    "example": {},
    "user, drawing users": {"unit": "user", "user_sampling": "users"},
    "user, drawing rows": {"unit": "user", "user_sampling": "rows"},
}


def run(study: Study) -> dict[str, Any]:
    """Train each way on each data set; users are held out for the AUC, in every way the same ones."""
    found: dict[str, Any] = {}
    for chosen in [DATA_SETS[1]] if study.quick else study.choose(DATA_SETS):
        with tempfile.TemporaryDirectory() as folder:
            data = chosen.prepared(study, Path(folder))
            lines = [
                _best(data, way, epsilon, SCALES[:1] if study.quick else SCALES)
                for epsilon in (EPSILONS[-1:] if study.quick else EPSILONS)
                for way in WAYS
                if WAYS[way].get("epsilon", epsilon) is not None or epsilon == EPSILONS[-1]
            ]
        frame = pl.DataFrame(lines, infer_schema_length=None)
        found = study.write(
            "Users against examples", _lead(study), {chosen.name: frame}, {chosen.name: _bars(frame)}
        )
    return found


def settings(data: ClickData, way: str, epsilon: float, scale: float) -> RunConfig:
    """Where users are drawn, a batch has as many rows, a user's sum is clipped to sqrt(rows of a user) times the norm of
    a row's, and the divisor counts users: the learning rates are that much smaller."""
    cap = data.schema.rows_per_user
    assert cap is not None
    users = np.unique(data.user).size
    per_unit = len(data) / users if WAYS[way].get("user_sampling") == "users" else 1.0
    fields = {
        "data": "prepared",
        "algorithm": "dp-sgd",
        "epsilon": epsilon,
        "delta": 1 / (10 * users),
        "epochs": EPOCHS,
        "expected_batch_size": round(RATE * len(data) / per_unit),
        "max_grad_norm": CLIP * math.sqrt(per_unit),
        "learning_rate": scale * LEARNING_RATE / per_unit,
        "table_learning_rate": scale * TABLE_LEARNING_RATE / per_unit,
        "model_options": {"hidden": [16], "dims": [8] * len(data.schema.categorical)},
        "seed": SEED,
    }
    return RunConfig.parse(fields | WAYS[way])


def _best(data: ClickData, way: str, epsilon: float, scales: Sequence[float]) -> dict[str, Any]:
    """The run with the best AUC: a choice that its epsilon does not cover."""
    return max((_trained(data, way, epsilon, scale) for scale in scales), key=lambda line: line["AUC"])


def _trained(data: ClickData, way: str, epsilon: float, scale: float) -> dict[str, Any]:
    training, held_out = data.split_users(0.2)
    config = settings(training, way, epsilon, scale)
    model = fresh_model(config, training)
    trainer: Trainer = (
        PrivateTrainer(config, model, training, None)
        if config.is_private
        else PlainTrainer(config, model, training)
    )
    for _ in take_steps(model, trainer, RunStats(), None):
        pass
    evaluation = evaluate(model, held_out)
    line: dict[str, Any] = {"unit": way, "epsilon": None, "epsilon of a user": None, "delta": None}
    if isinstance(trainer, PrivateTrainer):
        statement, events = trainer.engine.statement(trainer.delta), trainer.engine.events()
        cap = training.schema.rows_per_user
        assert cap is not None
        spent = events if config.unit == "user" else events_of_users(events, cap)
        line |= {"epsilon": statement.epsilon, "delta": statement.delta}
        line["epsilon of a user"] = epsilon_of(spent, trainer.delta)
        line["noise multiplier"] = trainer.engine.noise_multiplier
    trainer.close()
    line["learning rates, times"] = scale
    return {**line, "steps": trainer.total_steps, "AUC": evaluation.auc, "log-loss": evaluation.log_loss}


def _lead(study: Study) -> str:
    return (
        f"pCTR with DP-SGD, {RATE:.0%} of the rows in a step, {EPOCHS:g} epochs, one seeded run each (the noise of a "
        "private run, reproducible and NOT private). Epsilon is add-or-remove-one of the unit named, delta 1 / (10 users), "
        "released: the model after every step. The rows of every user were cut by the library (MovieLens 50, generated 20), "
        "a fifth of the users is held out. Of two learning rates the one with the better AUC is shown: a choice that epsilon "
        "does not cover. Other settings were not tuned."
    )


def _bars(frame: pl.DataFrame) -> go.Figure:
    private = frame.filter(pl.col("epsilon").is_not_null())
    figure = go.Figure()
    for (unit,), part in private.group_by("unit", maintain_order=True):
        figure.add_scatter(
            x=part["epsilon of a user"].to_list(),
            y=part["AUC"].to_list(),
            name=str(unit),
            mode="lines+markers",
        )
    figure.update_xaxes(type="log", title="epsilon of a user")
    return figure.update_yaxes(title="AUC on held-out users")
