from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from support.schedules import handmade_schedule
from torch import Tensor, nn

from sparsedp.convex.sgd.batch_schedule import draw_levels
from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD
from sparsedp.convex.sgd.torch_adapter import TorchLoss
from sparsedp.randomness import NoiseSource


class Ratings(nn.Module):
    """A user, a bag of two items, and their match."""

    def __init__(self, users: int, items: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width, sparse=sparse)
        self.item = nn.EmbeddingBag(items, width, mode="sum", sparse=sparse)
        self.bias = nn.Parameter(torch.zeros(1))
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.user(users) * self.item(items)).sum(dim=1) + self.bias


criterion = nn.BCEWithLogitsLoss(reduction="none")


def _data(size: int, users: int, items: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    who = torch.randint(users, (size,), generator=generator)
    what = torch.randint(items, (size, 2), generator=generator)
    return (who, what), ((who + what.sum(dim=1)) % 2).double()


@pytest.mark.parametrize("flag", [True, False])
def test_gradients_are_torchs_own(flag: bool) -> None:
    torch.manual_seed(1)
    inputs, targets = _data(20, 6, 9)
    module = Ratings(6, 9, 3, sparse=flag).double()
    loss = TorchLoss(module, criterion, inputs, targets)
    x, rows = loss.start(), np.array([0, 7, 7, 19])
    gradients = loss.gradient_rows(x, rows).toarray()
    twin = Ratings(6, 9, 3, sparse=False).double()
    nn.utils.vector_to_parameters(torch.from_numpy(x.copy()), twin.parameters())
    for at, row in enumerate(rows):
        twin.zero_grad()
        criterion(twin(*(each[[row]] for each in inputs)), targets[[row]]).sum().backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in twin.parameters()]
        expected = torch.cat([part.reshape(-1) for part in parts]).numpy()
        assert gradients[at] == pytest.approx(expected)
    values = criterion(twin(*(each[rows] for each in inputs)), targets[rows]).detach().numpy()
    assert loss.value(x, rows) == pytest.approx(values)
    assert module.user.sparse is flag
    assert loss.gradient_rows(x, np.empty(0, dtype=np.int64)).shape == (0, loss.dimension)


def test_it_drives_an_embedding_model() -> None:
    torch.manual_seed(2)
    inputs, targets = _data(128, 4, 5)
    module = Ratings(4, 5, 4, sparse=True)
    loss, source = TorchLoss(module, criterion, inputs, targets.float()), NoiseSource(3)
    start = loss.start()
    assert start.dtype == np.float32
    levels = draw_levels(300, size=128, stream=source.sampling)
    schedule = handmade_schedule(128, 1e-3, levels)
    sgd = BiasReducedSGD(l2_bound=3.0, sparsity=13, step_size=0.1)
    result = sgd.minimise(loss, start, schedule=schedule, source=source)
    everybody = np.arange(128)
    before, after = loss.value(start, everybody).mean(), loss.value(result.x, everybody).mean()
    assert after < 0.9 * before
    loss.load(result.x)
    with torch.no_grad():
        mine = criterion(module(*inputs), targets.float()).mean()
    assert float(mine) == pytest.approx(after, rel=1e-5)
    result.x[:] = 0.0
    assert module.user.weight.abs().sum() > 0.0


def test_a_step_allocates_rows_not_tables() -> None:
    users = 400_000
    inputs, targets = _data(64, users, 5)
    loss = TorchLoss(Ratings(users, 5, 8, sparse=False), criterion, inputs, targets.float())
    x, rows = loss.start(), np.arange(4)
    loss.gradient_rows(x, rows)
    tracemalloc.start()
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        gradients = loss.gradient_rows(x, rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table = users * 8 * 4
    assert peak < table / 10
    assert max(event.cpu_memory_usage for event in profiler.function_events) < table / 10
    assert gradients.nnz <= 4 * (8 + 16 + 1)


def test_bad_input() -> None:
    inputs, targets = _data(8, 4, 5)
    with pytest.raises(ValueError, match="module must not mix examples, but '1'"):
        TorchLoss(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), criterion, inputs, targets)
    with pytest.raises(ValueError, match="inputs must hold one entry per target"):
        TorchLoss(Ratings(4, 5, 2, sparse=True), criterion, (inputs[0][:3], inputs[1]), targets)
    with pytest.raises(ValueError, match="at least one parameter"):
        TorchLoss(nn.Identity(), criterion, inputs, targets)
    loss = TorchLoss(Ratings(4, 5, 2, sparse=True), nn.BCEWithLogitsLoss(), inputs, targets.float())
    with pytest.raises(ValueError, match="criterion must give one loss an example"):
        loss.value(loss.start(), np.arange(3))
    with pytest.raises(ValueError, match="x must have shape"):
        loss.value(np.zeros(3), np.arange(3))
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double())
    with pytest.raises(ValueError, match="one precision"):
        TorchLoss(mixed, criterion, torch.zeros(8, 2), targets)


class Renormed(nn.Module):
    """A table whose rows are shortened where they are read, by the functional form."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(10.0 * torch.ones(6, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.weight, max_norm=1.0).sum(dim=1)


class Averaging(nn.Module):
    """Remembers what it has seen, in place or by a new buffer."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)
        self.register_buffer("seen", torch.zeros(2))
        self.in_place = in_place

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.table(ids)
        if self.in_place:
            self.seen.add_(rows.detach().sum(dim=0))
        else:
            self.seen = self.seen + rows.detach().sum(dim=0)
        return rows.sum(dim=1)


def test_a_table_with_max_norm_writes_the_data_into_x() -> None:
    """The control: what is refused below. Rows that were read are short, the others are not: no noise at all."""
    table = nn.Embedding(6, 2, max_norm=1.0)
    nn.init.constant_(table.weight, 10.0)
    table(torch.tensor([1, 4]))
    assert (table.weight.norm(dim=1) <= 1.0).tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"max_norm": 1.0}, "max_norm must be None"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq must be False"),
    ],
)
def test_tables_that_write_or_count_are_refused(
    make: type[nn.Module], option: dict[str, object], message: str
) -> None:
    module = nn.Sequential(make(6, 2, **option))
    with pytest.raises(ValueError, match=f"{message}, but '0'"):
        TorchLoss(module, criterion, torch.tensor([[0]]), torch.tensor([1.0]))


@pytest.mark.parametrize(
    ("module", "name"),
    [(Renormed(), "weight"), (Averaging(in_place=True), "seen"), (Averaging(in_place=False), "seen")],
)
def test_a_forward_pass_that_writes_is_refused(module: nn.Module, name: str) -> None:
    loss = TorchLoss(module, criterion, torch.tensor([1, 4, 1]), torch.ones(3))
    x = loss.start()
    for look in (loss.value, loss.gradient_rows):
        with pytest.raises(ValueError, match=f"must not write to its state .* wrote to '{name}'"):
            look(x, np.arange(3))
