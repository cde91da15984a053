"""A recipe: every setting of a training run from public numbers alone, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_sigma
from sparsedp.accounting.users import user_step_event
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS, default_delta
from sparsedp.core.steps import steps_per_epoch
from sparsedp.core.tables import TableShape
from sparsedp.core.validation import check_count, check_delta, check_epsilon, check_positive
from sparsedp.planning.budget import RunBudget
from sparsedp.planning.selection_settings import selection_reasons, selection_settings, two_digits
from sparsedp.planning.tables import check_tables

Released = Literal["final", "steps"]

LEAST_STEPS = 100
"""Of a private run. At the same distance travelled (learning rate times steps) their number hardly changes the noise of
the result; so many are enough for the rates below to be stable."""
SIGNAL_FOR_MORE = 2e5
"""``mu * examples``, the size of the data in units of its noise, from which on more steps pay: rows that are read often
cannot go faster, only longer."""
NOISE_AT_KNEE = 1.2
"""The noise multiplier that the batch is chosen for: at half the batch the noise in the mean gradient is 30% higher,
at twice the batch 12% lower."""
LARGER_BATCH = "larger would lower the noise by 12% at most"
MOST_EPOCHS = 8.0
"""Of a private run, unless more are allowed: more pay at a large epsilon only."""
TABLE_SCALE = 20.0
"""Of ``PCTR``: makes a row's gradient as long as the dense layers', so that both share the clipping norm."""
CLIP = 20.0
CLIP_UNSCALED = 5.0
"""Where the model does not scale its tables."""
LITTLE_SIGNAL = 5e4
"""``mu * examples`` below which half the clip is better: it shortens some examples, and halves the noise."""
TABLE_NOISE = 0.3
"""The standard deviation of the noise on a coordinate of a table, as the network reads it, at the end of the run."""
READ_SHARE = 0.05
"""The part of the budget's Gaussian-DP parameter for finding how often the most read row of each table is read: it adds
0.1% to the noise of training."""
DENSE_RATE = 0.02
"""Adam's learning rate of the dense layers where their noise is small."""
DENSE_RATE_SGD = 0.5
DENSE_NOISE = 0.002
"""Noise on a coordinate of the mean gradient from which on Adam's steps are mostly noise."""
LEAST_DENSE = 0.25
"""The least part of that rate: below it not even the mean click rate would be learnt."""
CALIBRATION = 0.1
"""The part of the budget's Gaussian-DP parameter that fitting the output's bias and scale may have: it adds 0.5% to the
noise of training."""
MOST_CALIBRATION = 0.05
PIECE = 16_384
"""Examples in memory at once."""
SMALL_TABLES = 1 << 16
"""Coordinates of all tables up to which choosing rows saves nothing that matters."""
PLAIN = (
    (50_000, 64, 1.0, 0.3, 20.0),
    (2_000_000, 1024, 3.0, 0.3, 50.0),
    (10_000_000, 256, 3.0, 0.2, 50.0),
    (math.inf, 1024, 3.0, 0.2, 50.0),
)
"""Without privacy, up to so many examples: batch, epochs, learning rates of the dense layers and of the tables. Passes
over few examples are learnt by heart."""


@dataclass(frozen=True)
class Recipe:
    """Settings of a run, named as in ``RunConfig``, and why: ``reasons`` has a line for each."""

    algorithm: str
    epochs: float
    expected_batch_size: int
    physical_batch_size: int | None
    max_grad_norm: float
    optimizer: str
    learning_rate: float
    table_optimizer: str
    table_learning_rate: float
    table_scale: float
    read_share_mu: float | None = None
    calibration_mu: float | None = None
    selection: dict[str, float | int] = field(default_factory=dict)
    """Settings of the selection of rows, where the algorithm has one."""
    noise_multiplier: float | None = None
    steps: int = 1
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """The fields of ``RunConfig`` that it chooses, ``table_scale`` aside, which is the model's."""
        others = ("table_scale", "selection", "noise_multiplier", "steps", "reasons", "warnings")
        chosen = {name: value for name, value in vars(self).items() if name not in others}
        return {**chosen, **self.selection}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        return {**asdict(self), "warnings": list(self.warnings)}


