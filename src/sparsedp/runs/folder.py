"""A run's folder: its files, and which of them may be shown."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparsedp.core.durable import write_file
from sparsedp.core.strict_json import json_text
from sparsedp.core.text_files import parse_json, read_json_object, read_text
from sparsedp.data import schema as schemas
from sparsedp.runs.config import RunConfig
from sparsedp.runs.text_config import read_config

CONFIG = "config.yaml"
AUDIT = "audit"
"""The file, ``audit.json``, that an audit of the run leaves."""


class RunFolder:
    """Files of one run. Everything but ``private/`` may be released with the model.

    ``config.yaml``, ``metrics.jsonl`` (one line per evaluation), ``statement.json``, ``result.json`` (of a
    run that diverged ``failed.json`` in place of it and of the weights),
    ``model.safetensors``, ``schema.json`` and ``encoding.json`` (the rules of the preparation; with
    vocabularies ``encoding.safetensors``), ``tensorboard/``, the run's own ``run.ledger`` and its name on ledgers,
    ``run.name``, ``data.json``, where its data is, and ``audit.json``, what an audit of it found; ``private/``
    has the checkpoint, which holds the state of the optimiser and (for seeded runs) of the noise streams,
    ``data.json``, a hash of the data, and ``settings.json``, the settings that the run began with.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._earlier: set[str] = set()

    @property
    def checkpoint(self) -> Path:
        """What an interrupted run is resumed from."""
        return self.path / "private" / "checkpoint.pt"

    @property
    def choice(self) -> Path:
        """The rows and the shares of reads that were chosen before the first step, until there is a checkpoint."""
        return self.path / "private" / "choice.pt"

    @property
    def shared_checkpoint(self) -> Path:
        """The same of a run on several processes: a folder that they write together."""
        return self.path / "private" / "checkpoint"

    @property
    def ledger(self) -> Path:
        """The run's own ledger."""
        return self.path / "run.ledger"

    def period(self, number: int) -> RunFolder:
        """The folder of a streaming run's period, which has a ledger of its own."""
        return RunFolder(self.path / f"period-{number:03d}")

    @property
    def weights(self) -> Path:
        """The exported model."""
        return self.path / "model.safetensors"

    @property
    def unusable_weights(self) -> Path:
        """Those of a run whose predictions are not finite, though its weights are."""
        return self.path / "private" / "model.safetensors"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's events."""
        return self.path / "tensorboard"

    @property
    def has_config(self) -> bool:
        """Whether a run was started here."""
        return (self.path / CONFIG).exists()

    def create(self, config: RunConfig) -> None:
        """Make the folder for a new run; refuse one that is taken."""
        self.refuse_taken()
        self._earlier = {each.name for each in self.path.iterdir()} if self.path.exists() else set()
        (self.path / "private").mkdir(parents=True, exist_ok=True)
        os.chmod(self.path / "private", 0o700)
        write_file(self.path / "run.name", f"{self.path.resolve().name}-{secrets.token_hex(4)}")
        self.write_config(config)

    @contextmanager
    def removed_if_refused(self, has_begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Remove what was made since ``create`` where what follows fails before the run has begun, that is, has charged
        anything: such a folder is only in the way of the next try."""
        try:
            yield
        except Exception:
            if not has_begun():
                self._remove_new()
            raise

    def _remove_new(self) -> None:
        for path in self.path.iterdir():
            if path.name not in self._earlier:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not self._earlier:
            self.path.rmdir()

    def refuse_taken(self) -> None:
        """Refuse a folder that holds a run, or data: a run's folder may be released."""
        if self.has_config:
            raise ValueError(f"{self.path} already holds a run; resume it, or give another folder")
        refuse_prepared(self.path)

    def incomplete(self, state: str = "has no trained model yet") -> ValueError:
        """The error of a run that is used before its end: resumed it may be, unless it has failed."""
        failed = self.read_json("failed")
        if failed is None:
            return ValueError(f"{self.path} {state}; resume it first")
        return ValueError(f"{self.path} {state}: {failed.get('reason', 'the run failed')}; start a new run")

    def write_config(self, config: RunConfig) -> None:
        """Write the settings of the run."""
        write_file(self.path / CONFIG, config.to_yaml())

    @property
    def run_name(self) -> str:
        """The run's name on a ledger: the same after every crash, and no other run's."""
        path = self.path / "run.name"
        return read_text(path) if path.exists() else "run"

    def period_name(self, number: int) -> str:
        """The name on a ledger of a streaming run's period, where its examples are protected."""
        return f"{self.run_name}, period {number}"

    def config(self) -> RunConfig:
        """The settings of the run."""
        path = self.path / CONFIG
        if not path.exists():
            raise ValueError(f"{self.path} holds no run (no {CONFIG})")
        return read_config(path)

    def log(self, record: dict[str, Any]) -> None:
        """Append one line to the metrics."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json_text(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of the metrics; a line cut short by a crash is left out."""
        return list(self._metrics())

    def _metrics(self) -> Iterator[dict[str, Any]]:
        path = self.path / "metrics.jsonl"
        if path.exists():
            for line in read_text(path).splitlines():
                try:
                    record = parse_json(line, str(path))
                except ValueError:
                    return
                if not isinstance(record, dict) or type(record.get("step")) is not int:
                    return
                yield record

    def discard_after(self, step: int) -> None:
        """Drop metrics of steps that a resumed run will take again."""
        remaining = [json_text(record) for record in self.metrics() if record["step"] <= step]
        write_file(self.path / "metrics.jsonl", "".join(line + "\n" for line in remaining))

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write ``name``.json whole."""
        write_file(self.path / f"{name}.json", json_text(content, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """``name``.json, or None where it is not there yet."""
        path = self.path / f"{name}.json"
        if not path.exists():
            return None
        return read_json_object(path)


def refuse_prepared(path: Path) -> None:
    """Refuse a folder of prepared data, and one inside such a folder: what is written there may be released."""
    advice = "give another folder, which may be released"
    if (path / schemas.MANIFEST).exists() or any(path.glob("part-*.parquet")):
        raise ValueError(f"{path} holds prepared data; {advice}")
    for above in path.resolve().parents:
        described = (above / schemas.FILE).exists() or (above / schemas.MANIFEST).exists()
        if described and any(above.glob("part-*.parquet")):
            raise ValueError(f"{path} lies in {above}, which holds prepared data; {advice}")
