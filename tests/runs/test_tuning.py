"""A search: one event for all of it, only the best run left, interruptions that cost nothing more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from support.runs import config

from sparsedp import load
from sparsedp.accounting import GaussianDpEvent, Ledger, RepeatAndSelectDpEvent
from sparsedp.accounting.event_json import event_key
from sparsedp.data import Schema
from sparsedp.runs import RunConfig, RunFolder, start, training, tune, tuning
from sparsedp.runs.data_location import data_record
from sparsedp.runs.evaluation import Evaluation, evaluate_run
from sparsedp.runs.result import Diverged
from sparsedp.runs.training import Progress

GRID = {"learning_rate": [0.1, 1.0], "max_grad_norm": [1.0, 5.0]}


def asked(**changes: Any) -> RunConfig:
    return config(data="generated:600", expected_batch_size=300, epsilon=4.0, **changes)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A finished search of three runs, and what each scored."""
    out = tmp_path_factory.mktemp("tune") / "best"
    seen: list[Any] = []
    scores = iter([0.1, 0.9, 0.4])
    patch = pytest.MonkeyPatch()
    patch.setattr(tuning, "draw_repetitions", lambda **_: 3)

    def score(model: Any, data: Any, **_: Any) -> float:
        seen.append([parameter.detach().clone() for parameter in model.parameters()])
        return next(scores)

    patch.setattr(tuning, "noisy_score", score)
    tune(asked(), GRID, out, runs=3)
    patch.undo()
    return out, seen


def test_the_ledger_holds_one_event_for_the_whole_search(searched: tuple[Path, list[Any]]) -> None:
    folder = RunFolder(searched[0])
    ((event, count),) = Ledger.read(folder.ledger).events()
    assert count == 1
    assert isinstance(event, RepeatAndSelectDpEvent)
    assert (event.mean, event.shape) == (3.0, 1.0)
    statement = folder.read_json("statement")
    result = folder.read_json("result")
    assert statement is not None
    assert result is not None
    assert result["statement"] == statement
    assert 3.5 < statement["epsilon"] <= 4.0
    assert Ledger.read(folder.ledger).statement(statement["delta"]).epsilon == statement["epsilon"]
    assert folder.config().epsilon == 4.0


def test_the_best_run_is_released_and_nothing_of_the_others(searched: tuple[Path, list[Any]]) -> None:
    out, seen = searched
    assert not (out / "private").exists()
    assert len({path.stat().st_mtime for path in (out, *out.iterdir())}) == 1  # nothing of how long it took
    tuned = RunFolder(out).read_json("tuning")
    assert tuned is not None
    assert tuned["score"] == 0.9
    config = RunFolder(out).config()
    assert {name: getattr(config, name) for name in GRID} == tuned["chosen"]
    with safe_open(str(RunFolder(out).weights), framework="pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
        privacy = file.metadata()["privacy"]
    assert "one price for a geometric number of runs" in privacy
    assert sum(float(each.sum()) for each in tensors) == pytest.approx(
        sum(float(each.sum()) for each in seen[1]), rel=1e-6
    )


def test_the_folder_is_that_of_a_run(searched: tuple[Path, list[Any]]) -> None:
    out, _ = searched
    result = RunFolder(out).read_json("result")
    assert result is not None
    assert evaluate_run(out).auc == result["auc"]
    with pytest.raises(ValueError, match="already holds a run"):
        tune(asked(), GRID, out, runs=3)


def test_the_best_run_predicts(searched: tuple[Path, list[Any]]) -> None:
    model = load(searched[0])
    predicted = model.predict_proba({name: [1, None, 2] for name in model.columns})
    assert predicted.shape == (3,)
    assert model.statement is not None
    assert "one price" in str(model.statement)


def test_what_cannot_be_trained_is_refused_before_it_is_paid(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hidden"):
        tune(asked(), {"model_options": [{"hidden": [4]}, {"hidden": [0]}]}, tmp_path / "best")
    assert not (tmp_path / "best").exists()


def diverging(first: int) -> Any:
    """``start``, but that the first so many runs have weights that are not finite."""
    begun: list[Path] = []

    def begin(config: RunConfig, path: Path, on_progress: Any) -> Any:
        begun.append(path)
        rate = 1e38 if len(begun) <= first else 1.0
        return start(config.model_copy(update={"learning_rate": rate}), path, on_progress)

    return begin


def test_a_run_that_diverges_is_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 2)
    monkeypatch.setattr(tuning, "start", diverging(first=1))
    tune(asked(), GRID, tmp_path / "best")
    tuned = RunFolder(tmp_path / "best").read_json("tuning")
    assert tuned is not None
    assert tuned["score"] > -100


def test_a_search_whose_runs_all_diverge_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 2)
    monkeypatch.setattr(tuning, "start", diverging(first=2))
    for _ in range(2):  # also when it is asked again
        with pytest.raises(Diverged, match="stays spent"):
            tune(asked(), GRID, tmp_path / "best")
    assert len(Ledger.read(RunFolder(tmp_path / "best").ledger).events()) == 1


