"""A model that lives on another device trains as it does in main memory, number for number.

The device is a stand-in (``support.other_device``): no accelerator has run this. Torch wants to know its devices
before the first backward pass, so ``training/test_step_other_device.py`` runs this file in a process of its own.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowGradient
from sparsedp.training import RowWiseAdagrad
from sparsedp.training.lazy_table import LazyTable
from support.other_device import NAME, OtherDeviceTensor, other_device
from support.zoo import LENGTH, OUT, ROWS, SOUND, WIDTH

EXAMPLES = 48
other_device()


def numbers(values: torch.Tensor) -> torch.Tensor:
    values = values.detach()
    return values.numbers if isinstance(values, OtherDeviceTensor) else values


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Tied parameters stay tied, as they do on an accelerator."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def train(build, device, selection, optimizer=torch.optim.SGD, physical=None, noise_multiplier=0.5):
    torch.manual_seed(0)
    model = moved(build(), device)
    data = TensorDataset(
        torch.randint(0, ROWS, (EXAMPLES, LENGTH)),
        torch.randn(EXAMPLES, LENGTH, WIDTH),
        torch.randn(EXAMPLES, OUT),
    )
    engine = sdp.PrivacyEngine(secure=False, seed=5)
    private = engine.make_private(
        module=model,
        optimizer=optimizer(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=12),
        noise_multiplier=noise_multiplier,
        max_grad_norm=0.5,
        selection=selection,
        physical_batch_size=physical,
    )
    for ids, features, targets in private.data_loader:
        private.optimizer.zero_grad()
        outputs = private.module(ids.to(device), features.to(device))
        nn.functional.mse_loss(outputs, targets.to(device)).backward()
        private.optimizer.step()
    return {name: numbers(values).clone() for name, values in model.state_dict().items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-6), name


def test_the_stand_in_refuses_what_an_accelerator_refuses():
    values = torch.ones(3).to(other_device())
    assert values.device.type == NAME
    assert torch.equal((2 * values + torch.tensor(1.0)).cpu(), torch.full((3,), 3.0))
    with pytest.raises(RuntimeError, match="same device"):
        values + torch.ones(3)
    with pytest.raises(TypeError, match="cpu"):
        values.numpy()


@pytest.mark.parametrize("kind", SOUND)
def test_every_layer(kind):
    assert_same(train(SOUND[kind], "cpu", sdp.DPSGD()), train(SOUND[kind], other_device(), sdp.DPSGD()))


SELECTIONS = {
    "AdaFEST": lambda: sdp.AdaFEST(always_on_rows=0, false_positives=2),
    "AdaFEST, small tables always on": lambda: sdp.AdaFEST(),
    "FEST": lambda: sdp.FEST({"table": np.arange(0, ROWS, 2)}),
    "exponential": lambda: sdp.ExponentialSelection(
        rows=3, selection_epsilon=5.0, score_cap=0.1, always_on_rows=0
    ),
    "sparse vector": lambda: sdp.SparseVectorSelection(
        rows=3, selection_epsilon=5.0, score_cap=0.1, threshold=0.01, always_on_rows=0
    ),
    "random": lambda: sdp.RandomSelection(rows=3, always_on_rows=0),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("physical", [None, 5])
def test_every_selection(name, physical):
    made = [
        train(SOUND["plain"], device, SELECTIONS[name](), physical=physical)
        for device in ("cpu", other_device())
    ]
    assert_same(*made)


@pytest.mark.parametrize("optimizer", [torch.optim.Adagrad, RowWiseAdagrad, torch.optim.SparseAdam])
def test_optimizers_of_tables(optimizer):
    def both(parameters, lr):
        table, *dense = parameters
        return [optimizer([table], lr=lr), torch.optim.SGD(dense, lr=lr)]

    selection = SELECTIONS["AdaFEST"]
    made = [train(SOUND["plain"], device, selection(), both) for device in ("cpu", other_device())]
    assert_same(*made)


def test_lazy_noise_of_a_table():
    tables = []
    for device in ("cpu", other_device()):
        parameter = nn.Parameter(torch.linspace(-1, 1, 60).view(20, 3).to(device))
        table = LazyTable("table", parameter, NoiseSource(seed=3).noise)
        for step in range(4):
            ids = torch.tensor([step, 7, 9])
            table.step(0.1, 1.0, RowGradient(ids, torch.ones(3, 3)))
        table.apply_pending_noise_to_ids(torch.tensor([1, 5]).to(device))
        table.flush()
        tables.append(numbers(parameter))
    assert torch.equal(*tables)


def test_an_example_that_is_not_finite_is_left_out():
    def build():
        model = SOUND["two tables"]()
        with torch.no_grad():
            model.table.weight[3] = torch.inf
        return model

    made = [train(build, device, sdp.DPSGD()) for device in ("cpu", other_device())]
    assert torch.isfinite(made[0]["out.weight"]).all()
    assert_same(*[{name: run[name] for name in ("out.weight", "out.bias")} for run in made])


def test_the_random_numbers_of_a_device_are_left_alone(monkeypatch):
    """Probing a model draws random numbers; dropout must not see that."""
    forked = []
    backend = torch.get_device_module(NAME)
    monkeypatch.setattr(backend, "set_rng_state", lambda state, device=None: forked.append(device))
    train(SOUND["plain"], other_device(), sdp.DPSGD())
    assert forked


def test_a_run_resumes_on_the_device(tmp_path):
    weights = []
    for device in ("cpu", other_device()):
        torch.manual_seed(0)
        data = TensorDataset(torch.randint(0, ROWS, (EXAMPLES, LENGTH)), torch.randn(EXAMPLES, LENGTH, WIDTH))
        folder = tmp_path / torch.device(device).type
        for part in range(2):
            model = moved(SOUND["plain"](), device)
            engine = sdp.PrivacyEngine(secure=False, seed=5)
            private = engine.make_private(
                module=model,
                optimizer=torch.optim.Adagrad(model.parameters(), lr=0.1),
                data_loader=DataLoader(data, batch_size=12),
                noise_multiplier=0.5,
                max_grad_norm=0.5,
                selection=SELECTIONS["AdaFEST"](),
            )
            if part:
                engine.resume(folder)
            for ids, features in private.data_loader:
                private.optimizer.zero_grad()
                private.module(ids.to(device), features.to(device)).sum(1).mean().backward()
                private.optimizer.step()
            engine.save(folder)
        weights.append({name: numbers(values).clone() for name, values in model.state_dict().items()})
    assert_same(*weights)
