"""Small runs that are saved and resumed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private
from support.models import TwoTables

CASES: dict[str, tuple[Callable, Callable]] = {  # type: ignore[type-arg]
    "sgd": (lambda: sdp.AdaFEST(false_positives=3, always_on_rows=10), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adagrad": (lambda: sdp.AdaFEST(false_positives=3), lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "lazy": (lambda: sdp.DPSGD(lazy=True), lambda p: torch.optim.SGD(p, lr=0.1)),
    "private top-k": (
        lambda: sdp.FEST.private_top_k({"large": torch.arange(300).numpy()}, 30, mu=0.5, always_on_rows=10),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
    "memory": (
        lambda: sdp.AdaFEST(noise_ratio=2.0, threshold=2.0, always_on_rows=10, memory_steps=20),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
    "lazy top-k": (
        lambda: sdp.FEST.private_top_k(
            {"large": torch.arange(300).numpy()}, 30, mu=0.5, always_on_rows=10, lazy=True
        ),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
}


def examples() -> DataLoader:  # type: ignore[type-arg]
    generator = torch.Generator().manual_seed(1)
    columns = [torch.randint(0, high, (400,), generator=generator) for high in (300, 7)]
    ids = torch.stack(columns, 1)
    return DataLoader(TensorDataset(ids, (ids[:, 1] % 2).float()), batch_size=20)


def make(
    selection: sdp.selection.Selection,
    optimizer: Callable = lambda p: torch.optim.SGD(p, lr=0.1),  # type: ignore[type-arg]
    seed: int | None = 5,
    engine: sdp.PrivacyEngine | None = None,
    **options: object,
) -> tuple[sdp.PrivacyEngine, Private]:
    torch.manual_seed(0)
    model = TwoTables()
    engine = engine or sdp.PrivacyEngine(seed=seed, secure=seed is None)
    chosen: dict = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "data_loader": examples()} | options  # type: ignore[type-arg]
    private = engine.make_private(
        module=model, optimizer=optimizer(model.parameters()), selection=selection, **chosen
    )
    return engine, private


def start(case: str, seed: int | None = 5) -> tuple[sdp.PrivacyEngine, Private]:
    selection, optimizer = CASES[case]
    return make(selection(), optimizer, seed)


def train(private: Private, until: int) -> None:
    while private.optimizer.steps_taken < until:
        for ids, label in private.data_loader:
            private.optimizer.zero_grad()
            bce(private.module(ids), label).backward()
            private.optimizer.step()
            if private.optimizer.steps_taken == until:
                return


def with_instructions(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A checkpoint's bytes with other instructions for the making of its state, and the checksums of those."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as parts, zipfile.ZipFile(changed, "w") as written:
        for part in parts.infolist():
            own = parts.read(part)
            written.writestr(part.filename, change(own) if part.filename.endswith("/data.pkl") else own)
    return changed.getvalue()


ADAFEST = sdp.AdaFEST(false_positives=3, always_on_rows=10)
