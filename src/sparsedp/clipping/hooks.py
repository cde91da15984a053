"""Wrappers of forward that save the input of a layer and the gradient of its output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from sparsedp.clipping.anchor import is_restricted, on_gradient, with_sentinel
from sparsedp.clipping.errors import RuleError, UnsupportedLayerError
from sparsedp.clipping.layers.registry import Rule, TableRule, Trainable, argument


class ForwardWrapper(ABC):
    """Called instead of ``module.forward`` while attached.

    The module's class, parameters and state_dict keys stay as they are, and the user's hooks run around the
    wrapper as around the original forward: the wrapper sees what the layer computes with.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.original_forward: Callable[..., Any] = module.forward
        self._had_instance_forward = False

    def attach(self) -> None:
        """Replace the module's forward, which may be another wrapper."""
        self._had_instance_forward = "forward" in vars(self.module)
        self.original_forward = self.module.forward
        self.module.forward = self

    def detach(self) -> None:
        """Restore the module's forward; wrappers of one module are detached in reverse order."""
        if vars(self.module).get("forward") is self:
            del self.module.forward
            if self._had_instance_forward:
                self.module.forward = self.original_forward

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the module's forward does."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or a pickle of the module gets its original forward.
        return _identity, (self.original_forward,)


def _identity(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward


RecordedCall: TypeAlias = "tuple[Call, Tensor]"
"""A call of a layer and the gradient of its output."""


class Recorder:
    """Collects what the wrapped layers of one model record: a list of calls and gradients per backward pass."""

    def __init__(self, root: nn.Module) -> None:
        self.arguments: Any = None
        """What the model was called with, while its forward runs."""
        self.is_paused = False
        """Modules run without being recorded."""
        self.piece: int | None = None
        """The number of the current piece of a batch: forward passes belong to it."""
        self.examples: int | None = None
        """How many examples that piece has, where known."""
        self._root = root
        self._passes: dict[int, list[RecordedCall]] = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Modules run without being recorded."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def is_recording(self) -> bool:
        """True while the model trains with gradients on."""
        return self._root.training and torch.is_grad_enabled() and not self.is_paused

    def batch_size(self) -> int | None:
        """How many examples a call holds: the size that all tensors among the model's arguments share along
        dimension 0, else that of the current piece."""
        tensors = [leaf for leaf in tree_leaves(self.arguments) if isinstance(leaf, Tensor) and leaf.dim()]
        sizes = {tensor.shape[0] for tensor in tensors}
        return sizes.pop() if len(sizes) == 1 else self.examples

    def add(self, task: int, call: Call, grad: Tensor) -> None:
        """Record the output gradient of a call in backward pass number ``task``."""
        self._passes.setdefault(task, []).append((call, grad))

    def take(self) -> list[list[RecordedCall]]:
        """The passes since the last time, in the order in which they began; they are cleared here."""
        passes, self._passes = self._passes, {}
        return list(passes.values())


_running_backward: Callable[[], int] = torch._C._current_graph_task_id
"""The number of the backward pass that is running in this thread, -1 outside of one."""


class LayerWrapper(ForwardWrapper):
    """While the model trains with gradients on, passes a layer's calls to its rule.

    The layer's trainable parameters do not require a gradient during its forward, so that backward never
    computes a weight gradient.
    """

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        module: nn.Module,
        rule: Rule,
        parameters: dict[str, nn.Parameter],
    ) -> None:
        super().__init__(module)
        self.recorder = recorder
        self.name = name
        self.rule = rule
        self.parameters = parameters
        self.table: str | None = None
        """The name of the table that the layer reads, if its parameter is one."""
        self.names: dict[str, str] = {}
        """Parameter names within the layer -> names within the model."""
        self._parameter_names = frozenset(parameters)

    @override
    def attach(self) -> None:
        super().attach()
        self.forward = self._table_forward if isinstance(self.rule, TableRule) else self.original_forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""
        if not self.recorder.is_recording():
            return self.forward(*args, **kwargs)
        frozen_parameters = [parameter for parameter in self.parameters.values() if parameter.requires_grad]
        trainable = self._parameter_names
        if len(frozen_parameters) != len(trainable):
            trainable = frozenset(
                name for name, parameter in self.parameters.items() if parameter.requires_grad
            )
            if not trainable:
                return self.forward(*args, **kwargs)
        if self.rule.leaves_input_unchanged:
            args, kwargs = _with_sentinel_input(args, kwargs)
        for parameter in frozen_parameters:
            parameter.requires_grad = False
        try:
            return self.rule.forward(self.module, _LayerCall(self, trainable), args, kwargs)
        except RuleError as error:
            raise self.unsupported(error) from error
        finally:
            for parameter in frozen_parameters:
                parameter.requires_grad = True

    def unsupported(self, error: RuleError) -> UnsupportedLayerError:
        """The error for the user, with the name of the module and of its parameters."""
        parameters = ", ".join(map(repr, self.parameters))
        return UnsupportedLayerError(self.name, self.module, f"{error} (parameters {parameters})")

    def _table_forward(self, *args: Any, **kwargs: Any) -> Any:
        """A table's original forward, with errors that name the table."""
        try:
            return self.original_forward(*args, **kwargs)
        except (IndexError, RuntimeError):
            # torch names neither the table nor the id; checking only after the error costs nothing.
            self._check_ids(argument(args, kwargs, 0, "input"))
            raise

    def _check_ids(self, ids: Any) -> None:
        assert isinstance(self.rule, TableRule)
        rows = self.rule.rows(self.module)
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
            kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise ValueError(f"table {self.name!r}: ids must be int64 or int32, not {kind}")
        if ids.numel():
            low, high = (int(bound) for bound in ids.aminmax())
            if low < 0 or high >= rows:
                wrong = low if low < 0 else high
                raise ValueError(
                    f"table {self.name!r}: id {wrong} is out of range, the table has {rows} rows"
                )


