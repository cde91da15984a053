"""Any module that treats its examples separately: one vector-Jacobian product per example, by vmap."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten
from typing_extensions import override

from sparsedp.clipping.anchor import copy_with_sentinel
from sparsedp.clipping.attributes import guard_attributes, tensor_attributes
from sparsedp.clipping.errors import RuleError
from sparsedp.clipping.gradients.base import CHUNK
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.vectors import upcast
from sparsedp.clipping.layers.registry import LayerCall, Parts, Rule, Trainable

MOST = 1 << 30
"""How many numbers the gradients of one module's parameters may hold together (4 GB of float32)."""


class Replay(NamedTuple):
    """A call, to be run again per example."""

    leaves: list[Any]
    spec: TreeSpec
    output_index: int
    """Which tensor of the output the gradient is for."""
    output: Tensor
    """That tensor's value in the first run."""


class Fallback(Rule):
    """Runs the module again per example and materialises the gradients of its direct parameters.

    The second run must reproduce the output of the first: a module that mixes examples or draws random numbers
    does not, and is refused. Hooks on the module and its children run again too.
    """

    parameters = None
    leaves_input_unchanged = False

    @override
    def refusal(self, module: nn.Module) -> str | None:
        if type(module).forward is nn.Module.forward:
            return "holds parameters but has no forward of its own, so it cannot be seen where they are used"
        return None

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        saved = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        leaves, spec = tree_flatten(saved)
        attributes = tensor_attributes(module)
        outputs, output_spec = tree_flatten(layer_call.original_forward(*args, **kwargs))
        output_indices = [i for i, o in enumerate(outputs) if isinstance(o, Tensor) and o.is_floating_point()]
        if not output_indices:
            raise RuleError("returns no tensor that could carry a gradient")
        originals, returned = list(outputs), dict[int, Tensor]()
        for output_index in output_indices:
            output = originals[output_index]
            # A copy, since a later operation may change the output in place.
            replay = Replay(leaves, spec, output_index, output.detach().clone())
            # An output that the module uses for another output would receive that one's gradient as well, and the
            # operation that made a view must see later in-place changes of it: both need a copy.
            if output.requires_grad:
                separate = copy_with_sentinel(output)
            else:
                separate = output.clone() if len(output_indices) > 1 or output._is_view() else output
            outputs[output_index] = returned[id(output)] = layer_call.trace(replay, separate)
        guard_attributes(module, layer_call.name, attributes, returned)
        return tree_unflatten(outputs, output_spec)

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        parameters = {name: module.get_parameter(name).detach() for name in sorted(trainable)}
        numbers = sum(value.numel() for value in parameters.values())
        if grad.shape[0] * numbers > MOST:
            raise RuleError(
                f"has no rule of its own, so that gradients of {numbers} parameters for each of "
                f"{grad.shape[0]} examples would be held at once; make it of layers that have rules"
            )
        if grad.shape[0] == 0:
            gradients = {name: value.new_zeros(0, *value.shape) for name, value in parameters.items()}
        else:
            gradients = _replay(module, saved, grad, parameters, max(1, CHUNK // numbers))
        for name, values in gradients.items():
            yield name, Materialised(values)


def _replay(
    module: nn.Module, call: Replay, grad: Tensor, parameters: dict[str, Tensor], chunk: int
) -> dict[str, Tensor]:
    """The gradient of each parameter for each example, ``chunk`` examples at a time."""
    batched = [i for i, leaf in enumerate(call.leaves) if _holds_examples(leaf, grad.shape[0])]

    def one(inputs: list[Tensor], output_grad: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        leaves = list(call.leaves)
        for i, leaf in zip(batched, inputs, strict=True):
            leaves[i] = leaf.unsqueeze(0)
        args, kwargs = tree_unflatten(leaves, call.spec)

        def output(values: dict[str, Tensor]) -> Tensor:
            outputs = tree_flatten(functional_call(module, values, args, kwargs))[0]
            return outputs[call.output_index]  # type: ignore[no-any-return]

        value, pull_back = vjp(output, parameters)  # type: ignore[misc]
        return pull_back(output_grad.unsqueeze(0))[0], value.squeeze(0)

    try:
        # The fused attention kernels have no batching rule.
        with sdpa_kernel(SDPBackend.MATH):
            gradients, again = vmap(one, chunk_size=chunk)([call.leaves[i] for i in batched], grad)
    except (RuntimeError, ValueError) as error:
        raise RuleError(f"{_HOW}: {str(error).strip().splitlines()[0]}") from error
    _check_same(call.output, again)
    return dict(gradients)


_HOW = (
    "has no rule of its own, and running it one example at a time (torch.func.vmap) fails. "
    "Make it of layers that have rules, with any dropout in a module of its own, or freeze its parameters"
)


def _holds_examples(leaf: Any, batch: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch


def _check_same(in_batch: Tensor, alone: Tensor) -> None:
    """Refuse a module whose output for an example depends on the rest of its batch, beyond rounding."""
    tolerance = max(1e-3, 4 * torch.finfo(in_batch.dtype).eps)
    in_batch, alone = upcast(in_batch), upcast(alone)
    finite = in_batch.isfinite()
    if in_batch.shape == alone.shape and torch.equal(finite, alone.isfinite()):
        difference = (in_batch - alone).abs()[finite]
        if not finite.any() or difference.amax() <= tolerance * in_batch[finite].abs().amax():
            return
    raise RuleError(
        "gives another output for an example by itself than for the same example in its batch: it mixes the "
        "examples, or it is random. Its per-example gradients are not defined"
    )
