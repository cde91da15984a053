"""Tuning: the best of many settings, chosen by private runs, with one price for the whole search."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_model, save_file

from sparsedp.accounting import Ledger, PrivacyStatement
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
from sparsedp.core.durable import replace_file, write_file
from sparsedp.core.strict_json import json_text
from sparsedp.core.text_files import read_json_object
from sparsedp.data import ClickData
from sparsedp.mechanisms import draw_repetitions
from sparsedp.mechanisms.repetition import Law
from sparsedp.randomness import NoiseSource
from sparsedp.runs.config import RunConfig
from sparsedp.runs.data_location import record_data, refuse_among_data
from sparsedp.runs.folder import RunFolder
from sparsedp.runs.result import Diverged, Result, read_result
from sparsedp.runs.resuming import resume, start
from sparsedp.runs.score import SENSITIVITY, noisy_score
from sparsedp.runs.search_plan import SearchPlan, plan_search
from sparsedp.runs.setup import keep_rules
from sparsedp.runs.sources import data_of, fresh_model, split
from sparsedp.runs.training import OnProgress

_LOWEST_SCORE = -sys.float_info.max
"""Of a run whose weights are not finite: to look at weights that a run may release is post-processing."""


def tune(
    base: RunConfig,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path,
    *,
    runs: float | None = None,
    law: Law = "geometric",
    on_progress: OnProgress | None = None,
) -> Result:
    """Train a random number of runs, each with settings drawn from ``grid``, into ``out``; the best one stays.

    Guarantee: ``base.epsilon`` at its delta for the whole search, add-or-remove-one example, of training and
    held-out rows alike. Released: the best run's model, settings and noisy score. Not released, and deleted: the other
    runs, their scores, how many there were. One event is on the ledger, before anything is drawn.
    Proof: a run draws its settings without a look at the data, trains on the training rows and scores on the
    held-out ones; an example is among one of the two, so a run with its score costs the worst of its parts
    (``WorstOfDpEvent``). The best of a number of runs drawn from ``law`` costs ``repetition_event`` of that.

    ``runs`` is the mean number of runs; by default as many as the grid has points. An interrupted search goes on
    when it is called again with the same arguments.
    """
    folder = RunFolder(out)
    finished = read_result(folder)
    if folder.has_config and finished is not None and _state_file(folder).exists():
        _clear_away(folder)  # what a kill at the very end left behind
        return finished
    folder.refuse_taken()
    refuse_among_data(base, out)
    plan = plan_search(base, grid, runs=runs, law=law)
    search = _Search.open(plan, folder)
    for number in range(len(search.drawn)):
        if number >= len(search.scores):
            search.run(number, on_progress)
    return search.release()


class _Search:
    """A search in its folder: ``private/`` has what was drawn, the scores and the runs, until the best is released."""

    def __init__(self, plan: SearchPlan, folder: RunFolder, state: Mapping[str, Any]) -> None:
        self.plan, self.folder = plan, folder
        self.drawn: list[int] = state["drawn"] or []
        self.scores: list[float] = state["scores"]
        self._name, self._asked, self._began = state["name"], state["asked"], state["began"]
        self._source = NoiseSource(plan.base.seed)
        self._data = data_of(plan.base)

    @classmethod
    def open(cls, plan: SearchPlan, folder: RunFolder) -> _Search:
        """Begin a search, which is charged at once, or take up one that was interrupted."""
        state = _state_file(folder)
        asked = [plan.base.to_yaml(), list(plan.settings), plan.mean, plan.law]
        if not state.exists():
            state.parent.mkdir(parents=True, exist_ok=True)
            os.chmod(state.parent, 0o700)
            name = f"{folder.path.resolve().name}-{secrets.token_hex(4)}"
            begun = {"asked": asked, "name": name, "began": time.time(), "drawn": None, "scores": []}
            write_file(state, json_text(begun))
        known = _read_state(state, len(plan.settings))
        if known["asked"] != json.loads(json_text(asked)):
            raise ValueError(f"out: {folder.path} holds a search with other settings; give another folder")
        search = cls(plan, folder, known)
        with search._ledger() as ledger:
            if not ledger.own_events():  # else it was charged before a crash
                ledger.spend(plan.event)
        if known["drawn"] is None:
            stream = search._source.sampling.fork(1)
            number = draw_repetitions(mean=plan.mean, law=plan.law, stream=stream)
            search.drawn = stream.integers(len(plan.settings), number).tolist()
            search._save()
        return search

    def _save(self) -> None:
        state = {
            "asked": self._asked,
            "name": self._name,
            "began": self._began,
            "drawn": self.drawn,
            "scores": self.scores,
        }
        write_file(_state_file(self.folder), json_text(state))

    def _ledger(self) -> Ledger:
        path = self.plan.base.ledger or self.folder.ledger
        return Ledger.open(path, run=self._name, private=self.plan.base.seed is None)

    def _run_folder(self, number: int) -> RunFolder:
        return RunFolder(self.folder.path / "private" / f"run-{number:04d}")

    def run(self, number: int, on_progress: OnProgress | None) -> None:
        """Train run ``number`` and score it; refuse one that was not trained as the search was charged.

        Held-out rows are looked at by the noisy score alone: a run whose predictions on them are not finite has one too.
        """
        config, cost = self.plan.configs[self.drawn[number]], self.plan.costs[self.drawn[number]]
        if config.seed is not None:
            config = config.model_copy(update={"seed": config.seed + number})
        folder = self._run_folder(number)
        weights = folder.weights
        try:
            result = (
                resume(folder.path, on_progress)
                if folder.has_config
                else start(config, folder.path, on_progress)
            )
        except Diverged:
            weights = folder.unusable_weights
        else:
            if result.noise_multiplier != cost.noise_multiplier or result.steps > cost.steps:
                raise RuntimeError(
                    "a run was trained otherwise than the search was charged: nothing is released"
                )
        self.scores.append(self._score(config, weights, number) if weights.exists() else _LOWEST_SCORE)
        self._save()

    def _score(self, config: RunConfig, weights: Path, number: int) -> float:
        model = fresh_model(config, self._data)
        load_model(model, str(weights))
        held_out = split(config, self._data)[1]
        assert isinstance(held_out, ClickData)
        return noisy_score(
            model,
            held_out,
            noise_multiplier=self.plan.score_noise_multiplier,
            stream=self._source.selection.fork(number),
        )

    def release(self) -> Result:
        """Make the search's folder that of its best run, with the statement of the search, and delete the others."""
        best = max(range(len(self.scores)), key=self.scores.__getitem__)
        winner, statement = self._run_folder(best), self._statement()
        own = read_result(winner)
        if own is None:
            raise Diverged(
                f"{self.folder.path}: the best run of the search diverged; lower the learning rates of the grid, in "
                "another folder (what the search spent stays spent)"
            )
        result = replace(own, statement=statement.to_dict())
        _copy_weights(winner.weights, self.folder.weights, str(statement))
        self.folder.write_json("statement", statement.to_dict())
        self.folder.write_json(
            "tuning",
            {
                "grid": list(self.plan.settings),
                "chosen": self.plan.settings[self.drawn[best]],
                "score": self.scores[best],
                "score_std": self._score_std,
                "mean_runs": self.plan.mean,
                "law": self.plan.law,
            },
        )
        self.folder.write_json("result", asdict(result))
        # The epsilon of the search, not that of the run, which would be too low a price.
        base, config = self.plan.base, self.plan.configs[self.drawn[best]]
        config = config.model_copy(update={"epsilon": base.epsilon, "ledger": base.ledger})
        keep_rules(self.folder, self._data)
        record_data(self.folder, config)
        self.folder.create(config)
        _clear_away(self.folder)
        return result

    @property
    def _score_std(self) -> float:
        """The noise of a score, in log-loss."""
        held_out = split(self.plan.base, self._data)[1]
        return self.plan.score_noise_multiplier * SENSITIVITY / len(held_out)

    def _statement(self) -> PrivacyStatement:
        plan = self.plan
        notes = (
            f"one price for a {plan.law} number of runs, {plan.mean:g} on average, each with one of "
            f"{len(plan.settings)} settings; the others were deleted",
            "AUC and log-loss in result.json have no noise: they are not covered",
        )
        if plan.base.ledger is not None:
            with self._ledger() as ledger:
                spent = ledger.statement(plan.delta)
            return PrivacyStatement(**{**spent.to_dict(), "notes": (*spent.notes, *notes)})
        return PrivacyStatement(
            plan.epsilon,
            plan.delta,
            ADD_OR_REMOVE_ONE,
            "example",
            "the best of several runs: its model, its settings and its noisy score on the held-out rows",
            plan.base.seed is None,
            notes if plan.base.seed is None else ("the noise is seeded", *notes),
        )


