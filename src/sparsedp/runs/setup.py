"""What every kind of run starts from: its config, folder, data and model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sparsedp.data import ClickData, TextData
from sparsedp.runs.config import RunConfig
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.sources import data_of, fresh_model, split, split_periods
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
        """A new run in the folder ``path``, which is created only if the config is valid."""
        data = data_of(config)
        if isinstance(data, ClickData) and config.period is not None:
            split_periods(config, data)
        else:
            split(config, data)
        model = fresh_model(config, data)
        check_ledger(config)
        folder = RunFolder(path)
        folder.create(config)
        return cls(config, folder, data, model)

    @classmethod
    def reopen(cls, folder: RunFolder) -> RunSetup:
        """A run that was started before."""
        config = folder.config()
        data = data_of(config)
        return cls(config, folder, data, fresh_model(config, data))
