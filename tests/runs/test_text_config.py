"""Settings of text runs: defaults for fine-tuning, and refusals of what texts do not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparsedp.cli.settings import help_of
from sparsedp.runs import RunConfig, TextConfig
from sparsedp.runs.config import Group
from sparsedp.runs.text_config import NOT_OPTIONS, read_config


def parse(**changes: Any) -> TextConfig:
    return TextConfig.parse({"data": "sst2", "algorithm": "adafest", "epsilon": 1.0, **changes})


def test_a_settings_file_knows_its_kind(tmp_path: Path) -> None:
    config = parse(classes="no, yes", lora_targets="query,key")
    (tmp_path / "text.yaml").write_text(config.to_yaml())
    assert read_config(tmp_path / "text.yaml") == config
    assert config.class_names == ("no", "yes")
    assert config.targets == ["query", "key"]
    clicks = RunConfig.parse({"data": "generated:10", "algorithm": "non-private"})
    (tmp_path / "clicks.yaml").write_text(clicks.to_yaml())
    assert type(read_config(tmp_path / "clicks.yaml")) is RunConfig
    with pytest.raises(ValueError, match="task: there is no such setting"):
        RunConfig.read(tmp_path / "text.yaml")


@pytest.mark.parametrize("name", sorted(set(TextConfig.model_fields) - NOT_OPTIONS))
def test_every_option_explains_itself_in_one_panel(name: str) -> None:
    field = TextConfig.model_fields[name]
    assert re.search(r"[.)]$", help_of(name, config=TextConfig))
    assert sum(isinstance(each, Group) for each in field.metadata) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"period": 3}, "period: is for click data"),
        ({"holdout_by": "time"}, "holdout_by: is for click data"),
        ({"model_options": {"hidden": [3]}}, "model_options: is for click models; give embedding"),
        ({"embedding": "frozen"}, "adafest chooses rows of the word embedding, .* use dp-sgd"),
        ({"embedding": "half"}, "embedding: 'half' is not one of"),
        ({"epsilon": None}, "epsilon: algorithm adafest needs one"),
        ({"lora_rank": -1}, "lora_rank"),
        ({"algorithm": "fest"}, "rows: algorithm fest needs this setting"),
    ],
)
def test_what_texts_do_not_have_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(**changes)


def test_public_frequencies_count_nobody() -> None:
    fields = {"data": "x", "algorithm": "fest", "rows": 9, "epsilon": 1.0}
    assert TextConfig.parse(fields).counts_rows()
    assert not TextConfig.parse({**fields, "row_source": "words"}).counts_rows()
    assert not TextConfig.parse({**fields, "algorithm": "random"}).counts_rows()
