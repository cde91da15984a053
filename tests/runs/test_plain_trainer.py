"""Training without privacy, for comparison."""

from __future__ import annotations

from pathlib import Path

from support.runs import config

from sparsedp.data import ClickData
from sparsedp.runs.plain_trainer import PlainTrainer
from sparsedp.runs.sources import fresh_model, open_data


def test_without_privacy_nothing_is_spent_chosen_or_lost(tmp_path: Path) -> None:
    asked = config("non-private", data="generated:400")
    data: ClickData = open_data(asked.data)
    trainer = PlainTrainer(asked, fresh_model(asked, data), data)
    assert (trainer.lost_steps(), trainer.choose_once(), trainer.stopped) == (0, False, None)
    assert (trainer.lower_rates(asked, data, tmp_path), trainer.calibrate(asked, data)) == (False, False)
    assert (trainer.spent(), trainer.statement(), trainer.last_step()) == (None, None, None)
