"""Every way of reading a table that owes noise sees paid rows, or is refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowGradient
from sparsedp.training import lazy_parameter
from sparsedp.training.lazy_parameter import LazyParameter, is_shared
from sparsedp.training.lazy_table import LazyTable

ROWS, DIM = 60, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Embedding(ROWS, DIM))
        nn.init.zeros_(self.table.weight)

    @property
    def table(self) -> nn.Embedding:
        table = self.part[0]
        assert isinstance(table, nn.Embedding)
        return table

    def forward(self, ids: Tensor) -> Tensor:
        return self.part(ids)


TRAINED = {"all rows": None, "chosen rows": np.arange(0, ROWS, 3)}


def owing(trained: str = "all rows") -> tuple[Model, LazyTable]:
    """A table of zeros whose trained rows all owe a step's noise."""
    model = Model()
    table = LazyTable("table", model.table.weight, NoiseSource(1).noise, TRAINED[trained])
    lazy_parameter.attach(table)
    table.step(1.0, 1.0, RowGradient(torch.empty(0, dtype=torch.int64), torch.empty(0, DIM)))
    return model, table


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loaded(data: bytes) -> object:
    return torch.load(io.BytesIO(data), weights_only=False)


WAYS: dict[str, Callable[[Model], object]] = {
    "state_dict": lambda m: m.state_dict()["part.0.weight"],
    "state_dict of a part": lambda m: m.part.state_dict()["0.weight"],
    "state_dict of the layer": lambda m: m.table.state_dict()["weight"],
    "state_dict with keep_vars": lambda m: m.state_dict(keep_vars=True)["part.0.weight"].detach(),
    "data": lambda m: m.table.weight.data,
    "detach": lambda m: m.table.weight.detach(),
    "clone": lambda m: m.table.weight.clone(),
    "numpy": lambda m: m.table.weight.detach().numpy(),
    "tolist": lambda m: m.table.weight.tolist(),
    "storage": lambda m: torch.tensor(m.table.weight.untyped_storage(), dtype=torch.uint8).view(
        torch.float32
    ),
    "index": lambda m: m.table.weight[:],
    "arithmetic": lambda m: 1.0 * m.table.weight,
    "inside a list": lambda m: torch.cat(list(m.parameters())),
    "parameters_to_vector": lambda m: nn.utils.parameters_to_vector(m.parameters()),
    "foreach": lambda m: torch._foreach_add(list(m.parameters()), 0.0)[0],
    "deepcopy of the model": lambda m: copy.deepcopy(m).table.weight,
    "deepcopy of a part": lambda m: copy.deepcopy(m.part)[0].weight,
    "deepcopy of the parameter": lambda m: copy.deepcopy(m.table.weight),
    "copy of the parameter": lambda m: copy.copy(m.table.weight),
    "pickled model": lambda m: pickle.loads(pickle.dumps(m)).table.weight,
    "pickled part": lambda m: pickle.loads(pickle.dumps(m.part))[0].weight,
    "pickled parameter": lambda m: pickle.loads(pickle.dumps(m.table.weight)),
    "torch.save of the model": lambda m: loaded(saved(m)).table.weight,  # type: ignore[attr-defined]
    "torch.save of the parameter": lambda m: loaded(saved(m.table.weight)),
    "AveragedModel": lambda m: AveragedModel(m).module.table.weight,
    "embedding": lambda m: m(torch.arange(ROWS)),
    "functional embedding": lambda m: F.embedding(torch.arange(ROWS), m.table.weight),
    "functional embedding, by keyword": lambda m: F.embedding(
        input=torch.arange(ROWS), weight=m.table.weight
    ),
    "bags": lambda m: F.embedding_bag(torch.arange(ROWS)[:, None], m.table.weight, mode="sum"),
    "aten embedding": lambda m: torch.embedding(m.table.weight, torch.arange(ROWS)),
    "a module around the parameter": lambda m: nn.ParameterList([m.table.weight]).state_dict()["0"],
    "conversion": lambda m: m.double().table.weight.data,
}


def numbers(read: object) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(read.detach().numpy() if isinstance(read, Tensor) else read).reshape(ROWS, DIM)


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_reading_sees_paid_rows(way: str, trained: str) -> None:
    model, table = owing(trained)
    seen = numbers(WAYS[way](model))
    rows = np.arange(ROWS) if TRAINED[trained] is None else TRAINED[trained]
    assert 0.7 < seen[rows].std() < 1.3
    assert np.array_equal(np.flatnonzero(np.abs(seen).sum(axis=1)), rows)
    assert np.array_equal(seen.astype(np.float32), numbers(model.table.weight.data).astype(np.float32))
    table.flush()
    assert np.array_equal(seen.astype(np.float32), numbers(model.table.weight.data).astype(np.float32))


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("way", WAYS)
def test_an_ordinary_parameter_would_show_unpaid_rows(way: str, trained: str) -> None:
    """The control: the same ways, without anything that pays."""
    model, _ = owing(trained)
    model.table.weight.__class__ = nn.Parameter
    model.table.weight.lazy_table = None  # type: ignore[assignment]
    assert not numbers(WAYS[way](model)).any()


