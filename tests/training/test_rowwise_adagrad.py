from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from sparsedp.training import RowWiseAdagrad


def by_hand(
    start: torch.Tensor, gradients: list[dict[int, list[float]]], lr: float, eps: float
) -> torch.Tensor:
    """One accumulator a row: the sum of the mean squares of its gradients."""
    weight, total = start.clone(), torch.zeros(start.shape[0])
    for gradient in gradients:
        for row, values in gradient.items():
            g = torch.tensor(values)
            total[row] += (g**2).mean()
            weight[row] -= lr * g / (total[row].sqrt() + eps)
    return weight


GRADIENTS = [{0: [1.0, 3.0], 2: [0.5, -0.5]}, {2: [2.0, 2.0]}, {}, {0: [-1.0, 0.0]}]


def steps(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, sparse: bool, part: slice) -> None:
    for gradient in GRADIENTS[part]:
        dense = torch.zeros_like(weight)
        for row, values in gradient.items():
            dense[row] = torch.tensor(values)
        weight.grad = dense.to_sparse(1) if sparse else dense
        optimizer.step()


@pytest.mark.parametrize("sparse", [True, False])
def test_it_is_the_written_formula(sparse: bool) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 2))
    start = weight.detach().clone()
    steps(weight, RowWiseAdagrad([weight], lr=0.3, eps=1e-6), sparse, slice(None))
    torch.testing.assert_close(weight.detach(), by_hand(start, GRADIENTS, 0.3, 1e-6))
    assert torch.equal(weight[3], start[3])


def test_equal_coordinates_make_it_plain_adagrad() -> None:
    """Where a row's coordinates have equal squares, one accumulator a row is one a coordinate."""
    ours, theirs = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    for weight, optimizer in (
        (ours, RowWiseAdagrad([ours], lr=0.1)),
        (theirs, torch.optim.Adagrad([theirs], lr=0.1)),
    ):
        for scale in (1.0, -2.0):
            weight.grad = scale * torch.tensor([[1.0, -1.0], [0.5, 0.5], [2.0, 2.0]])
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_saved_and_loaded_it_goes_on_the_same() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = RowWiseAdagrad([weight], lr=0.3)
    steps(weight, optimizer, True, slice(0, 2))
    again = torch.nn.Parameter(weight.detach().clone())
    restored = RowWiseAdagrad([again], lr=0.9)
    restored.load_state_dict(deepcopy(optimizer.state_dict()))
    steps(weight, optimizer, True, slice(2, None))
    steps(again, restored, True, slice(2, None))
    assert torch.equal(weight, again)


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = RowWiseAdagrad([weight], lr=0.1)

    def closure() -> float:
        weight.sum().backward()
        return 4.0

    assert optimizer.step(closure) == 4.0
    assert (weight < 1).all()


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"lr": float("nan")}, {"eps": -1.0}])
def test_bad_settings(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lr and eps"):
        RowWiseAdagrad([torch.nn.Parameter(torch.ones(2, 2))], **options)


def test_a_vector_is_no_table() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"tables .* \(2,\)"):
        RowWiseAdagrad([weight]).step()
