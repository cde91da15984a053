"""Killed at random moments and resumed, whatever the kind of run: never above epsilon, no step unpaid."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file
from support.killed import Server, kill_at_random
from support.runs import config, settings

from sparsedp.accounting import Ledger, PoissonSampledDpEvent, epsilon_of
from sparsedp.data import ClickData
from sparsedp.runs import resume, start
from sparsedp.runs.trainer import PrivateTrainer

DELTA = 1e-4
EPSILON = 2.0
SMALL = {
    "data": "generated:400",
    "expected_batch_size": 46,
    "epochs": 6,
    "delta": DELTA,
    "seed": None,
    "checkpoint_every": 4,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    served = Server(tmp_path_factory.mktemp("cache"))
    yield served
    served.close()


@dataclass
class Figures:
    """What came of runs that were killed."""

    kills: int = 0
    epsilons: list[float] = field(default_factory=list)
    planned: int = 0
    taken: int = 0
    lost: int = 0


def commands(kind: str, folder: Path) -> tuple[list[str], list[str], Callable[[], list[dict[str, int]]]]:
    """(how to begin, how to go on, what the finished run says of its steps)."""
    out = folder / "run"
    if kind == "api":
        out.mkdir()
        again = ["api", str(out), str(EPSILON), str(DELTA)]
        return again, again, lambda: [json.loads((folder / "output").read_text())]
    if kind == "sweep":
        plan = {"base": settings(**SMALL), "grid": {"learning_rate": [0.5, 1.0]}}
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
        again = ["sweep", str(folder / "plan.yaml"), "--out", str(out), "--json"]
        return (
            again,
            again,
            lambda: [json.loads(path.read_text()) for path in sorted(out.glob("runs/*/result.json"))],
        )
    changes = (
        {"data": "generated:600x3", "period": 1, "expected_batch_size": 20, "epochs": 2}
        if kind == "stream"
        else {}
    )
    if kind == "seeded":
        changes = {"seed": 1, "checkpoint_every": 1}
    algorithm = {"stream": "fest", "seeded": "adafest"}.get(kind, kind)
    (folder / "config.yaml").write_text(
        yaml.safe_dump(settings(algorithm, **{**SMALL, "fest_mu": 0.2, **changes}))
    )
    begin = ["train", "--config", str(folder / "config.yaml"), "--out", str(out), "--json"]
    return begin, ["resume", str(out), "--json"], lambda: [json.loads((out / "result.json").read_text())]


def killed_run(
    server: Server, kind: str, folder: Path, kills: int, rng: random.Random, figures: Figures
) -> None:
    """Kill a run so many times, then let it finish; look at its ledgers after every kill and at the end."""
    folder.mkdir()
    updates, output = folder / "updates", folder / "output"
    updates.touch()
    begin, go_on, results = commands(kind, folder)
    last: dict[Path, int] = {}
    for _ in range(kills):
        begun = any((folder / "run").glob("config.yaml"))
        child = server.start(go_on if begun else begin, updates, output)
        kill_at_random(child, updates, rng, seconds=1.0)
        ended = server.wait(child)
        assert ended in (-signal.SIGKILL, 0), output.read_text()
        figures.kills += ended != 0
        check_ledgers(folder, updates, last, kind)
    begun = any((folder / "run").glob("config.yaml"))
    child = server.start(go_on if begun else begin, updates, output)
    assert server.wait(child) == 0, output.read_text()
    paid = check_ledgers(folder, updates, last, kind)
    figures.epsilons += [epsilon for epsilon, _ in paid]
    steps = sum(steps for _, steps in paid)
    taken = sum(result["steps"] for result in results())
    planned = sum(result["planned_steps"] for result in results())
    assert 0 < taken <= planned
    figures.planned += planned
    figures.taken += taken
    figures.lost += steps - taken
    if kind == "seeded":
        check_weights(folder / "run", taken)
    if kind != "api":
        assert steps - taken == sum(result["lost_steps"] for result in results())


@functools.cache
def seeded_weights() -> dict[int, dict[str, torch.Tensor]]:
    """The weights of the seeded run after each of its steps, without a kill."""
    after: dict[int, dict[str, torch.Tensor]] = {}

    def noting(self: PrivateTrainer, path: Path, run_stats: object) -> None:
        state = self.private.module.state_dict()
        after[self.steps_taken] = {name: value.clone() for name, value in state.items()}

    asked = config("adafest", **{**SMALL, "fest_mu": 0.2, "seed": 1, "checkpoint_every": 1})
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(PrivateTrainer, "save", noting):
        start(asked, Path(folder) / "run")
    return after


def check_weights(run: Path, steps: int) -> None:
    """A seeded run that was killed has the weights that it would have had after as many steps."""
    expected = seeded_weights()[steps]
    weights = load_file(run / "model.safetensors")
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())


def killed_search(server: Server, folder: Path, kills: int, rng: random.Random, figures: Figures) -> None:
    """Kill a search; it is charged once, before its first step, and ends within epsilon."""
    folder.mkdir()
    updates, output, run = folder / "updates", folder / "output", folder / "run"
    updates.touch()
    asked = {
        **settings(**{**SMALL, "epochs": 2}),
        "model_options": "{hidden: [16], dims: [" + "1, " * 25 + "1]}",
    }
    del asked["learning_rate"], asked["seed"]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    command = [
        "tune",
        *options,
        "--grid",
        "learning_rate=0.5,1.0",
        "--runs",
        "1.5",
        "--out",
        str(run),
        "--json",
    ]
    for attempt in range(kills + 1):
        child = server.start(command, updates, output)
        if attempt < kills:
            kill_at_random(child, updates, rng, seconds=1.0)
        ended = server.wait(child)
        assert ended in ((-signal.SIGKILL, 0) if attempt < kills else (0,)), output.read_text()
        figures.kills += ended != 0
        spent = Ledger.read(run / "run.ledger").events() if (run / "run.ledger").exists() else []
        assert sum(count for _, count in spent) == bool(spent)
        assert spent or not updates.stat().st_size
        ledgers = [Ledger.read(path).events() for path in sorted(run.glob("private/run-*/run.ledger"))]
        steps = sum(count for each in ledgers for _, count in each)
        if not (run / "result.json").exists():
            assert updates.stat().st_size // 2 <= steps
        if ended == 0:  # a search that has ended before its kill is not started again
            break
    result = json.loads((run / "result.json").read_text())
    assert result["statement"]["epsilon"] <= EPSILON
    assert not [*run.glob("private/*")]
    figures.epsilons.append(result["statement"]["epsilon"])


def killed_preparation(
    server: Server, folder: Path, kills: int, rng: random.Random, figures: Figures
) -> None:
    """Kill a preparation; a vocabulary is paid for before it exists, and the folder ends whole."""
    folder.mkdir()
    updates, output = folder / "updates", folder / "output"
    updates.touch()
    files, rows = [], 4000
    for number in range(3):
        files.append(folder / f"rows-{number}.csv")
        lines = [f"{row % 2},{row / 7},site {row % 40},app {row % 90}" for row in range(rows)]
        files[-1].write_text("\n".join(["click,price,site,app", *lines]) + "\n")
    columns = ["--label", "click", "--numeric", "price", "--categorical", "site,app"]
    learned = [
        "--vocabulary-epsilon",
        "1",
        "--vocabulary-delta",
        "1e-4",
        "--ledger",
        str(folder / "run.ledger"),
    ]
    out = folder / "run"
    command = ["prepare", "table", *map(str, files), *columns, *learned, "--out", str(out), "--json"]
    paid = 0
    for attempt in range(kills + 1):
        child = server.start(command, updates, output)
        if attempt < kills:
            time.sleep(rng.uniform(0.0, 0.4))
            os.kill(child, signal.SIGKILL)
        ended = server.wait(child)
        assert ended in ((-signal.SIGKILL, 0) if attempt < kills else (0,)), output.read_text()
        figures.kills += ended != 0
        events = Ledger.read(folder / "run.ledger").events() if (folder / "run.ledger").exists() else []
        before, paid = paid, sum(count for _, count in events)
        assert before <= paid <= before + 1
        assert paid or not (out / "vocabulary.parquet").exists()
    data = ClickData.open(out)
    assert len(data) == 3 * rows
    assert data.schema.vocabulary_statement is not None


def check_ledgers(folder: Path, updates: Path, last: dict[Path, int], kind: str) -> list[tuple[float, int]]:
    """(epsilon, steps) on each ledger; none is damaged, shorter than before or above epsilon, or lacks a step."""
    found = []
    for path in sorted(folder.rglob("run.ledger")):
        ledger = Ledger.read(path)
        events = ledger.events()
        assert ledger.position >= last.get(path, 0)
        last[path] = ledger.position
        steps = sum(count for event, count in events if isinstance(event, PoissonSampledDpEvent))
        found.append((epsilon_of(events, DELTA), steps))
        assert found[-1][0] <= EPSILON
    assert all(path.exists() for path in last)
    optimizers = 1 if kind == "api" else 2
    # A kill between the updates of the two optimisers leaves one byte of a step.
    assert updates.stat().st_size // optimizers <= sum(steps for _, steps in found)
    return found


@pytest.mark.parametrize("kind", ["adafest", "api"])
def test_a_few_random_kills_never_pass_epsilon(server: Server, kind: str, tmp_path: Path) -> None:
    figures = Figures()
    killed_run(server, kind, tmp_path / "folder", 5, random.Random(f"few {kind}"), figures)
    assert figures.kills >= 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seeded", "tune", "prepare", "fest", "stream"])
def test_some_random_kills_of_each_kind(server: Server, kind: str, tmp_path: Path) -> None:
    figures, rng = Figures(), random.Random(f"some {kind}")
    other = {"tune": killed_search, "prepare": killed_preparation}
    if kind in other:
        other[kind](server, tmp_path / "folder", 6, rng, figures)
    else:
        killed_run(server, kind, tmp_path / "folder", 6, rng, figures)
    assert figures.kills >= 1


@pytest.mark.slow
def test_two_hundred_random_kills_never_pass_epsilon(server: Server, tmp_path: Path) -> None:
    """About ten minutes. Commands of every kind in turn, each killed up to eight times and then finished."""
    rng, figures = random.Random(5), Figures()
    kinds = ["adafest", "fest", "lazy", "stream", "sweep", "api", "seeded", "tune", "prepare"]
    other = {"tune": killed_search, "prepare": killed_preparation}
    began = time.monotonic()
    while figures.kills < 200:
        number = len(list(tmp_path.iterdir()))
        kind, folder = kinds[number % len(kinds)], tmp_path / f"run-{number}"
        if kind in other:
            other[kind](server, folder, 8, rng, figures)
        else:
            killed_run(server, kind, folder, 8, rng, figures)
    print(
        f"{figures.kills} kills in {time.monotonic() - began:.0f} s: epsilon at most {max(figures.epsilons):.6f} "
        f"of {EPSILON}; {figures.taken} of {figures.planned} planned steps taken, {figures.lost} lost, "
        f"{figures.lost / figures.kills:.2f} a kill"
    )
    assert max(figures.epsilons) <= EPSILON


@pytest.mark.parametrize("period", [None, 1])
def test_a_run_of_either_kind_is_started_and_read_again(period: int | None, tmp_path: Path) -> None:
    asked = config("random", data="generated:300x3", expected_batch_size=100, period=period)
    result = start(asked, tmp_path / "run")
    assert (result.periods, result.steps > 0) == (None if period is None else 2, True)
    assert resume(tmp_path / "run") == result
