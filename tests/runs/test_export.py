"""An exported folder: complete, without pickles, and the same predictions without this package."""

from __future__ import annotations

import json
import os
import pickletools
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors import safe_open
from support.runs import config
from support.served import OwnModel, Served, raw_frame, serve
from torch import Tensor, nn

from sparsedp.data import Schema, write_criteo_tsv
from sparsedp.runs import load, train
from sparsedp.runs.export import export_run

WITHOUT = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sparsedp", "polars", "pyarrow", "support"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
folders = sys.argv[1:]
for script, rows in zip(folders[::2], folders[1::2]):
    sys.argv = [script, rows]
    runpy.run_path(script, run_name="__main__")
    print("end")
assert not any(name.partition(".")[0] in ("sparsedp", "support") for name in sys.modules)
"""


def test_the_scripts_predict_the_same_without_the_package(
    served: Served, exported: Path, own: Served, exported_own: Path
) -> None:
    """One model of ours and one of somebody's own, whose code cannot be imported there either."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pairs = [exported / "serve.py", served.raw, exported_own / "serve.py", own.raw]
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT, *map(str, pairs)],
        check=True,
        capture_output=True,
        cwd=exported,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    ours, theirs, _ = said.stdout.split(b"end\n")
    frame = raw_frame()
    for found, run in ((ours, served.run), (theirs, own.run)):
        probability = pl.read_csv(found)["probability"]
        np.testing.assert_allclose(probability, load(run, trust=True).predict_proba(frame), atol=1e-6, rtol=0)
    assert said.stderr.startswith(b"NOT PRIVATE")


def test_the_folder_is_complete_and_holds_no_pickle(exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == {
        "README.md", "encoding.json", "encoding.safetensors", "model.json", "model.pt2", "model.safetensors",
        "schema.json", "serve.py", "statement.json",
    }  # fmt: skip
    with zipfile.ZipFile(exported / "model.pt2") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert any(name.endswith("models/model.json") for name in contents)
    for name, content in contents.items():
        if name.endswith((".pt", ".pkl")):
            assert content == b""
        with pytest.raises((ValueError, UnicodeDecodeError)):  # no pickle, whatever its name
            list(pickletools.genops(content))
    tables = sum(len(content) for content in contents.values())
    assert tables < 200_000  # the graph alone: weights are in the safetensors


def test_the_statements_of_model_and_vocabulary_are_inside(tmp_path: Path) -> None:
    """Of a run with lazy noise: its tables are flushed, so that the folder predicts as the run does."""
    run = serve(tmp_path, "lazy", seed=None, epsilon=3.0).run
    schema = json.loads((run / "schema.json").read_text())
    (run / "schema.json").write_text(json.dumps({**schema, "vocabulary_statement": "(1, 1e-6)-DP, told so"}))
    (tmp_path / "out").mkdir()  # an empty folder may be filled
    model = export_run(run, tmp_path / "out")
    assert model.statement is not None
    assert model.statement.private
    fields = json.loads((tmp_path / "out" / "statement.json").read_text())
    ours = json.loads((run / "statement.json").read_text())
    assert {name: fields[name] for name in ours} == ours
    assert fields["text"] == str(model.statement)
    assert fields["vocabulary"] == "(1, 1e-6)-DP, told so"
    for said in (str(model.statement), "(1, 1e-6)-DP, told so"):
        assert said in (tmp_path / "out" / "README.md").read_text()
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as weights:
        assert weights.metadata()["privacy"] == str(model.statement)
    loaded, frame = load(tmp_path / "out"), raw_frame()
    assert loaded.statement == model.statement
    np.testing.assert_array_equal(loaded.predict_proba(frame), load(run).predict_proba(frame))


def test_a_model_of_ones_own_is_exported_only_when_trusted(own: Served, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=f" of {re.escape(str(own.run))} is not one of .* loading it runs code"
    ):
        export_run(own.run, tmp_path / "no")
    assert not (tmp_path / "no").exists()


class Branching(OwnModel):
    """Its computation depends on values, which no graph can hold."""

    def forward(self, numeric: Tensor, ids: Tensor, *bags: tuple[Tensor, Tensor]) -> Tensor:
        logits = super().forward(numeric, ids, *bags)
        return logits if float(logits.sum()) > 0 else -logits


class OneBatchSize(OwnModel):
    def forward(self, numeric: Tensor, ids: Tensor, *bags: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(numeric, ids, *bags) * (1.0 if len(ids) == 5 else 2.0)


@pytest.mark.parametrize("kind", [Branching, OneBatchSize])
def test_a_model_that_cannot_be_exported_leaves_nothing(
    own: Served, tmp_path: Path, kind: type[nn.Module]
) -> None:
    with pytest.raises(ValueError, match=r"model: (torch.export cannot write|its exported computation)"):
        export_run(own.run, tmp_path / "out", model=kind)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]


def test_refusals(served: Served, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    with pytest.raises(ValueError, match=r"out: .* exists; give another folder"):
        export_run(served.run, tmp_path / "full")
    assert (tmp_path / "full" / "mine").read_text() == "precious"
    with pytest.raises(ValueError, match="is an exported model already"):
        export_run(exported, tmp_path / "out")
    with pytest.raises(ValueError, match="holds neither a run nor"):
        export_run(tmp_path, tmp_path / "out")


@pytest.mark.slow
def test_in_a_fresh_environment_without_this_package(tmp_path: Path) -> None:
    """Criteo's lines, pCTR: a virtual environment with torch, numpy and safetensors alone reproduces the predictions."""
    import venv

    from sparsedp.core.criteo import VOCABULARY_SIZES
    from sparsedp.data import Criteo, HashRule, prepare
    from sparsedp.data.criteo import CATEGORIES
    from sparsedp.data.new_rows import NewRows
    from sparsedp.runs.scores import predict_file

    raw = tmp_path / "train.txt"
    write_criteo_tsv(raw, 2000)
    rules = {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES, strict=True)}
    prepare(Criteo.of([raw]), tmp_path / "data", rules)
    assert isinstance(Schema.read(tmp_path / "data"), Schema)
    train(config("adafest", data=str(tmp_path / "data")), tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "out")
    model = load(tmp_path / "run")
    predict_file(model, NewRows.of(raw, model.encoding), tmp_path / "scores.parquet")
    expected = pl.read_parquet(tmp_path / "scores.parquet")["probability"]

    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    here = Path(next(path for path in sys.path if (Path(path) / "torch").is_dir()))
    (there,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    kept = (
        "torch",
        "safetensors",
        "numpy",
        "sympy",
        "mpmath",
        "networkx",
        "typing_extensions",
        "jinja2",
        "markupsafe",
        "filelock",
        "fsspec",
    )
    for path in here.iterdir():
        if path.name.partition(".")[0].lower() in (*kept, "functorch", "torchgen"):
            (there / path.name).symlink_to(path)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    gone = subprocess.run([python, "-c", "import sparsedp"], env=environment, capture_output=True)
    assert gone.returncode == 1
    said = subprocess.run(
        [python, "serve.py", str(raw)], cwd=tmp_path / "out", env=environment, check=True, capture_output=True
    )
    np.testing.assert_allclose(pl.read_csv(said.stdout)["probability"], expected, atol=1e-6, rtol=0)