def _read_state(path: Path, settings: int) -> dict[str, Any]:
    """How far a search has come."""
    known = read_json_object(path)
    drawn, scores = known.get("drawn"), known.get("scores")
    if (
        known.keys() != {"asked", "name", "began", "drawn", "scores"}
        or type(known["began"]) not in (int, float)
        or not isinstance(known["name"], str)
        or not (drawn is None or (isinstance(drawn, list) and all(type(each) is int for each in drawn)))
        or not all(0 <= each < settings for each in drawn or ())
        or not (isinstance(scores, list) and all(type(each) in (int, float) for each in scores))
        or len(scores) > len(drawn or ())
    ):
        raise ValueError(
            f"out: {path}, which says how far the search has come, is damaged; begin another search"
        )
    return known


def _state_file(folder: RunFolder) -> Path:
    return folder.path / "private" / "search.json"


def _clear_away(folder: RunFolder) -> None:
    """Delete the runs that were not chosen, and last of all what says that there was a search.

    The files get the time at which the search began: how long it took says how many runs there were.
    """
    state = _state_file(folder)
    began = read_json_object(state).get("began", time.time())
    for run in state.parent.glob("run-*"):
        shutil.rmtree(run)
    for path in folder.path.rglob("*"):
        os.utime(path, (began, began))
    state.unlink()
    if any(state.parent.iterdir()):
        os.utime(state.parent, (began, began))
    else:
        state.parent.rmdir()
    os.utime(folder.path, (began, began))


def _copy_weights(source: Path, target: Path, privacy: str) -> None:
    """The weights with another privacy statement in their metadata."""
    with safe_open(str(source), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {**(file.metadata() or {}), "privacy": privacy}
    replace_file(target, lambda partial: save_file(tensors, str(partial), metadata=metadata))
