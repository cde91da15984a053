"""Registry of layer rules: which rule computes the per-example gradients of which layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from sparsedp.clipping.gradients.base import Summand
from sparsedp.rows.lookups import EmbeddingLookups

Trainable = frozenset[str]
Part = Summand | EmbeddingLookups
Parts = Iterator[tuple[str, Part]]


class LayerCall(Protocol):
    """One call of a wrapped layer, as its rule sees it."""

    name: str
    """The layer's qualified name in the model."""

    def original_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's original forward."""

    def trace(self, saved: Any, output: Tensor) -> Tensor:
        """Pass ``saved`` and the gradient of ``output`` to the rule's ``gradients`` after the backward pass.

        ``saved`` is a tensor or a tuple, whose tensors must not be changed in place until then.

        The returned tensor replaces ``output``, which must not be a view of what its operation saved.
        """

    def batch_size(self) -> int | None:
        """How many examples the model was called with, where its arguments show it."""


class Rule(ABC):
    """Computes the per-example gradients of one kind of layer.

    A rule has no state: everything about a call is in the tensors that the rule saves of it.
    """

    parameters: ClassVar[frozenset[str] | None] = frozenset({"weight", "bias"})
    """The parameters that the rule knows; None: all that the module has."""
    input: ClassVar[str] = "input"
    """The name of the first argument of the layer's forward."""
    recurse: ClassVar[bool] = False
    """The rule covers the parameters of the module's descendants too (they are used without being called)."""
    leaves_input_unchanged: ClassVar[bool] = True
    """The layer does not change its input in place, so it may be connected to the sentinel (``with_sentinel``)."""

    def refusal(self, module: nn.Module) -> str | None:
        """Why this module cannot be trained privately as it is configured; None where it can."""
        return None

    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the layer, whose direct parameters do not require a gradient meanwhile, and trace its output."""
        return layer_call.trace(
            argument(args, kwargs, 0, self.input), layer_call.original_forward(*args, **kwargs)
        )

    @abstractmethod
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        """Each parameter (named within the module) with its per-example gradients from one call.

        ``grad`` is the gradient of the traced output, with the examples along dimension 0. Only the
        parameters in ``trainable`` are needed; others may be left out.
        """


class TableRule(Rule):
    """A rule for a layer that reads rows of a table, its parameter ``weight``, and yields ``EmbeddingLookups``."""

    parameters = frozenset({"weight"})

    def ids(self, saved: Any) -> Tensor | None:
        """The ids of a call, examples along dimension 0, if they alone tell which example reads which row."""
        return saved if isinstance(saved, Tensor) else None

    def rows(self, module: nn.Module) -> int:
        """The rows of the whole table, of which ``weight`` may hold a part."""
        weight = module.weight
        assert isinstance(weight, Tensor)
        return weight.shape[0]


_RULES: dict[str, Rule] = {}
_DERIVED: dict[str, Rule] = {}

Register = Callable[[type[Rule]], type[Rule]]


def register_layer_rule(*layers: type[nn.Module] | str) -> Register:
    """Class decorator: this rule is for these layers, given as classes or, to avoid importing them, by name."""
    return _register(_RULES, layers)


def register_derived_layer_rule(*layers: type[nn.Module] | str) -> Register:
    """Class decorator: this rule is for subclasses of these layers that override forward."""
    return _register(_DERIVED, layers)


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a module's class, or for a base class."""
    for base in type(module).__mro__:
        same = getattr(base, "forward", None) is type(module).forward
        rule = (_RULES if same else _DERIVED).get(_full_name(base))
        if rule is not None:
            return rule
    return None


def _register(rules: dict[str, Rule], layers: tuple[type[nn.Module] | str, ...]) -> Register:
    def register(rule: type[Rule]) -> type[Rule]:
        for layer in layers:
            rules[layer if isinstance(layer, str) else _full_name(layer)] = rule()
        return rule

    return register


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    """One argument of a call, positional or by keyword; None if it is missing."""
    return args[position] if len(args) > position else kwargs.get(name)


def _full_name(layer: type) -> str:
    return f"{layer.__module__}.{layer.__qualname__}"
