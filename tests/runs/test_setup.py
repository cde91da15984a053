"""What a run starts from; a folder is made only for a run that can start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.runs import config

from sparsedp.runs import RunFolder
from sparsedp.runs.setup import RunSetup


def test_a_run_is_opened_again_as_it_was_made(tmp_path: Path) -> None:
    asked = config(data="generated:300", seed=5)
    made = RunSetup.create(asked, tmp_path / "run")
    again = RunSetup.reopen(RunFolder(tmp_path / "run"))
    assert made.config == again.config == asked
    assert len(made.data) == len(again.data) == 300
    for before, after in zip(made.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("data: ", {"data": "generated:1"}),
        ("train_periods", {"data": "generated:100x3", "period": 1, "train_periods": 3}),
        ("model must be", {"model": "nothing"}),
        ("ledger must be", {"ledger": "/dev/null"}),
    ],
)
def test_a_run_that_cannot_start_makes_no_folder(
    message: str, changes: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        RunSetup.create(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
