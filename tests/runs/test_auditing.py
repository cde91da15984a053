from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from support.copies import audited, result_of
from support.language import write_model, write_reviews
from support.runs import config, result
from support.visits import prepare_visits, visits_config

from sparsedp.accounting import Ledger, epsilon_of
from sparsedp.accounting.pld.composition import tolerance
from sparsedp.data import ClickData, Columns, HashRule, Label, Table, prepare
from sparsedp.data.schema import Schema
from sparsedp.runs import RunFolder, TextConfig, start, stream, train
from sparsedp.runs.auditing import audit_run, copy_of, refutation
from sparsedp.runs.click_copy import click_copy
from sparsedp.runs.sources import split

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


def test_a_copy_without_the_noise_that_it_claims_is_refuted(run: RunFolder) -> None:
    """The control: a hundredth of the noise, with the statement of the right copy."""
    result = run.read_json("result")
    assert result is not None
    found = audited(copy_of(run, result, 1000, 1), noise=0.01, sampling_rate=1.0)
    assert found.lower_bound > 3.0
    assert found.refutation is not None


def test_a_bound_above_the_claim_of_the_run_refutes_it() -> None:
    """Also where the copy's own account, which is made anew, covers the bound."""
    found = {"lower_bound": 1.0, "copy": {"epsilon": 3.0}, "claimed": {"epsilon": 0.5}}
    same = "at the same delta, adjacency and unit"
    assert refutation(found) == f"the copy let through epsilon 1 or more, and the run claims 0.5 {same}"
    other = {**found, "copy": {"epsilon": 0.5}, "claimed": {"epsilon": 3.0}}
    assert refutation(other) == f"the copy let through epsilon 1 or more, and it should have spent 0.5 {same}"
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


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on data with a multi-hot column."""
    folder = tmp_path_factory.mktemp("tagged")
    draw = np.random.default_rng(0)
    tags = ["|".join(map(str, draw.integers(0, 900, draw.integers(0, 4)))) for _ in range(300)]
    frame = {"click": draw.integers(0, 2, 300), "item": draw.integers(0, 900, 300), "tags": tags}
    pl.DataFrame(frame).write_csv(folder / "clicks.csv")
    columns = Columns(Label.parse("click"), numeric=(), categorical=("item",), multi_hot=("tags",))
    rules = {"item": HashRule(500), "tags": HashRule(400)}
    prepare(Table.of([folder / "clicks.csv"], columns), folder / "data", rules)
    options = {"model": "dlrm", "model_options": {"dim": 4, "top": [8]}, "expected_batch_size": 100}
    train(config("dp-sgd", data=str(folder / "data"), delta=1e-6, **options), folder / "run")
    return RunFolder(folder / "run")


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A stream whose second period has twice the rows of the others."""
    folder = tmp_path_factory.mktemp("streamed")
    days = np.repeat([0, 1, 1, 2, 3], 100)
    draw = np.random.default_rng(0)
    frame = {"click": draw.integers(0, 2, 500), "item": draw.integers(0, 900, 500), "day": days}
    pl.DataFrame(frame).write_csv(folder / "clicks.csv")
    columns = Columns(Label.parse("click"), numeric=(), categorical=("item",), time="day")
    prepare(Table.of([folder / "clicks.csv"], columns), folder / "data", {"item": HashRule(1500)})
    options = {"expected_batch_size": 40, "rows": 300, "model_options": {"hidden": [8], "dims": [4]}}
    asked = config("fest", data=str(folder / "data"), period=1, delta=1e-6, fest_mu=0.2, **options)
    stream(asked, folder / "run")
    return RunFolder(folder / "run")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run on texts."""
    folder = tmp_path_factory.mktemp("written")
    write_reviews(folder / "texts.tsv", 200)
    write_model(folder / "model", vocab_size=400)
    fields = {
        "data": str(folder / "texts.tsv"),
        "model": str(folder / "model"),
        "algorithm": "fest",
        "rows": 20,
    }
    sizes = {"expected_batch_size": 50, "epochs": 1.0, "lora_rank": 2, "always_on_rows": 16, "seed": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEDP_CACHE", str(folder / "cache"))
        start(TextConfig.parse({**fields, **sizes, "epsilon": 4.0, "delta": 1e-6}), folder / "run")
    return RunFolder(folder / "run")


@pytest.mark.parametrize(("kind", "canaries"), [("tagged", 250), ("streamed", 300), ("written", 200)])
def test_every_kind_of_run_keeps_its_claim_and_half_of_it_is_refuted(
    kind: str, canaries: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of its data is read: the folder of the run, and of texts the encoder, are all there is."""
    folder: RunFolder = request.getfixturevalue(kind)
    for reader in ("sparsedp.data.clicks.ClickData.open", "sparsedp.runs.text.read_tsv"):
        monkeypatch.setattr(reader, lambda *_, **__: pytest.fail("the data was opened"))
    found = audit_run(folder, canaries=300, seed=1)
    assert found.refutation is None
    assert found.canaries == canaries
    assert 0.0 < found.copy["epsilon"] <= found.claimed["epsilon"] + tolerance(4.0)
    assert found.recorded_epsilon == pytest.approx(found.claimed["epsilon"], rel=1e-3)
    assert (found.period is None) == (kind != "streamed")
    half = edited(folder, tmp_path / "half", 0.5 * found.claimed["epsilon"])
    refuted = audit_run(half, canaries=20, steps=1, seed=1)
    assert refuted.refutation is not None
    assert refuted.recorded_epsilon == found.recorded_epsilon