def test_predictions_that_are_not_finite_count_by_the_noisy_score_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = Evaluation(auc=0.5, log_loss=float("inf"), rows=60, constant_log_loss=0.5)
    monkeypatch.setattr(training, "evaluate", lambda *_: evaluation)
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 2)
    monkeypatch.setattr(tuning, "noisy_score", lambda *_, **__: -0.5)
    with pytest.raises(Diverged):
        tune(asked(), GRID, tmp_path / "best")
    assert json.loads((tmp_path / "best" / "private" / "search.json").read_text())["scores"] == [-0.5, -0.5]


def test_a_kill_at_the_very_end_leaves_nothing_behind(
    searched: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path / "best")
    (tmp_path / "best" / "private" / "run-0001").mkdir(parents=True)
    (tmp_path / "best" / "private" / "search.json").write_text("{}")
    result = tune(asked(), GRID, tmp_path / "best", runs=3)
    assert asdict(result) == RunFolder(tmp_path / "best").read_json("result")
    assert not (tmp_path / "best" / "private").exists()


def test_an_interrupted_search_goes_on_and_is_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 2)
    steps: Iterator[int] = iter(range(100))

    def stop(progress: Progress) -> None:
        if next(steps) == 2:  # in the second run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(asked(), GRID, tmp_path / "best", runs=3, on_progress=stop)
    folder = RunFolder(tmp_path / "best")
    charged = Ledger.read(folder.ledger).events()
    with pytest.raises(ValueError, match="holds a search with other settings"):
        tune(asked(), GRID, tmp_path / "best", runs=4)
    monkeypatch.setattr(tuning, "draw_repetitions", None)  # it was drawn
    tune(asked(), GRID, tmp_path / "best", runs=3)
    assert [(event_key(event), count) for event, count in Ledger.read(folder.ledger).events()] == [
        (event_key(event), count) for event, count in charged
    ]
    assert sum(count for _, count in charged) == 1


def test_a_run_that_was_not_trained_as_charged_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charged for more noise than the run then has."""
    plan = tuning.plan_search(asked(), GRID, runs=3)
    quiet = tuple(replace(cost, noise_multiplier=1.5 * cost.noise_multiplier) for cost in plan.costs)
    monkeypatch.setattr(tuning, "plan_search", lambda *_, **__: replace(plan, costs=quiet))
    with pytest.raises(RuntimeError, match="trained otherwise than the search was charged"):
        tune(asked(), GRID, tmp_path / "best", runs=3)
    assert not RunFolder(tmp_path / "best").weights.exists()


def test_the_calibration_of_the_output_is_in_the_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 1)
    base = asked(calibration_mu=0.1)
    plan = tuning.plan_search(base, GRID, runs=2)
    assert [event for event, _ in plan.costs[0].events].count(GaussianDpEvent(10.0)) == 1
    tune(base, GRID, tmp_path / "best", runs=2)  # which refuses a run that has another noise than was charged


@pytest.mark.parametrize(
    ("grid", "changes", "words"),
    [
        ({"epsilon": [1.0, 2.0]}, {}, "grid: epsilon is the same for all runs"),
        ({"train_periods": [1, 2]}, {}, "grid: train_periods is the same for all runs"),
        ({"frequencies": ["first", "all"]}, {}, "grid: frequencies is the same for all runs"),
        ({"learning_rate": []}, {}, "grid: learning_rate has no values"),
        ({"learning_rate": [1.0]}, {}, "grid: there is nothing to choose from"),
        ({"learning_rate": [1.0, -1.0]}, {}, "learning_rate: "),
        ({"algorithm": ["adafest", "non-private"]}, {}, "epsilon: a non-private run has none"),
        (GRID, {"data": "generated:600x3", "period": 1}, "period: a search has no periods"),
    ],
    ids=str,
)
def test_what_cannot_be_searched_is_refused(
    grid: Any, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    base = RunConfig.parse({**asked().model_dump(exclude_unset=True), **changes})
    with pytest.raises(ValueError, match=words):
        tune(base, grid, tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_a_selection_without_renyi_divergences_is_refused(tmp_path: Path) -> None:
    base = config("exponential", data="generated:600", expected_batch_size=300, epsilon=4.0)
    with pytest.raises(ValueError, match="ExponentialSelection cannot be searched"):
        tune(base, GRID, tmp_path / "best")


def test_a_search_on_prepared_data_still_knows_its_data(
    other_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "draw_repetitions", lambda **_: 1)
    options = {"hidden": [4], "dims": [2, 2]}
    base = config(data=str(other_data), model_options=options, expected_batch_size=100, epsilon=4.0)
    tune(base, GRID, tmp_path / "best")
    folder = RunFolder(tmp_path / "best")
    assert data_record(folder)["digest"] == Schema.read(other_data).digest
    assert [path.name for path in (folder.path / "private").iterdir()] == ["data.json"]
    assert len({path.stat().st_mtime for path in [folder.path, *folder.path.rglob("*")]}) == 1
    evaluate_run(folder.path)
