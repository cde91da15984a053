"""What every kind of run starts from: its config, folder, data and model."""

from __future__ import annotations

import dataclasses
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sparsedp.core.durable import write_file
from sparsedp.data import ClickData, TextData
from sparsedp.data import schema as schemas
from sparsedp.data.encoding import MissingEncoding
from sparsedp.runs.calibration import check_calibrates
from sparsedp.runs.choosing import choose
from sparsedp.runs.config import RunConfig
from sparsedp.runs.data_location import fit_to_data, locate_data, record_data, refuse_among_data
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.read_shares import check_finds_shares
from sparsedp.runs.settings_record import check_settings, record_settings
from sparsedp.runs.sources import check_split, data_of, fresh_model
from sparsedp.runs.trainer import check_ledger
from sparsedp.runs.users import check_batch, user_sampler


@dataclass(frozen=True)
class RunSetup:
    """A run that is ready to train or to resume."""

    config: RunConfig
    folder: RunFolder
    data: ClickData | TextData
    model: nn.Module

    @classmethod
    def create(cls, config: RunConfig, path: str | Path) -> RunSetup:
        """A new run in the folder ``path``, which is created only if the config is valid.

        What the config leaves open is chosen here; the folder has the whole config.
        """
        config, notes = fit_to_data(config)
        refuse_among_data(config, path)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        data = data_of(config)
        config, model = complete(config, data)
        check_ledger(config)
        folder = RunFolder(path)
        folder.create(config)
        keep_rules(folder, data)
        record_data(folder, config)
        record_settings(folder, config)
        return cls(config, folder, data, model)

    @classmethod
    def reopen(cls, folder: RunFolder, run_data: str | None = None) -> RunSetup:
        """A run that was started before; ``run_data``: where its data is now, if it moved."""
        config = locate_data(folder, run_data)
        if config.optimizer is None:  # a folder from before there was a choice
            config = config.model_copy(update={"optimizer": "sgd"})
        check_settings(folder, config)
        data = data_of(config)
        keep_rules(folder, data)
        return cls(config, folder, data, fresh_model(config, data))


def complete(config: RunConfig, data: ClickData | TextData) -> tuple[RunConfig, nn.Module]:
    """The config without gaps, and its untrained model.

    What cannot be trained on ``data`` is refused here, before anything is made or paid.
    """
    sampler = user_sampler(config, data)
    if isinstance(data, ClickData) and not config.is_complete:
        config = choose(config, data).config
    check_split(config, data)
    check_batch(config, sampler)
    model = fresh_model(config, data)
    if config.calibration_mu is not None:
        check_calibrates(model, config)
    if config.read_share_mu is not None and isinstance(data, ClickData):
        check_finds_shares(model, config, data)
    return config, model


def keep_rules(folder: RunFolder, data: ClickData | TextData) -> None:
    """Copy into a run what it needs to predict new rows when its data is gone: the rules, nothing of the rows.

    Data prepared before there was an encoding gives none: the run trains, and will not predict.
    """
    if isinstance(data, TextData) or (folder.path / schemas.FILE).exists():
        return
    with suppress(MissingEncoding):
        data.encoding.write(folder.path)
    released = dataclasses.replace(data.schema, sources=(), parts=())
    write_file(folder.path / schemas.FILE, released.to_json())
