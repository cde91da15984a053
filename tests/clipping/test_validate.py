from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from sparsedp.clipping import Capture, UnsupportedLayerError


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        (weight_norm, "weight_g"),
        (spectral_norm, "weight_orig"),
        (parametrizations.weight_norm, "original0"),
        (parametrizations.orthogonal, "original"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_computed_weights_are_refused_by_name(change, parameter):
    with pytest.raises(UnsupportedLayerError, match=rf"module '0.*parameter '{parameter}'.*parametrization"):
        Capture(nn.Sequential(change(nn.Linear(3, 3))), loss_reduction="mean")


def test_parameters_without_a_shape_are_refused():
    with pytest.raises(UnsupportedLayerError, match="parameter 'weight' has no shape yet"):
        Capture(nn.Sequential(nn.LazyLinear(3)), loss_reduction="mean")


def test_a_parameter_that_a_rule_does_not_know_is_refused():
    layer = nn.Linear(3, 2)
    layer.extra = nn.Parameter(torch.rand(2))
    with pytest.raises(UnsupportedLayerError, match="'extra'"):
        Capture(layer, loss_reduction="mean")


def test_a_parameter_that_no_forward_could_use_is_named():
    with pytest.raises(ValueError, match="parameter '0': belongs to no module"):
        Capture(nn.ParameterList([torch.rand(2)]), loss_reduction="mean")


def test_a_refused_model_is_left_untouched():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(UnsupportedLayerError):
        Capture(model, loss_reduction="mean")
    assert not any("forward" in vars(module) for module in model.modules())
    model(torch.randn(5, 3)).sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_frozen_modules_need_no_rule(check):
    model = nn.Sequential(weight_norm(nn.Linear(3, 2)), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    capture = check(model, torch.randn(5, 3))
    assert set(capture.dense) == {"1.weight", "1.bias"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_script_is_refused():
    compiled = torch.jit.trace(nn.Linear(3, 2), torch.randn(2, 3))
    with pytest.raises(UnsupportedLayerError, match=r"module '0'.*torch\.jit"):
        Capture(nn.Sequential(compiled), loss_reduction="mean")


def test_compiled_modules_are_refused():
    inner = nn.Sequential(nn.Linear(3, 2))
    inner[0].compile()
    for model in (torch.compile(nn.Linear(3, 2)), inner):
        with pytest.raises(UnsupportedLayerError, match=r"torch\.compile.*the module it was made from"):
            Capture(model, loss_reduction="mean")


def test_wrappers_that_add_up_gradients_are_refused(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        spread = nn.Linear(3, 2)
        torch.distributed.fsdp.fully_shard(spread)
        with pytest.raises(UnsupportedLayerError, match="DTensor"):
            Capture(spread, loss_reduction="mean")
        wrapped = [nn.parallel.DistributedDataParallel(nn.Linear(3, 2)), nn.DataParallel(nn.Linear(3, 2))]
        for model in wrapped:
            with pytest.raises(UnsupportedLayerError, match="train the module inside it"):
                Capture(model, loss_reduction="mean")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("device", "advice"), [("meta", "load the weights"), ("mps", "to the CPU")])
def test_devices_without_float64_or_numbers_are_refused(monkeypatch, device, advice):
    model = nn.Linear(3, 2, device="meta")
    monkeypatch.setattr(nn.Parameter, "device", torch.device(device))
    with pytest.raises(UnsupportedLayerError, match=f"'weight' is on device '{device}'.*{advice}"):
        Capture(model, loss_reduction="mean")
