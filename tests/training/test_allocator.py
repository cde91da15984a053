"""A step lives on the memory that the step before it freed."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest

from sparsedp.training import allocator

STEPS = 10
MEASURE = f"""
    import resource

    import torch
    from torch import nn

    import sparsedp as sdp
    from sparsedp.training import engine

    %s
    model = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(600, 600), nn.ReLU())])
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=[torch.randn(1024, 600)],
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=1024,
        poisson=False,
    )

    def steps(count: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            for features in private.data_loader:
                private.optimizer.zero_grad()
                private.module(features).mean(dim=1).mean().backward()
                private.optimizer.step()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    steps({STEPS})
    print(steps({STEPS}) / {STEPS})
"""


def faults_a_step(before: str) -> float:
    """Page faults a step, in a process of its own: what malloc has learned depends on all that it has seen."""
    code = textwrap.dedent(MEASURE) % before
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
def test_steps_do_not_fault_their_memory_in_again() -> None:
    untaught = faults_a_step("engine.keep_freed_memory = lambda: None")
    if untaught < 1000:
        pytest.skip("this malloc keeps its pages unasked")
    assert faults_a_step("") < untaught / 4


@pytest.mark.parametrize(
    ("libc", "chosen", "told"),
    [("glibc", None, True), ("glibc", "MALLOC_TRIM_THRESHOLD_", False), ("", None, False)],
)
def test_who_has_chosen_keeps_the_choice(
    libc: str, chosen: str | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Library:
        mallopt = staticmethod(lambda *call: calls.append(call))

    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    if chosen is not None:
        monkeypatch.setenv(chosen, "1")
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: Library)
    allocator.keep_freed_memory()
    assert bool(calls) == told
