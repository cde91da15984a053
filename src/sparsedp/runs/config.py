"""The settings of a run: one validated, serialisable object."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from sparsedp.core.defaults import (
    DEFAULT_ALWAYS_ON_ROWS,
    DEFAULT_FALSE_POSITIVES,
    DEFAULT_MEMORY_EVERY,
    DEFAULT_MEMORY_STEPS,
    DEFAULT_MU,
    DEFAULT_NOISE_RATIO,
    DEFAULT_UPDATE_EVERY,
    default_delta,
)
from sparsedp.runs.algorithms import ALGORITHMS, Algorithm
from sparsedp.runs.plain_yaml import read_yaml


@dataclass(frozen=True)
class Group:
    """Settings that belong together: a panel in the command line's help."""

    title: str


DATA = Group("Data")
PRIVACY = Group("Privacy")
MODEL = Group("Model and optimisers")
SELECTION = Group("Selection of rows")
EVALUATION = Group("Evaluation and checkpoints")
STREAMING = Group("Streaming")


def _registered(name: str) -> str:
    if name not in ALGORITHMS:
        raise ValueError(f"{name!r} is not one of {', '.join(map(repr, ALGORITHMS))}")
    return name


def _writable(value: Any) -> Any:
    """Refuse what a file of settings would not give back: it holds JSON's values."""
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"the name {reprlib.repr(odd[0])} is not a text")
        for each in value.values():
            _writable(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _writable(each)
    elif not (
        value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    ):
        raise ValueError(f"{reprlib.repr(value)} is neither a text nor a finite number")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""What torch takes, also with the number of a period or a trial added."""


class Choices(NamedTuple):
    """The settings that a recipe chooses where the config leaves them open."""

    epochs: float
    expected_batch_size: int
    max_grad_norm: float
    learning_rate: float
    table_learning_rate: float
    table_optimizer: str
    optimizer: str


def left_open(name: str, algorithm: str) -> ValueError:
    """The error of a setting that an algorithm needs and nobody chose."""
    return ValueError(f"{name}: algorithm {algorithm} needs this setting")


class RunConfig(BaseModel):
    """A run on prepared (or generated) click data. Every field is public.

    None in a field of ``Choices``, as the algorithm, or as the ``rows`` of its top-k, leaves the choice to the recipe
    (``runs.choosing``), which then also fills settings of the selection that were not set. The config in a run's
    folder has them all.

    The docstring of a field is the help text of its option on the command line. The order of the fields is
    part of the format: a sweep names its folders by it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    has_recipe: ClassVar[bool] = True
    """Whether a recipe chooses what is left open."""

    data: Annotated[str, DATA]
    """A prepared folder, or generated:ROWS (generated:ROWSxDAYS with drift over days)."""
    algorithm: Annotated[Annotated[str, AfterValidator(_registered)] | None, PRIVACY] = None
    """How to train."""
    epsilon: Annotated[Positive | None, PRIVACY] = None
    """The most that the whole training may spend; every private algorithm needs it."""
    delta: Annotated[Fraction | None, PRIVACY] = None
    """Default: 1 / (10 n), n the number of training rows (or users)."""
    epochs: Annotated[Positive | None, MODEL] = None
    """Expected number of times that an example is sampled."""
    expected_batch_size: Annotated[Count | None, MODEL] = None
    """Expected number of examples in a Poisson batch (of users, where these are drawn)."""
    physical_batch_size: Annotated[Count | None, MODEL] = None
    """The most examples in memory at once; default: a whole batch."""
    max_grad_norm: Annotated[Positive | None, PRIVACY] = None
    """Clipping norm of an example's gradient (C2)."""
    model: Annotated[str, MODEL] = "pctr"
    """pctr, dlrm, or package.module:Name."""
    model_options: Annotated[dict[str, Any], AfterValidator(_writable), MODEL] = {}
    """Arguments of the model, as JSON or YAML: '{hidden: [128, 64]}'."""
    learning_rate: Annotated[Positive | None, MODEL] = None
    """Learning rate of the dense layers."""
    table_learning_rate: Annotated[Positive | None, MODEL] = None
    """Learning rate of the tables, much higher: few examples of a batch read a given row."""
    table_optimizer: Annotated[Literal["sgd", "adagrad", "row-wise-adagrad"] | None, MODEL] = None
    """Optimiser of the tables."""

    noise_ratio: Annotated[Positive, SELECTION] = DEFAULT_NOISE_RATIO
    """sigma1 / sigma2: noise on the contribution map over noise on the gradient."""
    threshold: Annotated[Positive | None, SELECTION] = None
    """tau: a row whose noisy count reaches it survives the step."""
    false_positives: Annotated[Positive | None, SELECTION] = None
    """Instead of tau: untouched rows that survive a step by chance, on average."""
    contribution_norm: Annotated[Positive | None, SELECTION] = None
    """Clipping norm of an example's contribution map (C1); default: the largest it can have."""
    always_on_rows: Annotated[int, Field(ge=0), SELECTION] = DEFAULT_ALWAYS_ON_ROWS
    """Tables of at most this many rows are trained whole."""
    rows: Annotated[Count | None, SELECTION] = None
    """How many rows a step selects (where rows take turns: on average). The recipe has a default for algorithms with a
    top-k before training."""
    fest_mu: Annotated[Positive, SELECTION] = DEFAULT_MU
    """Gaussian-DP parameter of the top-k before training."""
    selection_epsilon: Annotated[Positive, SELECTION] = 0.01
    """Epsilon of each draw, or of each round of the sparse vector."""
    score_cap: Annotated[Positive, SELECTION] = 0.1
    """The largest score of a row."""
    score_threshold: Annotated[float, Field(allow_inf_nan=False), SELECTION] = 0.001
    """The score that a row must reach."""
    memory_steps: Annotated[Count, SELECTION] = DEFAULT_MEMORY_STEPS
    """Steps whose noisy counts are added up; then new sums begin."""
    memory_every: Annotated[Count, SELECTION] = DEFAULT_MEMORY_EVERY
    """Steps between two in which a row is trained that is not far above the threshold: such rows take turns."""

    update_every: Annotated[Count, SELECTION] = DEFAULT_UPDATE_EVERY
    """Steps between two updates of a rare row, where rows take turns; frequent rows are updated more often."""

    holdout: Annotated[Fraction, DATA] = 0.1
    """Fraction of the rows (with unit user: of the users) that is held out for evaluation."""
    holdout_by: Annotated[Literal["hash", "time"], DATA] = "hash"
    """Hold out rows by a hash of their number, or the latest."""
    evaluate_every: Annotated[Count | None, EVALUATION] = None
    """Steps between evaluations on the held-out rows; default: at the end only."""
    checkpoint_every: Annotated[Count | None, EVALUATION] = None
    """Steps between checkpoints; default: as often as takes a fiftieth of the time. A crash costs the steps
    since the last one: they stay charged."""
    seed: Annotated[Seed | None, PRIVACY] = None
    """Makes the run reproducible and NOT private."""
    ledger: Annotated[str | None, PRIVACY] = None
    """A ledger shared with other runs on the same data; default: one of this run's own."""

    period: Annotated[Count | None, STREAMING] = None
    """Train period by period, each of this many time units. With unit user the costs of the periods add up to epsilon."""
    train_periods: Annotated[Count | None, STREAMING] = None
    """Later periods are for evaluation only; default: three quarters of them train."""
    frequencies: Annotated[Literal["first", "all", "running"], STREAMING] = "running"
    """Which periods' noisy counts choose the rows of algorithms with a top-k before training."""
    optimizer: Annotated[Literal["sgd", "adam"] | None, MODEL] = None
    """Optimiser of the dense layers."""
    calibration_mu: Annotated[Positive | None, PRIVACY] = None
    """Gaussian-DP parameter of fitting the bias and scale of the trained model's output, part of epsilon; default: they
    are not fitted. 0.05 costs less than 1% of the noise."""

    unit: Annotated[Literal["example", "user"], PRIVACY] = "example"
    """Whom epsilon protects: one row, or all rows of a user (data prepared with --user)."""
    user_sampling: Annotated[Literal["users", "rows"], PRIVACY] = "users"
    """With unit user: a batch draws users, whose rows are clipped together, or single rows of capped users."""
    rows_per_user: Annotated[Count | None, PRIVACY] = None
    """With unit user: the most rows of a user in a step (when rows are drawn: in all, or in a period); default: the
    data's cap."""
    read_share_mu: Annotated[Positive | None, PRIVACY] = None
    """Gaussian-DP parameter of finding which share of the examples reads each table's most read row, before training,
    part of epsilon: tables with rows that are read often get a lower learning rate; default: all have one rate."""

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.threshold is not None and self.false_positives is not None:
            raise ValueError("threshold and false_positives exclude each other: give one of them")
        if self.unit == "example" and self.rows_per_user is not None:
            raise ValueError("rows_per_user: belongs to unit user")
        if self.unit == "example" and self.user_sampling != "users":
            raise ValueError("user_sampling: belongs to unit user")
        if self.algorithm is None:
            if self.epsilon is None:
                raise ValueError("epsilon: it must be given, or algorithm non-private")
            return self
        algorithm = ALGORITHMS[self.algorithm]
        for name in ("calibration_mu", "read_share_mu"):
            if getattr(self, name) is not None and (not algorithm.private or self.period is not None):
                raise ValueError(f"{name}: is for private runs that are not streaming")
        if not algorithm.private and self.epsilon is not None:
            raise ValueError(f"epsilon: a {algorithm.name} run has none")
        if algorithm.private and self.epsilon is None:
            raise ValueError(f"epsilon: algorithm {algorithm.name} needs one")
        for name in algorithm.required:
            if getattr(self, name) is None and not (self.has_recipe and algorithm.row_set):
                raise left_open(name, algorithm.name)
        if algorithm.lazy_noise and self.table_optimizer not in (None, "sgd"):
            raise ValueError("table_optimizer: lazy noise is exact for plain sgd only")
        if self.read_share_mu is not None and self.table_optimizer not in (None, "sgd"):
            raise ValueError("read_share_mu: is for plain sgd; adagrad scales rows by itself")
        if algorithm.one_period and self.period is not None:
            raise ValueError(f"algorithm {algorithm.name} trains on all rows at once; leave out period")
        if algorithm.lazy_noise and self.period is not None:
            raise ValueError(
                f"algorithm {algorithm.name} releases the final model only; streaming releases every period's"
            )
        return self

    @property
    def is_private(self) -> bool:
        """Whether the run trains under differential privacy."""
        return self.epsilon is not None if self.algorithm is None else ALGORITHMS[self.algorithm].private

    @property
    def method(self) -> Algorithm:
        """What the registry says of the algorithm, once it is chosen."""
        if self.algorithm is None:
            raise ValueError("algorithm: not chosen yet; give one, or start the run with sparsedp.runs.start")
        return ALGORITHMS[self.algorithm]

    def counts_rows(self, period: int = 0) -> bool:
        """Whether the examples (of this period of a stream) are counted, and charged for it, to choose rows."""
        return self.method.row_set and (self.period is None or self.frequencies != "first" or period == 0)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to the recipe."""
        if self.algorithm is None:
            return False
        needed = (*Choices._fields, *self.method.required)
        return None not in [getattr(self, name) for name in needed]

    @property
    def choices(self) -> Choices:
        """The settings that a recipe chooses, once they are chosen."""
        values = {name: getattr(self, name) for name in Choices._fields}
        for name, value in values.items():
            if value is None:
                raise ValueError(
                    f"{name}: not chosen yet; give it, or start the run with sparsedp.runs.start"
                )
        return Choices(**values)

    def delta_for(self, examples: int) -> float:
        """The delta of a run on so many training examples (or users, where these are protected)."""
        return self.delta if self.delta is not None else default_delta(examples)

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """From plain values; errors are one line."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ValueError(_in_words(error.errors()[0])) from None

    @classmethod
    def read(cls, path: Path, **overrides: Any) -> Self:
        """From a YAML (or JSON) file, with some fields replaced."""
        return cls.of_file(path, read_yaml(path), **overrides)

    @classmethod
    def of_file(cls, path: Path, fields: Any, **overrides: Any) -> Self:
        """From what a file holds, with some fields replaced."""
        if not isinstance(fields, dict):
            raise ValueError(f"{path} must hold a mapping of settings")
        return cls.parse(fields | overrides)

    def to_yaml(self) -> str:
        """The whole config, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


IMPLIED = {"false_positives": DEFAULT_FALSE_POSITIVES}
"""What stands for None, where that is a number."""


def _in_words(problem: ErrorDetails) -> str:
    """One problem of a config as a line that names the setting and a valid value."""
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        message = "it must be given"
    elif problem["type"] == "extra_forbidden":
        message = "there is no such setting"
    elif problem["type"] == "literal_error":
        message = f"{reprlib.repr(problem['input'])} is not one of {problem['ctx']['expected']}"
    return f"{where}: {message}" if where else message