Probe = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], int | None], None]


class ModelWrapper(ForwardWrapper):
    """Wraps the model's forward: stores the arguments while it runs.

    In training each of the ``probes`` gets the forward, the arguments of a call and its number of examples.
    """

    def __init__(self, recorder: Recorder, module: nn.Module, probes: Sequence[Probe]) -> None:
        super().__init__(module)
        self._recorder = recorder
        self._probes = probes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""
        if torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None:
            raise UnsupportedLayerError("", self.module, "is compiled by torch.compile; train it as it is")
        recorder = self._recorder
        recorder.arguments = (args, kwargs)
        try:
            # A checkpointed model runs again within the backward pass.
            fresh = recorder.is_recording() and _running_backward() == -1
            mixing = self._probed(args, kwargs) if fresh else None
            output = self.original_forward(*args, **kwargs)
            if mixing is not None:  # an error that a layer raised in forward comes first: it is more specific
                raise mixing
            return output
        finally:
            recorder.arguments = None

    def _probed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UnsupportedLayerError | None:
        try:
            with self._recorder.paused():
                for probe in self._probes:
                    probe(self.original_forward, args, kwargs, self._recorder.batch_size())
        except UnsupportedLayerError as mixing:
            return mixing
        return None


class _LayerCall:
    """One call of a wrapped layer, as its rule sees it."""

    __slots__ = ("_layer", "_trainable", "batch_size", "name", "original_forward")

    def __init__(self, layer: LayerWrapper, trainable: Trainable) -> None:
        self._layer = layer
        self._trainable = trainable
        self.original_forward = layer.forward
        self.name = layer.name
        self.batch_size = layer.recorder.batch_size

    def trace(self, saved: Any, output: Tensor) -> Tensor:
        return on_gradient(output, Call(self._layer, saved, self._trainable).receive)


class Call:
    """What a rule saves of one call of its layer until the output gradient arrives."""

    __slots__ = ("_outer_task", "_task", "_versions", "layer", "piece", "saved", "trainable")

    def __init__(self, layer: LayerWrapper, saved: Any, trainable: Trainable) -> None:
        self.layer = layer
        self.trainable = trainable
        self.piece = layer.recorder.piece
        """The piece of a batch that the forward pass belongs to."""
        if isinstance(saved, Tensor) and saved.requires_grad:
            saved = saved.detach()
        self.saved = saved
        self._versions = _versions(saved)
        # A layer that runs again within a backward pass (re-entrant checkpointing) belongs to that pass.
        self._outer_task = _running_backward()
        self._task = -1

    def receive(self, grad: Tensor) -> None:
        """Called by autograd with the gradient of the traced output.

        ``autograd.grad`` and ``backward(inputs=...)`` give the parameters no gradient: they are ignored.
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"module {self.layer.name!r}: a backward pass with create_graph=True (gradient penalties, "
                "second derivatives) has per-example gradients that cannot be seen; leave the term out"
            )
        if is_restricted():
            return
        task = self._outer_task if self._outer_task != -1 else _running_backward()
        if self._task not in (-1, task):
            raise RuntimeError(
                f"module {self.layer.name!r}: a second backward pass runs through one forward pass, which "
                "would clip the examples of one batch twice; add the losses and call backward once"
            )
        self.check_unchanged()
        self._task = task
        self.layer.recorder.add(task, self, grad)

    def check_unchanged(self) -> None:
        """Refuse if a saved tensor was changed in place."""
        if _versions(self.saved) != self._versions:
            raise RuntimeError(
                f"module {self.layer.name!r}: its input was changed in place after its forward, so that the "
                "gradient of its weight is lost; use an operation that is not in place, and do not write over a "
                "batch before step()"
            )


def _with_sentinel_input(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with the first tensor that requires a gradient connected to the sentinel."""
    for position, value in enumerate(args):
        if isinstance(value, Tensor) and value.requires_grad:
            return (*args[:position], with_sentinel(value), *args[position + 1 :]), kwargs
    for name, value in kwargs.items():
        if isinstance(value, Tensor) and value.requires_grad:
            return args, {**kwargs, name: with_sentinel(value)}
    return args, kwargs


def _versions(saved: Any) -> Any:
    """How often each saved tensor has been changed in place."""
    if isinstance(saved, Tensor):
        return saved._version
    return [part._version for part in saved if isinstance(part, Tensor)]
