"""Walks a model once before training: finds the rule of every layer and refuses unsupported ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.hooks import ForwardWrapper, LayerWrapper, Recorder
from sparsedp.clipping.layers import Fallback, Rule, cross_example_refusal, rule_of

_CONTAINERS = (nn.ParameterList, nn.ParameterDict)
_UNSUPPORTED_DEVICES = {
    "meta": "holds no numbers; load the weights first",
    "mps": "has no float64 for exact sums; move the model to the CPU",
}


def wrap_layers(root: nn.Module, recorder: Recorder) -> list[LayerWrapper]:
    """A wrapper for every module that directly holds trainable parameters; raises ``UnsupportedLayerError``."""
    layers = []
    for name, module in _modules(root):
        if isinstance(vars(module).get("forward"), ForwardWrapper):
            raise ValueError("module: its gradients are captured already; detach that capture first")
        reason = cross_example_refusal(module)
        if reason is not None:
            raise UnsupportedLayerError(name, module, reason)
        rule = rule_of(module) or Fallback()
        trainable = {n: p for n, p in _own_parameters(module, rule) if p.requires_grad}
        if trainable:
            reason = _refusal(module, rule, trainable)
            if reason is not None:
                raise UnsupportedLayerError(name, module, reason)
            layers.append(LayerWrapper(recorder, name, module, rule, trainable))
    seen = {parameter for layer in layers for parameter in layer.parameters.values()}
    for name, parameter in root.named_parameters():
        if parameter.requires_grad and parameter not in seen:
            raise ValueError(f"parameter {name!r}: belongs to no module whose forward could use it")
    return layers


def _modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, without parameter containers and modules that a parent's rule covers."""
    covered: set[nn.Module] = set()
    for name, module in root.named_modules():
        reason = _wrapper_refusal(module)
        if reason is not None:
            raise UnsupportedLayerError(name, module, reason)
        rule = rule_of(module)
        if rule is not None and rule.recurse:
            covered.update(inner for inner in module.modules() if inner is not module)
        if module not in covered and not isinstance(module, _CONTAINERS):
            yield name, module


def _wrapper_refusal(module: nn.Module) -> str | None:
    """Why a module that changes how others are called, or how their gradients travel, is not supported."""
    if isinstance(module, torch.jit.ScriptModule):
        return "is compiled by torch.jit, which hides its layers; train the module it was made from"
    if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
        return "is compiled by torch.compile, which hides its layers; train the module it was made from"
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return (
            "adds up the gradients of several processes before they are clipped; train the module inside it"
        )
    if any(hasattr(parameter, "placements") for parameter in module.parameters(recurse=False)):
        return "has parameters that are spread over processes (DTensor); give it whole ones"
    return None


def _own_parameters(module: nn.Module, rule: Rule) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that the module's forward uses, by their names within the module."""
    yield from module.named_parameters(recurse=rule.recurse)
    for name, child in module.named_children():
        if isinstance(child, _CONTAINERS):
            yield from child.named_parameters(prefix=name)


def _refusal(module: nn.Module, rule: Rule, parameters: dict[str, nn.Parameter]) -> str | None:
    lazy = next((name for name, parameter in parameters.items() if is_lazy(parameter)), None)
    if lazy is not None:
        return f"parameter {lazy!r} has no shape yet; run one batch through the model first"
    for name, parameter in parameters.items():
        if parameter.device.type in _UNSUPPORTED_DEVICES:
            device = parameter.device.type
            return f"parameter {name!r} is on device {device!r}, which {_UNSUPPORTED_DEVICES[device]}"
    unknown = next((name for name in parameters if name not in (rule.parameters or parameters)), None)
    if isinstance(module, ParametrizationList) or unknown is not None:
        which = unknown or next(iter(parameters))
        return (
            f"a weight is computed from parameter {which!r} (weight_norm, spectral_norm or another "
            "parametrization), which has no rule; remove the parametrization or freeze the parameter"
        )
    return rule.refusal(module)
