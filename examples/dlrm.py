"""A DLRM-like model with embedding bags: one-hot features, a multi-hot one with offsets, AdaFEST+.

python examples/dlrm.py
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.utils.data import DataLoader

import sparsedp as sdp
from sparsedp.models import DLRM

USERS, ITEMS, TAGS, DELTA = 5_000, 2_000, 3_000, 1e-5
Example = tuple[Tensor, Tensor, Tensor, Tensor]


class Visits:
    """Examples with four numbers, a user, an item, and between one and five tags."""

    def __init__(self, examples: int = 4000) -> None:
        generator = torch.Generator().manual_seed(0)
        rand = torch.rand(examples, 2, generator=generator) ** 3
        self.ids = (rand * torch.tensor([USERS, ITEMS])).long()
        self.numeric = torch.randn(examples, 4, generator=generator)
        lengths = torch.randint(1, 6, (examples,), generator=generator).tolist()
        self.tags = [(TAGS * torch.rand(n, generator=generator) ** 3).long() for n in lengths]
        self.label = (self.ids.sum(dim=1) % 2).float()

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, n: int) -> Example:
        return self.numeric[n], self.ids[n], self.tags[n], self.label[n]


def collate(examples: list[Example]) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Tags become flat values and the offset of each example's bag."""
    numeric, ids, tags, label = zip(*examples, strict=True)
    lengths = torch.tensor([len(each) for each in tags])
    offsets = lengths.cumsum(0) - lengths
    return torch.stack(numeric), torch.stack(ids), (torch.cat(tags), offsets), torch.stack(label)


def main() -> sdp.PrivacyStatement:
    model = DLRM([USERS, ITEMS], numeric=4, multi_hot_sizes=[TAGS], dim=8)
    tables = [bag.weight for bag in model.embeddings]
    dense = [p for p in model.parameters() if all(p is not table for table in tables)]
    engine = sdp.PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=[torch.optim.SparseAdam(tables, lr=0.01), torch.optim.Adam(dense, lr=0.001)],
        data_loader=DataLoader(Visits(), batch_size=256, collate_fn=collate),
        target_epsilon=3.0,
        target_delta=DELTA,
        epochs=2,
        max_grad_norm=1.0,
        selection=sdp.AdaFEST(
            contribution_norm=2.0, within=sdp.FEST({f"embeddings.{n}": range(500) for n in range(3)})
        ),
    )
    for _ in range(2):
        for numeric, ids, tags, label in private.data_loader:
            private.optimizer.zero_grad()
            cross_entropy(private.module(numeric, ids, tags), label).backward()
            private.optimizer.step()
    print(private.optimizer.last_step)
    statement = engine.statement(DELTA)
    print(statement)
    return statement


if __name__ == "__main__":
    main()