def test_copies_are_plain_parameters_on_memory_of_their_own() -> None:
    model, _ = owing()
    model.table.weight.note = "mine"  # type: ignore[attr-defined]
    for copied in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        AveragedModel(model).module,
    ):
        assert type(copied.table.weight) is nn.Parameter
        assert not hasattr(copied.table.weight, "lazy_table")
        assert copied.table.weight.data_ptr() != model.table.weight.data_ptr()
        copied(torch.arange(3))
    assert pickle.loads(pickle.dumps(model.table.weight)).note == "mine"
    assert not hasattr(pickle.loads(pickle.dumps(model.table.weight)), "lazy_table")


def test_tied_tables_stay_tied_in_a_copy() -> None:
    model, _ = owing()
    model.other = nn.Embedding(ROWS, DIM)
    model.other.weight = model.table.weight
    copied = copy.deepcopy(model)
    assert copied.other.weight is copied.table.weight


def test_an_average_over_training_reads_paid_rows_each_time() -> None:
    model, table = owing()
    average = AveragedModel(model)
    table.step(1.0, 1.0, RowGradient(torch.empty(0, dtype=torch.int64), torch.empty(0, DIM)))
    average.update_parameters(model)
    assert not table.has_pending_noise
    assert torch.equal(average.module.table.weight, model.table.weight.detach())


@pytest.mark.parametrize(("trained", "paid"), [("all rows", [3, 7, 9]), ("chosen rows", [3, 9])])
def test_reading_rows_pays_those_rows_only(trained: str, paid: list[int]) -> None:
    model, table = owing(trained)
    model(torch.tensor([[3, 7], [7, 9]]))
    table.shows_pending = True
    moved = model.table.weight.detach().abs().sum(dim=1) > 0
    assert moved.nonzero().flatten().tolist() == paid


def test_shape_and_switches_pay_nothing() -> None:
    model, table = owing()
    weight = model.table.weight
    assert (weight.shape, weight.dtype, weight.dim(), weight.numel()) == ((ROWS, DIM), torch.float32, 2, 240)
    weight.requires_grad = False
    weight.requires_grad_()
    weight.grad = None
    assert (weight.grad, weight.is_leaf, weight.requires_grad) == (None, True, True)
    torch.optim.SGD(model.parameters(), lr=0.1).zero_grad()
    model.train()
    assert isinstance(weight, nn.Parameter)
    assert table.has_pending_noise


def test_writing_comes_after_the_debts() -> None:
    model, table = owing()
    ones = {"part.0.weight": torch.ones(ROWS, DIM)}
    model.load_state_dict(ones)
    table.flush()
    assert torch.equal(model.table.weight.detach(), ones["part.0.weight"])


def test_who_shares_the_memory_is_found() -> None:
    model, _ = owing()
    weight = model.table.weight
    assert not is_shared(weight)
    for held in (weight.detach(), weight.data[2:3], weight.detach().numpy(), model.state_dict()):
        assert is_shared(weight), type(held)
        del held
    graph = (model(torch.arange(3)) ** 2).sum()
    assert not is_shared(weight)
    graph.backward()
    assert not is_shared(weight)


def test_a_table_made_from_a_tensor_gets_memory_of_its_own() -> None:
    given = torch.zeros(ROWS, DIM)
    layer = nn.Embedding.from_pretrained(given, freeze=False)
    weight = layer.weight
    table = LazyTable("table", weight, NoiseSource(1).noise)
    lazy_parameter.attach(table)
    table.step(1.0, 1.0, RowGradient(torch.tensor([1]), torch.ones(1, DIM)))
    assert layer.weight is weight
    assert not is_shared(weight)
    assert not given.any()


def test_the_class_is_given_back() -> None:
    model, _ = owing()
    assert type(model.table.weight) is LazyParameter
    lazy_parameter.detach(model.table.weight)
    assert type(model.table.weight) is nn.Parameter
    assert "lazy_table" not in vars(model.table.weight)
    lazy_parameter.detach(model.table.weight)


def test_a_parameter_of_another_class_is_refused() -> None:
    class Own(nn.Parameter):
        pass

    with pytest.raises(ValueError, match=r"'table'.*plain nn.Parameter, not Own"):
        lazy_parameter.attach(LazyTable("table", Own(torch.zeros(2, 2)), NoiseSource(1).noise))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("function", ["F.embedding", "torch.embedding", "F.embedding_bag"])
def test_every_function_that_reads_rows_pays_those_rows_only(function: str, by_name: bool) -> None:
    model, table = owing()
    weight, ids = model.table.weight, torch.tensor([[3, 7], [7, 9]])
    if function == "F.embedding":
        F.embedding(input=ids, weight=weight) if by_name else F.embedding(ids, weight)
    elif function == "torch.embedding":
        torch.embedding(weight=weight, indices=ids) if by_name else torch.embedding(weight, ids)
    else:
        F.embedding_bag(input=ids, weight=weight) if by_name else F.embedding_bag(ids, weight)
    table.shows_pending = True
    moved = weight.detach().abs().sum(dim=1) > 0
    assert moved.nonzero().flatten().tolist() == [3, 7, 9]
