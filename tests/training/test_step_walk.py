"""The walk of a batch in docs/architecture.md is the one that a real step takes."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = Path(sdp.__file__).parent

FROM_OUTSIDE = {
    ("training/optimizer.py", "PrivateOptimizer.zero_grad"),
    ("clipping/anchor.py", "_LeafOutput.backward"),
    ("clipping/anchor.py", "_WithSentinel.backward"),
}
"""Calls that the user or torch makes beside the path, as the page says."""

Function = tuple[str, str]
"""File and qualified name."""


class Trace(NamedTuple):
    """The functions of the package that a step called, by first call, and those that foreign code called."""

    functions: list[Function]
    roots: set[Function]

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


class Model(nn.Module):
    """One embedding, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids)).squeeze(1)


def listed() -> list[Function]:
    rows = re.findall(r"^\| `([\w.]+)` \| `(\w+/\w+\.py)` \|", PAGE, flags=re.MULTILINE)
    return [(file, name) for name, file in rows]


def function_of(frame: FrameType | None) -> Function | None:
    """The function of the package that a frame runs; comprehensions count as the function around them."""
    if frame is None or not Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
        return None
    name = re.sub(r"\.<locals>\..*", "", frame.f_code.co_qualname)
    return Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix(), name


def traced(action: Callable[[], None]) -> Trace:
    functions: dict[Function, None] = {}
    roots: set[Function] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        function = function_of(frame) if event == "call" else None
        if function is None:
            return
        functions.setdefault(function)
        caller = frame.f_back
        while caller is not None and function_of(caller) is None:
            caller = caller.f_back
        if caller is None and frame.f_back is not None:  # a compiled function does not know its caller
            roots.add(function)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return Trace(list(functions), roots)


@pytest.fixture(scope="module")
def trace() -> Trace:
    generator = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(50, (64,), generator=generator), torch.rand(64, generator=generator).round()
    model = Model()
    private = sdp.PrivacyEngine(seed=0, secure=False).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(ids, labels), batch_size=16),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(threshold=2.0, always_on_rows=0),
    )
    batches = iter(private.data_loader)

    def step() -> None:
        x, y = next(batches)
        private.optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(private.module(x), y).backward()
        private.optimizer.step()

    step()  # the first one also compiles, and probes the model
    return traced(step)


def test_the_functions_of_the_page_are_called_in_its_order(trace: Trace) -> None:
    walk = listed()
    assert not [function for function in walk if function not in trace.functions]
    assert walk == [function for function in trace.functions if function in set(walk)]


def test_the_path_on_the_page_is_at_most_20_functions_in_12_files() -> None:
    walk = listed()
    assert 15 <= len(set(walk)) == len(walk) <= 20
    assert len({file for file, _ in walk}) <= 12


def test_the_lines_of_algorithm_1_are_those_of_the_papers_page() -> None:
    walk = dict(
        re.findall(r"^\| `([\w.]+)` \| `[\w/]+\.py` \|.*?\blines? ([\d to]+):", PAGE, flags=re.MULTILINE)
    )
    assert walk
    section = (ROOT / "docs" / "papers.md").read_text().split("### FEST, Algorithm 1")[1].split("\n###")[0]
    for name, lines in walk.items():
        first, last = (int(number) for number in (lines.split(" to ") * 2)[:2])
        assert 1 <= first <= last <= 10, name  # Algorithm 1 has ten lines
        for row in re.findall(
            rf"^\| ([\d, ]+):.*`sparsedp\.[\w.]*\b{re.escape(name)}`", section, flags=re.MULTILINE
        ):
            assert {first, last} & {int(number) for number in row.split(",")}, name


def test_everything_else_is_a_helper_of_the_path(trace: Trace) -> None:
    assert trace.roots <= {*listed(), *FROM_OUTSIDE}
    rooms = {"core"} | {file.split("/")[0] for file, _ in listed()}  # every room may use core
    assert {file.split("/")[0] for file in trace.files} <= rooms


def test_the_step_does_not_grow(trace: Trace) -> None:
    assert len(trace.files) <= 36
    assert len(trace.functions) <= 205


def test_the_rooms_of_the_page_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rooms = re.findall(r"^\| `(\w+)` \|", PAGE.split("\n## ")[1], flags=re.MULTILINE)
    assert rooms == [layer.removeprefix("sparsedp.") for layer in reversed(layers)]
    assert set(rooms) == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
