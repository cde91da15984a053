"""Small models of every kind of layer, and models that no library can clip example by example.

Each is called with ids (examples, LENGTH) and features (examples, LENGTH, WIDTH), and gives (examples, OUT).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

ROWS, LENGTH, WIDTH, OUT = 12, 4, 3, 2


class Reads(nn.Module):
    """Tables, however they are read."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.read = read
        kind = nn.EmbeddingBag if "bag" in read else nn.Embedding
        options = {"mode": "mean"} if "bag" in read else {}
        self.table = kind(ROWS, WIDTH, sparse=True, padding_idx=0 if "padded" in read else None, **options)
        if read in ("two tables", "shared"):
            self.second = nn.Embedding(ROWS, WIDTH, sparse=True)
        if read == "shared":
            self.second.weight = self.table.weight
        self.out = nn.Linear(WIDTH, OUT)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        if self.read == "bag with offsets":
            read = self.table(ids.flatten(), torch.arange(len(ids), device=ids.device) * ids.shape[1])
        elif "bag" in self.read:
            read = self.table(ids)
        elif self.read in ("two tables", "shared"):
            read = (torch.tanh(self.table(ids)) + self.second(ids.flip(1))).sum(1)
        else:
            read = torch.tanh(self.table(ids)).sum(1)
        return self.out(read)


class Tied(nn.Module):
    """One matrix, as a table and as the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(ids)).mean(1))[:, :OUT]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))
        self.shift = nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.weight) + self.shift


class Reduced(nn.Module):
    """A layer on the features, the mean over positions, and a linear layer."""

    def __init__(self, layer: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, OUT)

    def hidden(self, features: Tensor) -> Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(features, features, features)[0]
        if isinstance(self.layer, nn.RNNBase):
            return self.layer(features)[0]
        if isinstance(self.layer, nn.Conv1d):
            return self.layer(features.mT).mT
        return self.layer(features)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(features)).mean(1))


class Positions(nn.Module):
    """Word and position embeddings; ``shared`` positions have one entry for all examples."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.positions = nn.Embedding(LENGTH, WIDTH, sparse=True)
        self.out = nn.Linear(WIDTH, OUT)
        self.shared = shared

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        places = torch.arange(LENGTH, device=ids.device)
        where = self.positions(places.unsqueeze(0) if self.shared else places)
        return self.out(torch.tanh(self.table(ids) + where).sum(1))


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Reads("plain"), Reduced(nn.Linear(WIDTH, WIDTH))

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        return self.left(ids, features) * self.right(ids, features)


class Mixing(nn.Module):
    """A step between two layers that should not look at the other examples, or at those of earlier batches."""

    def __init__(self, mix: str) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)
        self.mix = mix
        self.register_buffer("running", torch.zeros(WIDTH))
        self.kept = torch.zeros(WIDTH)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        h = self.first(features.sum(1))
        return self.out(torch.tanh(getattr(self, "_" + self.mix.replace(" ", "_"))(h)))

    def _mean(self, h: Tensor) -> Tensor:
        return h - h.sum(0)

    def _detached_mean(self, h: Tensor) -> Tensor:
        return h - h.detach().sum(0)

    def _reversed(self, h: Tensor) -> Tensor:
        return h - h.flip(0)

    def _mean_in_training(self, h: Tensor) -> Tensor:
        return h - h.sum(0) if self.training else h

    def _running_mean(self, h: Tensor) -> Tensor:
        if self.training:
            self.running = 0.5 * self.running + h.detach().sum(0)
        return h - self.running

    def _running_mean_of_earlier_batches(self, h: Tensor) -> Tensor:
        before = self.running.clone()
        if self.training:
            self.running.add_(h.detach().sum(0))
        return h - before

    def _memory(self, h: Tensor) -> Tensor:
        before, self.kept = self.kept, h.detach().sum(0)
        return h - before


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        return self.out(torch.tanh(self.first(features.transpose(0, 1)))).sum(0)


class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        h = torch.tanh(self.first(features.flatten(0, 1)))
        return self.out(h).unflatten(0, (len(ids), LENGTH)).sum(1)


SOUND: dict[str, Callable[[], nn.Module]] = {
    **{
        read: lambda read=read: Reads(read)  # type: ignore[misc]
        for read in ("plain", "padded", "bag", "padded bag", "bag with offsets", "two tables", "shared")
    },
    "tied": Tied,
    "positions": lambda: Positions(shared=True),
    "towers": Towers,
    "linear": lambda: Reduced(nn.Linear(WIDTH, WIDTH)),
    "layer norm": lambda: Reduced(nn.LayerNorm(WIDTH)),
    "attention": lambda: Reduced(nn.MultiheadAttention(WIDTH, 1, batch_first=True)),
    "gru": lambda: Reduced(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "lstm": lambda: Reduced(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
    "convolution": lambda: Reduced(nn.Conv1d(WIDTH, WIDTH, 2)),
    "own parameters": lambda: Reduced(Scale()),
}

UNSOUND: dict[str, Callable[[], nn.Module]] = {
    **{
        mix: lambda mix=mix: Mixing(mix)  # type: ignore[misc]
        for mix in (
            "mean",
            "detached mean",
            "reversed",
            "mean in training",
            "running mean",
            "running mean of earlier batches",
            "memory",
        )
    },
    "sequence first": SequenceFirst,
    "flattened": Flattened,
    "as many positions as examples": lambda: Positions(shared=False),
}