def test_of_a_stream_the_period_that_cost_most_is_copied(streamed: RunFolder, tmp_path: Path) -> None:
    result = streamed.read_json("result")
    assert result is not None
    assert [figures["training_rows"] for figures in result["period_figures"]] == [100, 200, 100]
    shutil.copytree(streamed.path, tmp_path / "run")
    for number in range(3):
        figures = [dict(each) for each in result["period_figures"]]
        figures[number]["noise_multiplier"] *= 0.9
        changed = RunFolder(tmp_path / "run")
        changed.write_json("result", {**result, "period_figures": figures})
        found = audit_run(changed, canaries=20, steps=2, seed=1)
        assert (found.period, found.steps) == (number, 2)
        assert (found.recorded_epsilon or 0.0) > 1.05 * found.claimed["epsilon"]
        assert found.refutation is not None
    figures[2] |= {"steps": 0, "lost_steps": 3}  # crashes used up its epsilon: there is nothing to copy
    changed.write_json("result", {**result, "period_figures": figures})
    found = audit_run(changed, canaries=20, steps=2, seed=1)
    assert found.period != 2
    assert found.refutation is not None, "it was charged all the same"


@pytest.mark.parametrize(("frequencies", "sample"), [("running", "users"), ("first", "rows")])
def test_of_a_stream_of_users_the_longest_period_is_copied(
    frequencies: str, sample: str, tmp_path: Path
) -> None:
    """Its bound and the cost of the whole ledger are compared with the claim; the costliest period's price is refuted."""
    data = prepare_visits(tmp_path)
    asked = visits_config(data, "fest", frequencies=frequencies, user_sampling=sample, epochs=2)
    stream(asked, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    found = audit_run(run, canaries=40, steps=3, seed=1)
    steps = [figures["steps"] for figures in (run.read_json("result") or {})["period_figures"]]
    assert found.period == steps.index(max(steps))
    assert found.refutation is None
    assert found.claimed["unit"] == found.copy["unit"] == "user"
    assert found.recorded_epsilon == pytest.approx(found.claimed["epsilon"], rel=1e-3)
    one = max(
        epsilon_of([each], found.claimed["delta"]) for each in Ledger.read(run.ledger).events() if each[1] > 1
    )
    assert audit_run(edited(run, tmp_path / "one", one), canaries=20, steps=1, seed=1).refutation is not None


@pytest.mark.parametrize("period", [None, 1])
def test_a_claim_below_the_runs_own_events_on_a_shared_ledger_is_refuted(
    period: int | None, tmp_path: Path
) -> None:
    """Of users, whose number the ledger alone has; other runs on it are no part of what the run is asked for."""
    data, shared = prepare_visits(tmp_path), str(tmp_path / "all.ledger")
    for name in ("run", "later"):
        start(visits_config(data, ledger=shared, period=period), tmp_path / name)
    run = RunFolder(tmp_path / "run")
    found = audit_run(run, canaries=20, steps=1, seed=1)
    assert found.recorded_epsilon == pytest.approx(found.claimed["epsilon"], rel=1e-3)
    assert found.refutation is None
    lower = edited(run, tmp_path / "lower", 0.9 * found.claimed["epsilon"])
    assert "the run claims epsilon" in (audit_run(lower, canaries=20, steps=1, seed=1).refutation or "")


def test_runs_that_cannot_be_audited_are_refused_by_reason(run: RunFolder, tmp_path: Path) -> None:
    begun = RunFolder(tmp_path / "begun")
    begun.create(config())
    with pytest.raises(ValueError, match="is not finished"):
        audit_run(begun)
    plain = RunFolder(tmp_path / "plain")
    plain.create(config("non-private"))
    plain.write_json("result", result())
    with pytest.raises(ValueError, match=r"^audit: the run is not private"):
        audit_run(plain)
    claim = (run.read_json("result") or {})["statement"]
    begun.write_json("result", result(statement=claim))
    with pytest.raises(ValueError, match=r"^audit: the result does not have the noise of its steps"):
        audit_run(begun)
    early = RunFolder(tmp_path / "early")
    early.create(config(period=1))
    early.write_json("result", result(statement=claim))
    with pytest.raises(ValueError, match=r"^audit: the result does not have the noise of its steps"):
        audit_run(early)
    with pytest.raises(ValueError, match=r"^canaries "):
        audit_run(run, canaries=0)
    small = Schema.read(run.path)
    small = replace(small, categorical=tuple(f for f in small.categorical if f.rows < 30))
    with pytest.raises(ValueError, match=r"^audit: every table has fewer than 40 rows"):
        click_copy(config(), result_of(), small, 100, 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"statement": 3},
        {"statement": {"epsilon": 1.0}},
        {"noise_multiplier": "much"},
        {"training_rows": 0},
        None,
    ],
)
def test_a_result_that_is_no_runs_is_refused_in_words(
    run: RunFolder, changes: dict[str, object] | None, tmp_path: Path
) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    folder.write_json("result", {} if changes is None else {**(run.read_json("result") or {}), **changes})
    with pytest.raises(ValueError, match=r"result.json is not the result of a run"):
        audit_run(folder)