def recipe(
    *,
    examples: int,
    tables: Sequence[TableShape],
    epsilon: float | None,
    delta: float | None = None,
    released: Released = "final",
    algorithm: str | None = None,
    units: int | None = None,
    rows_per_unit: int = 1,
    sample: Literal["users", "rows"] = "users",
    max_epochs: float = MOST_EPOCHS,
    epochs: float | None = None,
    expected_batch_size: int | None = None,
    max_grad_norm: float | None = None,
    update_every: int | None = None,
    optimizer: Literal["adam", "sgd"] = "adam",
    table_optimizer: Literal["sgd", "adagrad", "row-wise-adagrad"] = "sgd",
    table_scale: float = TABLE_SCALE,
) -> Recipe:
    """Choose the settings of a run. Nothing but public numbers is read.

    Parameters
    ----------
    examples, tables
        Training examples, and the shapes of the embedding tables.
    epsilon, delta
        The budget; None for the baseline without privacy. Delta defaults to ``1 / (10 n)``.
    released
        Whether only the final model leaves, or the model after every step (streaming, several processes).
    algorithm
        Settings for this one; default: the recipe chooses.
    units, rows_per_unit
        Where privacy is for users that have up to ``rows_per_unit`` examples each: how many users there are.
    sample
        Whether a batch then draws users, and is a number of them, or single examples of theirs.
    max_epochs
        The most passes over the data that a private run may take.
    epochs, expected_batch_size, max_grad_norm, update_every
        Given ones are kept, and the other choices of a private run follow them.
    optimizer, table_optimizer
        Of the dense layers, and of the tables.
    table_scale
        By how much the model multiplies its tables; 1 where it does not.
    """
    examples, rows_per_unit = check_count("examples", examples), check_count("rows_per_unit", rows_per_unit)
    shapes, table_scale = check_tables(tables), check_positive("table_scale", table_scale)
    rows_of_each, of_one = (rows_per_unit, 1) if sample == "users" else (1, rows_per_unit)
    if epsilon is None or algorithm == "non-private":
        return _without_privacy(examples, rows_of_each)
    protected = examples if units is None else check_count("units", units)
    epsilon = check_epsilon(epsilon)
    delta = check_delta(default_delta(protected) if delta is None else delta)
    batch = _Batch.chosen(
        protected if sample == "users" else examples,
        epsilon,
        delta,
        check_positive("max_epochs", max_epochs),
        epochs=None if epochs is None else check_positive("epochs", epochs),
        size=None if expected_batch_size is None else check_count("expected_batch_size", expected_batch_size),
        of_one=of_one,
    )
    chosen, why = _algorithm(shapes, released, algorithm)
    clip = _clip(signal := batch.mu * protected, table_scale, released, max_grad_norm)
    noise = batch.noise_multiplier * clip / batch.size
    selection = selection_settings(chosen, shapes, signal, batch.mu, batch.steps, update_every)
    return Recipe(
        algorithm=chosen,
        epochs=batch.epochs,
        expected_batch_size=batch.size,
        physical_batch_size=max(PIECE, rows_of_each) if batch.size * rows_of_each > PIECE else None,
        max_grad_norm=clip,
        optimizer=optimizer,
        learning_rate=two_digits(_dense_rate(optimizer, noise)),
        table_optimizer=table_optimizer,
        table_learning_rate=two_digits(_table_rate(table_optimizer, batch.steps, noise) / table_scale),
        table_scale=table_scale,
        read_share_mu=two_digits(READ_SHARE * batch.mu) if table_optimizer == "sgd" else None,
        calibration_mu=two_digits(min(MOST_CALIBRATION, CALIBRATION * batch.mu)),
        selection=selection,
        noise_multiplier=batch.noise_multiplier,
        steps=batch.steps,
        reasons={"algorithm": why, **_reasons(batch, clip, noise, table_scale, chosen, selection)},
        warnings=_warnings(chosen, shapes, protected, epsilon, "examples" if units is None else "users"),
    )


