"""The study of the frontier: its search and its grids."""

from __future__ import annotations

import itertools
from typing import Any

import polars as pl
import pytest

from experiments.common.study import Study
from experiments.fest import frontier
from experiments.fest.frontier import DATA_SETS, MOVES, OWN_MOVES, QUICK, SEARCH_SEED, SEEDS
from sparsedp.planning.recipes import MOST_EPOCHS

SOURCE = "generated:4000"


def grid(algorithm: str, factors: frontier.Factors, epsilon: float = 1.0) -> dict[str, Any]:
    size = frontier.sizes(algorithm, SOURCE, epsilon)[0]
    found = frontier._grid(algorithm, SOURCE, epsilon, size, factors, [SEARCH_SEED])
    return {name: values[0] for name, values in found.items()}


def test_every_algorithm_has_as_many_trials_and_seeds_that_chose_nothing() -> None:
    assert {each.algorithms for each in DATA_SETS} == {tuple(OWN_MOVES)}
    assert {len(move) for moves in (*MOVES.values(), OWN_MOVES.values()) for move in moves} == {1}
    assert SEARCH_SEED not in SEEDS


@pytest.mark.parametrize("algorithm", OWN_MOVES)
@pytest.mark.parametrize("epsilon", frontier.EPSILONS)
def test_the_sizes_of_an_algorithm_differ(algorithm: str, epsilon: float) -> None:
    found = frontier.sizes(algorithm, SOURCE, epsilon)
    grids = [frontier._grid(algorithm, SOURCE, epsilon, size, {}, SEEDS) for size in found]
    assert all(one != other for one, other in itertools.combinations(grids, 2))


@pytest.mark.parametrize("algorithm", OWN_MOVES)
def test_what_follows_from_a_longer_training_is_the_recipes(algorithm: str) -> None:
    recipe, longer = grid(algorithm, {}), grid(algorithm, {"epochs": 2.0})
    assert longer["epochs"] == 2 * recipe["epochs"]
    assert longer["expected_batch_size"] == recipe["expected_batch_size"]
    assert longer["table_learning_rate"] < recipe["table_learning_rate"]
    for name in ("memory_steps", "update_every"):
        if name in recipe:
            assert longer[name] == 2 * recipe[name]
    assert grid(algorithm, {"epochs": 2.0}, epsilon=8.0)["epochs"] == MOST_EPOCHS


@pytest.mark.parametrize(("algorithm", "own"), OWN_MOVES.items())
def test_a_move_changes_what_it_names_and_nothing_else(algorithm: str, own: frontier.Factors) -> None:
    recipe, moved = grid(algorithm, {}), grid(algorithm, own)
    ((name, factor),) = own.items()
    assert moved[name] == pytest.approx(factor * recipe[name], rel=0.01)
    assert {**moved, name: recipe[name]} == recipe


def test_a_move_is_kept_if_its_auc_is_higher(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    aucs = [0.6, 0.7, 0.7005, 0.71, 0.7, 0.8, 0.79, 0.81, 0.8105, 0.9]
    left = iter(aucs)
    monkeypatch.setattr(frontier, "runs_of", lambda *_: pl.DataFrame({"auc": [next(left)]}))
    won, trials = frontier._searched(QUICK, "fest", SOURCE, Study("fest-frontier", tmp_path))
    assert won[1.0] == {"fest_mu": 2.0, "epochs": 2.0}
    assert won[3.0] == won[8.0] == {"table_learning_rate": 2.0, "expected_batch_size": 0.5}
    assert trials["AUC"].to_list() == [round(auc, 4) for auc in aucs]
    assert trials["tried"][2] == "fest_mu x 2, table_learning_rate x 2"
    assert next(left, None) is None


def test_no_setting_is_tried_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    left = iter([0.6, 0.7, 0.8, 0.6, 0.6, 0.6, 0.6, 0.7, 0.6, 0.6])
    monkeypatch.setattr(frontier, "runs_of", lambda *_: pl.DataFrame({"auc": [next(left)]}))
    won, trials = frontier._searched(QUICK, "lazy", SOURCE, Study("fest-frontier", tmp_path))
    assert won[1.0] == {"table_learning_rate": 0.25}
    assert won[8.0] == {"table_learning_rate": 2.0}
    assert trials.select("epsilon", "tried").is_unique().all()


def test_a_trial_that_diverged_does_not_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    found = iter([pl.DataFrame({"auc": [0.6]}), *[pl.DataFrame()] * 4])
    monkeypatch.setattr(frontier, "runs_of", lambda *_: next(found))
    won, _ = frontier._searched(QUICK, "fest", SOURCE, Study("fest-frontier", tmp_path, quick=True))
    assert won == {1.0: {}}
