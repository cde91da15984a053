"""What a run is asked to do: one validated, serialisable object."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

Algorithm = Literal[
    "non-private",
    "dp-sgd",
    "lazy",
    "fest",
    "adafest",
    "adafest+",
    "exponential",
    "sparse-vector",
    "random",
]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class RunConfig(BaseModel):
    """A run on prepared (or generated) click data. Every field is public."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    """A prepared folder, or ``generated:ROWS`` (``generated:ROWSxDAYS`` with drift over days)."""
    algorithm: Algorithm
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: 1 / (10 n), n the number of training rows."""
    epochs: Positive = 1.0
    batch_size: Count = 2048
    physical_batch_size: Count | None = None
    max_grad_norm: Positive = 5.0
    model: str = "pctr"
    model_options: dict[str, Any] = {}
    learning_rate: Positive = 1.0
    """Of the dense layers (SGD)."""
    table_learning_rate: Positive = 25.0
    """Of the tables, which want tens of times more: a row is seen by few examples of a batch."""
    table_optimizer: Literal["sgd", "adagrad", "row-wise-adagrad"] = "sgd"

    noise_ratio: Positive = 5.0
    threshold: Positive | None = None
    false_positives: Positive | None = None
    contribution_norm: Positive | None = None
    always_on_rows: Annotated[int, Field(ge=0)] = 1000
    rows: Count | None = None
    """How many rows FEST, AdaFEST+, exponential, sparse-vector and random selection keep."""
    fest_mu: Positive = 0.05
    selection_epsilon: Positive = 0.01
    score_cap: Positive = 0.1
    score_threshold: Annotated[float, Field(allow_inf_nan=False)] = 0.001

    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.1
    holdout_by: Literal["hash", "time"] = "hash"
    evaluate_every: Count | None = None
    """Steps between evaluations on the held-out rows; default: at the end only."""
    checkpoint_every: Count | None = None
    """Steps between checkpoints; default: as often as takes a fiftieth of the time. A crash costs the steps
    since the last one: they stay paid for."""
    seed: int | None = None
    """Makes the run reproducible and not private."""
    ledger: str | None = None
    """A ledger shared with other runs on the same data; default: one of this run's own."""

    period: Count | None = None
    """Streaming: train period by period of this many time units."""
    train_periods: Count | None = None
    """Streaming: later periods are for evaluation only; default: three quarters of them train."""
    frequencies: Literal["first", "all", "running"] = "running"
    """Streaming FEST: which periods' noisy counts choose the rows."""

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if self.algorithm == "non-private":
            if self.epsilon is not None:
                raise ValueError("epsilon: a non-private run has none")
        elif self.epsilon is None:
            raise ValueError(f"epsilon: algorithm {self.algorithm} needs one")
        if self.threshold is not None and self.false_positives is not None:
            raise ValueError("threshold and false_positives exclude each other: give one of them")
        needs_rows = {"fest", "adafest+", "exponential", "sparse-vector", "random"}
        if self.algorithm in needs_rows and self.rows is None:
            raise ValueError(f"rows: algorithm {self.algorithm} needs the number of rows to keep")
        if self.algorithm == "lazy" and self.table_optimizer != "sgd":
            raise ValueError("table_optimizer: lazy noise is exact for plain sgd only")
        if self.period is not None and self.algorithm == "lazy":
            raise ValueError(
                "algorithm lazy releases the final model only; streaming releases every period's"
            )
        return self

    def delta_for(self, examples: int) -> float:
        """The delta of a run on so many training examples."""
        return self.delta if self.delta is not None else 1.0 / (10 * examples)

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> RunConfig:
        """From plain values; what is wrong is said in one line."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise ValueError(_in_words(error.errors()[0])) from None

    @classmethod
    def read(cls, path: Path, **overrides: Any) -> RunConfig:
        """From a YAML (or JSON) file, with some fields replaced."""
        try:
            fields = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{path} must hold a mapping of settings")
        return cls.parse(fields | overrides)

    def to_yaml(self) -> str:
        """The whole config, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def _in_words(problem: ErrorDetails) -> str:
    """One problem of a config as a line that names the setting and what would do."""
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        message = "it must be given"
    elif problem["type"] == "extra_forbidden":
        message = "there is no such setting"
    elif problem["type"] == "literal_error":
        message = f"{problem['input']!r} is not one of {problem['ctx']['expected']}"
    return f"{where}: {message}" if where else message