@dataclass(frozen=True)
class _Batch:
    """Batch, epochs and the noise that they need."""

    size: int
    epochs: float
    steps: int
    noise_multiplier: float
    mu: float
    limit: str
    """Why the batch is not larger."""

    @classmethod
    def chosen(
        cls,
        members: int,
        epsilon: float,
        delta: float,
        max_epochs: float,
        *,
        epochs: float | None,
        size: int | None,
        of_one: int,
    ) -> _Batch:
        """At the knee of the noise, or as near as ``max_epochs`` or what is given allow.

        In the Gaussian limit the budget is ``mu = q sqrt(T (e^(1/sigma^2) - 1))``, solved for the sampling rate q.
        Where single rows are drawn of users that have ``of_one`` of them, the rate is the same and the noise higher.
        """
        given = epochs is not None
        mu = 1.0 / analytic_gaussian_sigma(epsilon, delta)
        # In fewer epochs than it would choose, more steps are more noise.
        target = LEAST_STEPS if given else _steps(mu * members)
        knee = mu / math.sqrt(target * math.expm1(NOISE_AT_KNEE**-2))
        most = max_epochs / target
        rate = min(knee, most, 1.0) if epochs is None else min(epochs / target, 1.0)
        size = min(members, max(1, round(rate * members)) if size is None else size)
        if epochs is None:
            steps = min(target, max(1, math.floor(max_epochs * members / size)))
            epochs = steps / steps_per_epoch(size / members)
        budget = RunBudget.checked(epsilon, delta, members, size, epochs)
        noise = budget.calibrate(
            step_event=None
            if of_one == 1
            else lambda sigma: user_step_event(sigma, budget.sampling_rate, of_one)
        )
        limit = "as large as max_epochs allow" if knee > most else LARGER_BATCH
        return cls(
            size, epochs, budget.steps, noise, mu, f"{target} steps in these epochs" if given else limit
        )


def _steps(signal: float) -> int:
    """How many steps a private run wants: with the cube root of the size of the data in units of its noise."""
    return round(LEAST_STEPS * math.cbrt(max(1.0, signal / SIGNAL_FOR_MORE)))


def _clip(signal: float, table_scale: float, released: Released, given: float | None) -> float:
    """The clipping norm: lower where noise is high and calibration takes back what clipping does to the output."""
    if given is not None:
        return check_positive("max_grad_norm", given)
    if table_scale == 1.0:
        return CLIP_UNSCALED
    return CLIP / 2 if signal < LITTLE_SIGNAL and released == "final" else CLIP


def _table_rate(table_optimizer: str, steps: int, noise: float) -> float:
    """The learning rate at which the noise on a coordinate is ``TABLE_NOISE`` after all steps.

    Plain SGD adds up T normals. Adagrad divides the t-th by about sqrt(t) times their size: the squares add up to
    1 + 1/2 + ... + 1/T, whatever the noise.
    """
    at_rate_one = math.sqrt(steps) * noise if table_optimizer == "sgd" else math.sqrt(1.0 + math.log(steps))
    return TABLE_NOISE / at_rate_one


def _dense_rate(optimizer: str, noise: float) -> float:
    """The learning rate of the dense layers: lowered where the steps would be noise."""
    most = DENSE_RATE if optimizer == "adam" else DENSE_RATE_SGD
    return most * max(LEAST_DENSE, min(1.0, DENSE_NOISE / noise))


