"""Checks that the model's parameters are still the objects that were made private."""

from __future__ import annotations

from torch import nn


class ParameterIdentity:
    """The modules and parameters of a model as they were when its training began.

    ``load_state_dict(assign=True)``, an assignment to a parameter's name or a new submodule replaces them. The
    optimiser would keep training the old objects, which the model no longer uses.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        named = dict(module.named_modules(remove_duplicate=False))
        self._parameters = [
            (f"{prefix}.{name}" if prefix else name, part, name, parameter)
            for prefix, part in named.items()
            for name, parameter in part._parameters.items()
        ]
        self._children = [
            (f"{prefix}.{name}" if prefix else name, part, name, child)
            for prefix, part in named.items()
            for name, child in part._modules.items()
        ]

    def check(self) -> None:
        """Refuse a replaced module or parameter by name."""
        for path, module, name, parameter in self._parameters:
            if module._parameters.get(name) is not parameter:
                self._refuse("parameter", path)
        for path, module, name, child in self._children:
            if module._modules.get(name) is not child:
                self._refuse("module", path)

    def added(self) -> list[str]:
        """The names of parameters that were added since; this run does not train them."""
        known = {id(parameter) for *_, parameter in self._parameters}
        return [name for name, parameter in self._module.named_parameters() if id(parameter) not in known]

    def _refuse(self, what: str, path: str) -> None:
        raise RuntimeError(
            f"{what} {path!r} was replaced after make_private (load_state_dict(assign=True), or an "
            "assignment), so the optimiser no longer trains what the model reads; load without assign=True, "
            "or replace it before make_private"
        )
