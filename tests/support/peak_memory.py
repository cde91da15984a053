"""Run as a program: the peak of resident memory, in MB, over a step of one logical batch in pieces of 32.

Arguments: the selection and the size of the logical batch.
"""

from __future__ import annotations

import resource
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.selection import Selection

ROWS, LENGTH, WIDTH, LAYERS, PIECE = 5000, 64, 256, 5, 32

SELECTIONS: dict[str, Selection] = {
    "dpsgd": sdp.DPSGD(),
    "fest": sdp.FEST({"table": range(500)}),
    "fest-turns": sdp.FEST({"table": range(500)}, update_every=4),
    "random": sdp.RandomSelection(rows=500),
    "adafest": sdp.AdaFEST(),
}


class Wide(nn.Module):
    """A layer's inputs and output gradients take 4 MB a piece."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return h.mean((1, 2))


def peak(selection: str, examples: int) -> float:
    torch.set_num_threads(1)
    model = Wide()
    ids = torch.randint(0, ROWS, (512, LENGTH))
    private = sdp.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(ids), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        selection=SELECTIONS[selection],
        physical_batch_size=PIECE,
    )
    private.data_loader.indices = lambda step: np.arange(64 if step == 0 else examples)
    for number, (piece,) in enumerate(private.data_loader):
        if number == (64 + examples) // PIECE:
            break
        private.module(piece).mean().backward()
        private.optimizer.step()
    assert private.optimizer.steps_taken == 2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2])))