def _algorithm(shapes: Sequence[TableShape], released: Released, asked: str | None) -> tuple[str, str]:
    """The algorithm, and why."""
    if asked is not None:
        return asked, "as asked"
    if released == "final":
        return "lazy", (
            "only the final model leaves, so noise on rows that nobody reads can wait: DP-SGD's model at the "
            "price of the rows that are read"
        )
    size = sum(table.size for table in shapes)
    if size <= SMALL_TABLES:
        return (
            "dp-sgd",
            f"the tables have {size:,} coordinates in all: choosing rows would lose more than it saves",
        )
    return "adafest", (
        f"every step leaves, and the tables have {size:,} coordinates: noise goes to the rows that a step reads "
        "often; for data that do not drift, fest is as good and smaller"
    )


def _reasons(
    batch: _Batch, clip: float, noise: float, scale: float, algorithm: str, selection: Iterable[str]
) -> dict[str, str]:
    """A line for each choice but the algorithm."""
    scaled = f"; the model multiplies its tables by {scale:g}, so that they share it" if scale != 1.0 else ""
    return {
        "expected_batch_size": f"noise multiplier {batch.noise_multiplier:.2f}: {batch.limit}",
        "epochs": f"{batch.steps:,} steps, enough for these rates",
        "max_grad_norm": f"{'above' if clip == CLIP else 'near'} the norm of most examples{scaled}",
        "optimizer": "finds the scale of each layer's gradient from the released gradients, at no price",
        "learning_rate": (
            f"noise on the mean gradient is {noise:.2g} a coordinate: "
            + ("lowered, its steps would be noise" if noise > DENSE_NOISE else "small")
        ),
        "table_optimizer": "rows that are read seldom move little, and lazy noise is exact for it",
        "read_share_mu": "tables whose rows are read often get a lower rate; found at 0.1% of the noise",
        "calibration_mu": "the scale and bias of the output are fitted after training, at 0.5% of the noise",
        "table_learning_rate": f"noise on a coordinate as the network reads it ends at {TABLE_NOISE:g}",
        **selection_reasons(algorithm, selection),
    }


def _warnings(
    algorithm: str, shapes: Sequence[TableShape], protected: int, epsilon: float, whom: str
) -> tuple[str, ...]:
    """What the user should know before training."""
    found = []
    selects = algorithm not in ("lazy", "dp-sgd")
    total = sum(table.size for table in shapes)
    small = sum(table.size for table in shapes if table.rows <= DEFAULT_ALWAYS_ON_ROWS)
    if selects and small > 0.5 * total:
        found.append(
            f"{small / total:.0%} of the tables' coordinates are in tables of at most {DEFAULT_ALWAYS_ON_ROWS} rows: "
            f"{algorithm} makes the gradient at most {total / max(small, 1):.1f} times smaller; dp-sgd loses less"
        )
    if protected * epsilon < 3000:
        found.append(
            f"{protected:,} {whom} at epsilon {epsilon:g} are few: expect little more than the mean click rate"
        )
    return tuple(found)


def _without_privacy(examples: int, rows_of_each: int) -> Recipe:
    """The baseline: small batches; plain SGD, under which rows that are read seldom do not learn them by heart.

    A batch draws users of ``rows_of_each`` examples.
    """
    _, batch, epochs, rate, table_rate = next(each for each in PLAIN if examples <= each[0])
    batch = max(1, min(batch, examples // 10) // rows_of_each)
    return Recipe(
        algorithm="non-private",
        epochs=epochs,
        expected_batch_size=batch,
        physical_batch_size=None,
        max_grad_norm=CLIP_UNSCALED,
        optimizer="sgd",
        learning_rate=rate,
        table_optimizer="sgd",
        table_learning_rate=table_rate,
        table_scale=1.0,
        steps=math.ceil(epochs * examples / (batch * rows_of_each)),
        reasons={
            "algorithm": "as asked",
            "expected_batch_size": "without noise small batches learn most from each example",
            "epochs": "later passes learn single examples by heart",
            "max_grad_norm": "not used without privacy",
            "optimizer": "plain SGD",
            "learning_rate": "the highest that was stable on all data sets",
            "table_optimizer": "rows that are read seldom move little",
            "table_learning_rate": "the best of a small grid on all data sets",
        },
    )
