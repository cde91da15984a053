"""Row-wise Adagrad for the tables, AdamW for the dense layers, TensorBoard, checkpoint and export.

python examples/adagrad.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.utils.tensorboard import SummaryWriter

import sparsedp as sdp
from sparsedp.data import ClickProcess, GeneratedClicks
from sparsedp.models import PCTR
from sparsedp.training import RowWiseAdagrad, TensorBoardMonitor

DELTA = 1e-5


def main(folder: Path | None = None) -> sdp.PrivacyStatement:
    folder = folder or Path(tempfile.mkdtemp())
    data = GeneratedClicks(4096, process=ClickProcess(seed=0))
    model = PCTR.from_schema(data.schema, hidden=(64, 64))
    tables = [table.weight for table in model.embeddings]
    dense = list(model.layers.parameters())
    engine = sdp.PrivacyEngine(ledger=folder / "clicks.ledger")
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=[RowWiseAdagrad(tables, lr=0.05), torch.optim.AdamW(dense, lr=0.001)],
        data_loader=data.loader(512),
        target_epsilon=3.0,
        target_delta=DELTA,
        epochs=1,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(),
        physical_batch_size=256,
    )
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        private.optimizer.callbacks.append(TensorBoardMonitor(writer, engine, DELTA, every=1))
        for features, label in private.data_loader:
            private.optimizer.zero_grad()
            cross_entropy(private.module(*features), label).backward()
            private.optimizer.step()
    engine.save(folder / "private.ckpt")  # for resuming: keep it to yourself
    engine.export(folder / "model.safetensors", delta=DELTA)  # for release
    statement = engine.statement(DELTA)
    print(statement)
    engine.detach()
    return statement


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
