"""Loading a folder that may be anyone's: what is whole loads, nothing of it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.runs import config
from support.served import OwnModel, Served, raw_frame

from sparsedp.accounting import PrivacyStatement
from sparsedp.runs import RunFolder, load, train
from sparsedp.runs.model_folder import ModelFolder, read_statement

OWN = "support.served:OwnModel"


def copy_of(served: Served, folder: Path) -> Path:
    shutil.copytree(served.run, folder / "run")
    return folder / "run"


def test_a_run_keeps_the_rules_and_nothing_of_the_rows(served: Served) -> None:
    schema = json.loads((served.run / "schema.json").read_text())
    assert schema["parts"] == []
    assert schema["sources"] == []
    assert "encoding.json" in {path.name for path in served.run.iterdir()}


def test_generated_data_predicts_too(tmp_path: Path) -> None:
    train(config("non-private"), tmp_path / "run")
    rows = {name: [3] for name in load(tmp_path / "run").columns}
    assert np.isfinite(load(tmp_path / "run").predict_proba(rows)).all()


def test_data_prepared_before_there_was_an_encoding_trains_and_does_not_predict(
    tmp_path: Path, other_data: Path
) -> None:
    shutil.copytree(other_data, tmp_path / "data", ignore=shutil.ignore_patterns("encoding.*"))
    train(config("non-private", data=str(tmp_path / "data"), model_options={"hidden": [4]}), tmp_path / "run")
    with pytest.raises(ValueError, match=r"encoding: .* has no encoding.json"):
        load(tmp_path / "run")


def test_a_seeded_run_says_that_it_is_not_private(tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    model = load(tmp_path / "run")
    assert model.statement is not None
    assert not model.statement.private
    assert model.privacy.startswith("NOT PRIVATE")


def test_a_model_of_ones_own_is_imported_only_when_trusted(own: Served) -> None:
    with pytest.raises(
        ValueError, match=r"model: support.served:OwnModel .* loading it runs code; pass trust=True"
    ):
        load(own.run)
    trusted, given = load(own.run, trust=True), load(own.run, model=OwnModel)
    assert isinstance(trusted.module, OwnModel)
    np.testing.assert_array_equal(trusted.predict_proba(raw_frame()), given.predict_proba(raw_frame()))


def test_nothing_is_imported_without_trust(
    own: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy_of(own, tmp_path)
    (tmp_path / "bomb_of_a_folder.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(tmp_path)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(OWN, "bomb_of_a_folder:Model"))
    with pytest.raises(ValueError, match="loading it runs code"):
        load(run)
    with pytest.raises(SystemExit, match="ran"):
        load(run, trust=True)


def test_a_module_that_cannot_be_imported_is_named(own: Served, tmp_path: Path) -> None:
    run = copy_of(own, tmp_path)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(OWN, "no_such_package.here:Model"))
    with pytest.raises(
        ValueError, match=r"model no_such_package.here:Model: cannot import no_such_package.here"
    ):
        load(run, trust=True)


def test_a_class_that_does_not_fit_is_refused(own: Served) -> None:
    with pytest.raises(ValueError, match="does not fit the model"):
        load(own.run, model=lambda schema, width: OwnModel(schema, width + 1))
    with pytest.raises(ValueError, match=r"model cannot be built with options \['width'\]"):
        load(own.run, model=lambda schema: OwnModel(schema))
    with pytest.raises(ValueError, match="model gave a dict"):
        load(own.run, model=lambda schema, width: {})  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"does not fit the model .*missing: .*weight"):
        load(own.run, model=lambda schema, width: torch.nn.Linear(2, 1))


def test_buffers_that_were_not_released_stay_as_they_were_built(own: Served, tmp_path: Path) -> None:
    run = copy_of(own, tmp_path)
    weights = load_file(run / "model.safetensors")
    del weights["shift"]
    save_file(weights, run / "model.safetensors")
    np.testing.assert_array_equal(
        load(run, trust=True).predict_proba(raw_frame()), load(own.run, trust=True).predict_proba(raw_frame())
    )
    weights["more"] = torch.zeros(1)
    save_file(weights, run / "model.safetensors")
    with pytest.raises(ValueError, match=r"unexpected: \['more'\]"):
        load(run, trust=True)


def test_an_exported_program_runs_only_when_trusted(own: Served, exported_own: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="loading it runs code"):
        load(exported_own)
    expected = load(own.run, trust=True).predict_proba(raw_frame())
    model = load(exported_own, trust=True)
    assert not isinstance(model.module, OwnModel)
    np.testing.assert_allclose(model.predict_proba(raw_frame()), expected, atol=1e-6)
    np.testing.assert_array_equal(load(exported_own, model=OwnModel).predict_proba(raw_frame()), expected)
    shutil.copytree(exported_own, tmp_path / "out")
    (tmp_path / "out" / "model.pt2").write_bytes(b"no program")
    with pytest.raises(ValueError, match=r"model.pt2 is no exported program"):
        load(tmp_path / "out", trust=True)


def test_an_exported_model_of_ours_loads_without_its_program(
    served: Served, exported: Path, tmp_path: Path
) -> None:
    shutil.copytree(exported, tmp_path / "out")
    (tmp_path / "out" / "model.pt2").unlink()
    np.testing.assert_array_equal(
        load(tmp_path / "out").predict_proba(raw_frame()), load(served.run).predict_proba(raw_frame())
    )
    (tmp_path / "out" / "model.json").write_text('{"format": "sparsedp-model-1"}')
    with pytest.raises(ValueError, match=r"model.json does not describe a model"):
        load(tmp_path / "out")


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        load(tmp_path / "none")
    with pytest.raises(ValueError, match="holds neither a run nor an exported model"):
        load(tmp_path)
    RunFolder(tmp_path / "begun").create(config())
    with pytest.raises(ValueError, match="has no trained model yet; resume it first"):
        load(tmp_path / "begun")
    assert not ModelFolder.open(tmp_path / "begun", unfinished=True).is_finished


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.yaml", "a: [", "is not YAML"),
        ("config.yaml", "a: 1", "data: it must be given"),
        ("schema.json", "{}", "schema: not a"),
        ("schema.json", None, "no schema.json"),
        ("encoding.json", "[]", "encoding: "),
        ("encoding.json", None, "has no encoding.json"),
        ("encoding.safetensors", None, "the vocabularies are missing"),
        ("encoding.safetensors", "?", "encoding.safetensors cannot be read"),
        ("model.safetensors", "?", "model.safetensors cannot be read"),
        ("model.safetensors", None, "no trained model yet"),
        ("statement.json", "{", "statement.json is not JSON"),
        ("statement.json", '{"epsilon": 1}', "is no privacy statement"),
        ("statement.json", "[1]", "must hold a JSON object"),
    ],
)
def test_damaged_runs_are_one_line(
    served: Served, tmp_path: Path, file: str, content: str | None, said: str
) -> None:
    run = copy_of(served, tmp_path)
    (run / file).unlink(missing_ok=True)
    if content is not None:
        (run / file).write_text(content)
    with pytest.raises(ValueError, match=said):
        load(run)


def test_weights_of_another_model_are_refused(served: Served, tmp_path: Path) -> None:
    run = copy_of(served, tmp_path)
    weights = load_file(run / "model.safetensors")
    save_file({**weights, "top.0.bias": torch.zeros(3)}, run / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors does not fit the model .*top.0.bias"):
        load(run)


def test_a_statement_is_read_from_either_folder(tmp_path: Path) -> None:
    assert read_statement(tmp_path) is None
    (tmp_path / "statement.json").write_text('{"private": false, "text": "NOT PRIVATE"}')
    assert read_statement(tmp_path) is None
    told = PrivacyStatement(
        1.0, 1e-6, "add-or-remove-one", "example", "it", trade_off={"profile": [[0.1, 0.01]]}
    )
    fields = told.to_dict()
    (tmp_path / "statement.json").write_text(json.dumps(fields))
    read = read_statement(tmp_path)
    assert read == told
    assert read.trade_off.advantage == told.trade_off.advantage
    del fields["trade_off"]  # as earlier versions wrote it
    (tmp_path / "statement.json").write_text(json.dumps(fields))
    assert read_statement(tmp_path) == told
