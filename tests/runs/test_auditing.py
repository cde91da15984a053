from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import config

from sparsedp.accounting.pld.composition import tolerance
from sparsedp.audit.canary_run import CanaryScores
from sparsedp.core.criteo import embedding_dim
from sparsedp.data import ClickData
from sparsedp.data.schema import Schema
from sparsedp.randomness import NoiseSource
from sparsedp.runs import RunFolder, auditing, train
from sparsedp.runs.auditing import audit_run, copy_of, made_up, refutation

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("audited") / "run"
    train(config("lazy", epsilon=2.0), folder)
    return RunFolder(folder)


def test_an_audit_is_written_beside_the_claim(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads nothing of the run's data."""
    monkeypatch.setattr(ClickData, "open", lambda *_: pytest.fail("the data was opened"))
    monkeypatch.setattr(ClickData, "__getitems__", lambda *_: pytest.fail("the data was read"))
    found = audit_run(run, canaries=100, steps=3, seed=1)
    result, written = run.read_json("result"), run.read_json("audit")
    assert result is not None
    assert written is not None
    assert found.claimed == result["statement"] == written["claimed"]
    assert 0.0 < found.copy["epsilon"] <= result["statement"]["epsilon"]
    assert found.copy["delta"] == result["statement"]["delta"]
    assert (found.steps, found.canaries, found.confidence) == (3, 100, 0.95)
    assert found.refutation is None
    assert found.recorded_epsilon == pytest.approx(found.claimed["epsilon"], rel=1e-3)
    assert written["lower_bound"] == found.lower_bound


def test_a_copy_without_the_noise_that_it_claims_is_refuted(run: RunFolder, schema: Schema) -> None:
    """The control: a hundredth of the noise, with the statement of the right copy."""
    result = run.read_json("result")
    assert result is not None
    right = copy_of(run.config(), result, schema, 1000, 1)
    statement = right.run(NoiseSource(1).noise, 1e-9).statement
    assert right.noise_multiplier is not None
    quiet = replace(right, noise_multiplier=right.noise_multiplier / 100, sampling_rate=1.0)
    scores = quiet.run(NoiseSource(1).noise, 1e-9)
    found = auditing._audit(
        quiet, CanaryScores(scores.included, scores.by_attack, statement), statement, 1 - 1e-4, 1.0
    )
    assert found.lower_bound > 3.0
    assert found.refutation is not None


def test_a_bound_above_the_claim_of_the_run_refutes_it() -> None:
    """Also where the copy's own account, which is made anew, covers the bound."""
    found = {"lower_bound": 1.0, "copy": {"epsilon": 3.0}, "claimed": {"epsilon": 0.5}}
    assert refutation(found) == "the copy let through epsilon 1 or more, and the run claims 0.5"
    other = {**found, "copy": {"epsilon": 0.5}, "claimed": {"epsilon": 3.0}}
    assert refutation(other) == "the copy let through epsilon 1 or more, and it should have spent 0.5"
    assert refutation({**found, "claimed": {"epsilon": 1.0}}) is None


def edited(run: RunFolder, path: Path, epsilon: float) -> RunFolder:
    """A copy of a run's folder with another claim in its result."""
    shutil.copytree(run.path, path)
    result = run.read_json("result")
    assert result is not None
    changed = RunFolder(path)
    changed.write_json("result", {**result, "statement": {**result["statement"], "epsilon": epsilon}})
    return changed


def test_a_claim_below_what_the_run_recorded_is_refuted(run: RunFolder, tmp_path: Path) -> None:
    """Though no attack on so few canaries and steps comes near it."""
    result = run.read_json("result")
    assert result is not None
    own = result["statement"]["epsilon"]
    lower = edited(run, tmp_path / "lower", 0.9 * own)
    found = audit_run(lower, canaries=20, steps=1, seed=1)
    assert found.lower_bound < min(found.copy["epsilon"], 0.9 * own)
    assert found.recorded_epsilon == pytest.approx(own, rel=1e-3)
    assert refutation(lower.read_json("audit") or {}) == (
        f"the run claims epsilon {0.9 * own:.4g}, and its own noise, sampling rate, steps and one-off events cost "
        f"epsilon {own:.4g} at the same delta, adjacency, unit and release"
    )
    higher = edited(run, tmp_path / "higher", 1.1 * own)
    assert audit_run(higher, canaries=20, steps=1, seed=1).refutation is None


def test_the_accountants_tolerance_refutes_nothing() -> None:
    found = {"lower_bound": 0.1, "copy": {"epsilon": 3.0}, "claimed": {"epsilon": 2.0}}
    assert refutation({**found, "recorded_epsilon": 2.0 + tolerance(2.0)}) is None
    assert refutation({**found, "recorded_epsilon": 2.001}) is not None
    assert refutation(found) is None, "an audit of an earlier version"


def result_of(**changes: Any) -> dict[str, Any]:
    return {"steps": 8, "planned_steps": 8, "training_rows": 2000, "noise_multiplier": 1.5, **changes}


@pytest.fixture(scope="module")
def schema(run: RunFolder) -> Schema:
    return Schema.read(run.path)


@pytest.mark.parametrize("algorithm", ["adafest", "fest", "adafest+", "dp-sgd", "exponential"])
def test_a_copy_has_the_mechanism_of_the_run(algorithm: str, schema: Schema) -> None:
    copy = copy_of(config(algorithm), result_of(), schema, 30, 100)
    assert (copy.steps, copy.sampling_rate, copy.noise_multiplier, copy.max_grad_norm) == (8, 0.25, 1.5, 5.0)
    assert copy.view == "every step"
    assert copy.data.count == 30
    assert copy_of(config(algorithm), result_of(), schema, 30, 5).steps == 5


def test_one_clipped_gradient_moves_a_weight_as_far_as_in_the_run(schema: Schema) -> None:
    copy = copy_of(config("dp-sgd"), result_of(), schema, 36, 8)
    dense, tables = copy.optimizer(copy.model())  # type: ignore[misc]
    share = 0.25 * (36 + auditing.FILLERS) / 500
    assert dense.param_groups[0]["lr"] == pytest.approx(1.0 * share)
    assert tables.param_groups[0]["lr"] == pytest.approx(25.0 * share)
    adaptive = config("adafest", optimizer="adam", table_optimizer="adagrad")
    dense, tables = copy_of(adaptive, result_of(), schema, 36, 8).optimizer(copy.model())  # type: ignore[misc]
    assert (dense.param_groups[0]["lr"], tables.param_groups[0]["lr"]) == (1.0, 25.0)


def test_canaries_have_rows_and_directions_of_their_own(schema: Schema) -> None:
    columns = np.flatnonzero(np.array(schema.vocabulary_sizes) >= 60)
    data = made_up(schema, columns, 30, 2, torch.nn.Linear(5, 4))
    own, others = data.canaries[1][:, columns], data.fillers[1][:, columns]
    assert len(columns) > 5
    for column in range(len(columns)):
        rows = own[:, column].reshape(30, 2)
        assert (rows[:, 0] == rows[:, 1]).all()
        assert len(set(rows[:, 0].tolist())) == 30
        assert not set(rows.flatten().tolist()) & set(others[:, column].tolist())
    for part in (3, 4):
        assert torch.allclose(data.canaries[part].norm(dim=1), torch.ones(60))
        assert not data.fillers[part].any()


def test_tables_are_cut_and_what_follows_from_their_size_is_not(schema: Schema) -> None:
    sizes = np.array(schema.vocabulary_sizes)
    copy = copy_of(config("adafest", model_options={}), result_of(threshold=7.5), schema, 30, 8)
    tables = copy.model().model.embeddings  # type: ignore[union-attr, operator]
    assert [table.num_embeddings for table in tables] == np.minimum(sizes, 2000).tolist()
    assert [table.embedding_dim for table in tables] == [embedding_dim(int(rows)) for rows in sizes]
    assert copy.selection(None).threshold == 7.5  # type: ignore[operator]
    large = sizes[sizes > 1000]
    rows = round(100_000 * np.minimum(large, 2000).sum() / large.sum())
    assert copy_of(config("random", rows=100_000), result_of(), schema, 30, 8).selection(None).rows == rows  # type: ignore[operator]


@pytest.mark.parametrize("sampling", ["users", "rows"])
def test_users_are_canaries_with_all_their_rows(schema: Schema, sampling: str) -> None:
    settings = config("dp-sgd", unit="user", rows_per_user=3, user_sampling=sampling)
    copy = copy_of(settings, result_of(), replace(schema, rows_per_user=4), 25, 2)
    assert (copy.unit, copy.user_sample, copy.data.rows_per_canary) == ("user", sampling, 3)
    assert copy.sampling_rate == 1 / 8
    found = copy.run(NoiseSource(1).noise, 1e-6)
    assert found.statement.unit == "user"
    assert found.included.size == 25


def test_runs_that_cannot_be_audited_are_refused_by_reason(
    run: RunFolder, tmp_path: Path, schema: Schema
) -> None:
    begun = RunFolder(tmp_path / "begun")
    begun.create(config())
    with pytest.raises(ValueError, match="is not finished"):
        audit_run(begun)
    plain = RunFolder(tmp_path / "plain")
    plain.create(config("non-private"))
    plain.write_json("result", result_of(statement=None))
    with pytest.raises(ValueError, match=r"^audit: the run is not private"):
        audit_run(plain)
    begun.write_json("result", result_of(statement={}, noise_multiplier=None))
    with pytest.raises(ValueError, match=r"^audit: streaming runs are not audited yet"):
        audit_run(begun)
    with pytest.raises(ValueError, match=r"^canaries "):
        audit_run(run, canaries=0)
    small = Schema.read(run.path)
    small = type(small)(**{**vars(small), "categorical": tuple(f for f in small.categorical if f.rows < 30)})
    with pytest.raises(ValueError, match=r"^audit: every table has fewer than 40 rows"):
        copy_of(config(), result_of(), small, 100, 5)
