"""What every kind of run starts from: its config, folder, data and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sparsedp.data import ClickData, TextData
from sparsedp.runs.calibration import check_calibrates
from sparsedp.runs.choosing import choose
from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.sources import data_of, fresh_model, split_periods
from sparsedp.runs.trainer import check_ledger


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
        data = data_of(config)
        if isinstance(data, ClickData) and not config.is_complete:
            config = choose(config, data).config
        if isinstance(data, ClickData) and config.period is not None:
            split_periods(config, data)
        model = fresh_model(config, data)
        if config.calibration_mu is not None:
            check_calibrates(model, config)
        check_ledger(config)
        folder = RunFolder(path)
        folder.create(config)
        return cls(config, folder, data, model)

    @classmethod
    def reopen(cls, folder: RunFolder) -> RunSetup:
        """A run that was started before."""
        config = folder.config()
        if config.optimizer is None:  # a folder from before there was a choice
            config = config.model_copy(update={"optimizer": "sgd"})
        data = data_of(config)
        return cls(config, folder, data, fresh_model(config, data))
