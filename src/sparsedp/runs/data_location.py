"""Where a run's data is: absolute in its settings, and found again when the run or the data moved.

Nothing heavy is imported here: a command refuses missing data before it loads torch.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from sparsedp.data.schema import Schema
from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import RunFolder, refuse_prepared
from sparsedp.runs.text_config import TextConfig

GENERATED = re.compile(r"generated:(\d+)(?:x(\d+))?")
RECORD = "data"
"""The file, ``data.json``, in which a run's folder notes where its data is."""
_PRIVATE_RECORD = "private/data"
"""The file with a hash of the data. Who knows all rows but one can tell by it whether that one is there, so that it is not
released."""
_FOR_BAGS = "dlrm"


def fit_to_data(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """(the settings with absolute paths and a model that reads all columns, what was chosen, in words).

    Refuses data that is not there. The model is changed only where the settings do not name one.
    """
    paths = {
        name: str(Path(value).absolute())
        for name in ("data", "ledger")
        if (value := getattr(config, name)) is not None and not (name == "data" and _is_generated(config))
    }
    if isinstance(config, TextConfig) and Path(config.model).is_dir():
        paths["model"] = str(Path(config.model).absolute())
    schema = schema_of(config)  # an error names the path as it was given
    config = config.model_copy(update=paths)
    if schema is None or not schema.multi_hot or "model" in config.model_fields_set:
        return config, []
    columns = ", ".join(feature.name for feature in schema.multi_hot)
    note = f"model: {_FOR_BAGS}, because the data has multi-hot columns ({columns}), which {config.model} does not read"
    return config.model_copy(update={"model": _FOR_BAGS}), [note]


def schema_of(config: RunConfig) -> Schema | None:
    """The schema of prepared click data; None for generated data and for texts, which must exist."""
    if _is_generated(config):
        return None
    if not isinstance(config, TextConfig):
        return Schema.read(config.data)
    if not Path(config.data).exists():
        raise ValueError(f"data: {config.data} is neither a TSV file nor a folder with a train.tsv")
    return None


def record_data(folder: RunFolder, config: RunConfig) -> None:
    """Note in the run's folder which data it is of, so that other data in its place is refused."""
    if _is_generated(config):
        return
    schema = schema_of(config)
    record = {
        "relative": os.path.relpath(config.data, folder.path.absolute()),
        "vocabulary_statement": None if schema is None else schema.vocabulary_statement,
    }
    folder.write_json(_PRIVATE_RECORD, {"digest": _digest(config, schema)})
    folder.write_json(RECORD, record)


def refuse_among_data(config: RunConfig, path: str | Path) -> None:
    """Refuse a run's folder inside that of its data or around it: one may be released, the other may not."""
    refuse_prepared(Path(path))
    if _is_generated(config):
        return
    advice = f"{config.data}; give another folder, which may be released"
    if _lies_in(Path(config.data), Path(path)):
        raise ValueError(f"{path} holds the run's data, {advice}")
    if _lies_in(Path(path), Path(config.data)):
        raise ValueError(f"{path} lies in the folder of the run's data, {advice}")


def data_record(folder: RunFolder) -> dict[str, Any]:
    """What a run's folder notes of its data; ``digest``, a hash of it, where the folder has its private part."""
    return {**(folder.read_json(RECORD) or {}), **(folder.read_json(_PRIVATE_RECORD) or {})}


def locate_data(folder: RunFolder, run_data: str | None = None) -> RunConfig:
    """The settings of a run with the path where its data is now.

    Tried in turn: ``run_data``, which the folder then remembers; the path in the settings; the same way from the
    run's folder as when it began. Data other than the run began with is refused.
    """
    config = folder.config()
    if _is_generated(config):
        if run_data is not None:
            raise ValueError(f"run_data: the run is on {config.data}, which is nowhere on disk")
        return config
    record = data_record(folder)
    relative = record.get("relative")
    beside = [folder.path.absolute() / relative] if isinstance(relative, str) else []
    places = [Path(run_data).absolute()] if run_data is not None else [Path(config.data), *beside]
    found = next((place for place in places if _holds_data(config, place)), None)
    if found is None:
        raise ValueError(
            f"data: the run's data is not at {places[0]}; if it moved, say where it is now: --run-data DIR"
        )
    located = config.model_copy(update={"data": str(found.resolve())})
    known, schema = record.get("digest"), schema_of(located)
    if known is not None and known != _digest(located, schema):
        raise ValueError(f"data: {located.data} holds other data than the run began with")
    if located.ledger is not None and not Path(located.ledger).exists():
        raise ValueError(
            f"ledger: {located.ledger}, which holds what the run spent, is not there: put it back"
        )
    if run_data is not None:
        folder.write_config(located)
    return located


def _digest(config: RunConfig, schema: Schema | None) -> str:
    """A hash of the data: of prepared data its schema, which has the hashes of its parts; of texts the files."""
    if schema is not None:
        return schema.digest
    path, digest = Path(config.data), hashlib.sha256()
    files = [path] if path.is_file() else sorted([*path.glob("*.tsv"), *path.glob("*.tsv.zst")])
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _is_generated(config: RunConfig) -> bool:
    return GENERATED.fullmatch(config.data) is not None


def _lies_in(inner: Path, outer: Path) -> bool:
    """Whether a path is a folder or lies in it, by whatever name."""
    here = inner.resolve()
    return outer.is_dir() and any(place.exists() and place.samefile(outer) for place in (here, *here.parents))


def _holds_data(config: RunConfig, place: Path) -> bool:
    return place.exists() if isinstance(config, TextConfig) else (place / "schema.json").exists()
