"""The README's loop with a progress bar: a model with two tables under DP-AdaFEST.

python examples/loop.py
"""

from __future__ import annotations

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp

USERS, ITEMS, EXAMPLES, DELTA = 100_000, 20_000, 20_000, 1e-6


class Clicks(nn.Module):
    """Two embeddings side by side, a small network on top."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, 16, sparse=True)
        self.item = nn.Embedding(ITEMS, 16, sparse=True)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """One logit an example."""
        return self.layers(torch.cat([self.user(user), self.item(item)], dim=1)).squeeze(1)


def main() -> sdp.PrivacyStatement:
    user = (USERS * torch.rand(EXAMPLES) ** 4).long()
    item = (ITEMS * torch.rand(EXAMPLES) ** 4).long()
    data = TensorDataset(user, item, (user % 3 == item % 3).float())
    model = Clicks()
    engine = sdp.PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=512),
        target_epsilon=1.0,
        target_delta=DELTA,
        epochs=1,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(noise_ratio=5.0, false_positives=50),
    )
    criterion = nn.BCEWithLogitsLoss()
    for user, item, clicked in track(private.data_loader, "training"):
        private.optimizer.zero_grad()
        criterion(private.module(user, item), clicked).backward()
        private.optimizer.step()
    print(
        f"the last step's embedding gradient was {private.optimizer.last_step.reduction:,.0f} times smaller"
    )
    statement = engine.statement(DELTA)
    print(statement)
    return statement


if __name__ == "__main__":
    main()
