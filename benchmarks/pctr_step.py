"""The FEST pCTR model, batch 2048: the private step beside the non-private one and Opacus ghost clipping.

python benchmarks/pctr_step.py [--json]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from timing import endless, interleaved, show
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import sparsedp as sdp
from sparsedp.core.extras import missing_extra
from sparsedp.data import VOCABULARY_SIZES
from sparsedp.models import PCTR

BATCH = 2048
Batch = tuple[Tensor, Tensor, Tensor]


def batches(count: int = 8) -> list[Batch]:
    generator = np.random.default_rng(0)
    made = []
    for _ in range(count):
        ids = np.stack([(generator.zipf(1.2, BATCH) - 1) % v for v in VOCABULARY_SIZES], axis=1)
        numeric = torch.from_numpy(generator.standard_normal((BATCH, 13)).astype(np.float32))
        label = torch.from_numpy(generator.integers(0, 2, BATCH).astype(np.float32))
        made.append((numeric, torch.from_numpy(ids), label))
    return made


def plain(data: list[Batch]) -> Callable[[], None]:
    model = PCTR(VOCABULARY_SIZES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    turn = iter(range(10**9))

    def step() -> None:
        numeric, ids, label = data[next(turn) % len(data)]
        optimizer.zero_grad()
        bce(model(numeric, ids), label).backward()
        optimizer.step()

    return step


def private(data: list[Batch], selection: sdp.selection.Selection) -> Callable[[], None]:
    model = PCTR(VOCABULARY_SIZES)
    made = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=data,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection,
        expected_batch_size=BATCH,
        poisson=False,
    )
    turns = endless(made.data_loader)

    def step() -> None:
        numeric, ids, label = next(turns)
        made.optimizer.zero_grad()
        bce(made.module(numeric, ids), label).backward()
        made.optimizer.step()

    return step


def opacus_ghost(data: list[Batch]) -> Callable[[], None]:
    """Opacus's fast gradient clipping on the same network (its embeddings must be dense)."""
    import warnings

    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    model = PCTR(VOCABULARY_SIZES)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.sparse = False
    columns = TensorDataset(*[torch.cat(parts) for parts in zip(*data, strict=True)])
    module, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=DataLoader(columns, batch_size=BATCH),
        criterion=torch.nn.BCEWithLogitsLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
        poisson_sampling=False,
    )
    turn = iter(range(10**9))

    def step() -> None:
        numeric, ids, label = data[next(turn) % len(data)]
        optimizer.zero_grad()
        criterion(module(numeric, ids), label).backward()
        optimizer.step()

    return step


def run() -> list[dict[str, float]]:
    data = batches()
    cases: dict[str, Callable[[], None]] = {
        "non-private": plain(data),
        "AdaFEST": private(data, sdp.AdaFEST()),
        "DP-SGD (dense)": private(data, sdp.DPSGD()),
    }
    try:
        cases["Opacus ghost"] = opacus_ghost(data)
    except ModuleNotFoundError as error:
        print(f"without Opacus: {missing_extra(error) or error}", file=sys.stderr)
    seconds = interleaved(cases, rounds=20, repeats=3)
    return [
        {
            "case": name,
            "ms": 1e3 * value,
            "of non-private": value / seconds["non-private"],
            **(
                {"Opacus ghost over it": seconds["Opacus ghost"] / value} if "Opacus ghost" in seconds else {}
            ),
        }
        for name, value in seconds.items()
    ]


def main() -> None:
    show("pctr-step", run())


if __name__ == "__main__":
    main()