def test_settings_and_result_of_different_runs_are_refused(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    folder, result = RunFolder(tmp_path / "run"), run.read_json("result") or {}
    folder.write_json("result", {**result, "statement": {**result["statement"], "unit": "user"}})
    with pytest.raises(ValueError, match="its settings protect one example, its result one user"):
        audit_run(folder)
    folder.write_json("result", {**result, "steps": 0})
    with pytest.raises(ValueError, match="the run took no step"):
        audit_run(folder)


@pytest.mark.parametrize("sampled", ["users", "rows"])
def test_a_copy_draws_users_at_the_rate_of_the_run(sampled: str, tmp_path: Path) -> None:
    """Which rounded epochs hide: a batch of 40 of some 54 users is one step in two of two epochs."""
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({"who": rng.integers(0, 60, 500), "item": rng.integers(0, 900, 500)})
    frame.with_columns(y=pl.col("item") % 2).write_csv(tmp_path / "visits.csv")
    columns = Columns(label=Label.parse("y"), categorical=("item",), user="who", rows_per_user=6)
    prepare(Table.of([tmp_path / "visits.csv"], columns), tmp_path / "data", {"item": HashRule(400)})
    asked = config(
        "dp-sgd",
        data=str(tmp_path / "data"),
        unit="user",
        user_sampling=sampled,
        expected_batch_size=40,
        epochs=2.0,
        model_options={"hidden": [4], "dims": [2]},
    )
    train(asked, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    figures = folder.read_json("result")
    assert figures is not None
    training, _ = split(asked, ClickData.open(tmp_path / "data"))
    exact = 40 / (np.unique(training.user).size if sampled == "users" else len(training))
    assert figures["sampling_rate"] == pytest.approx(exact)
    assert copy_of(folder, figures, 100, 2).sampling_rate == figures["sampling_rate"]
