"""Detects layers that mix the examples of a batch: by gradients across examples, and by leaving examples out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.gradients.vectors import upcast
from sparsedp.clipping.hooks import LayerWrapper
from sparsedp.clipping.layers.registry import argument

BATCHES = 2
"""How many batches are probed."""

_TOLERANCE = 1e-3
_LAST_BITS = 4
"""By how many units in the last place ``_rounding`` moves a layer's outputs."""
_ROUNDING_MARGIN = 16
"""Differences up to this many times the result of ``_rounding`` count as rounding."""
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_Forward = Callable[..., Any]
_PLAIN = (int, float, str, bool, type(None))

_MIXES = (
    "it, or what comes {where} it, mixes the examples of a batch. Their per-example gradients are not defined; compute "
    "each example from itself alone"
)


class _ForwardFailed(Exception):
    """The model itself raised: the real forward pass will raise again, or the model cannot be probed."""


class _Output(NamedTuple):
    layer: str
    module: nn.Module
    values: Tensor


class _Trace(NamedTuple):
    outputs: list[_Output]
    """Of the wrapped layers in the order of their calls, then of the model."""
    has_offsets: bool
    """A bag was read with offsets: its examples cannot be sliced along dimension 0."""


class MixingProbe:
    """Runs the first batches again, to see whether an example's outputs depend on the rest of its batch.

    Per-example gradients are defined only if they do not. There are two probes, since neither sees everything.
    The gradient of half of the examples' outputs must be zero at the other examples of every layer: this works on
    the batch as it is, also with random layers. And each half by itself must have the outputs that it has in its
    batch: this also sees what ``detach`` hides from gradients. It runs in training mode, in evaluation mode where
    training draws random numbers, and not at all where evaluation does too or the batch cannot be sliced along
    dimension 0. A model whose outputs change from call to call carries state from one batch to the next, and is
    refused. The loss is not part of the model, and is not probed.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[LayerWrapper],
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._module = module
        self._context = context
        self._layers = [(layer.name, layer.module) for layer in layers]
        self._batches_left = BATCHES
        self._single_batches_left = BATCHES

    def __call__(
        self, forward: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any], examples: int | None
    ) -> None:
        """Probe one call of the model's ``forward``; raises ``UnsupportedLayerError``."""
        if not self._batches_left or not examples or (examples == 1 and not self._single_batches_left):
            return
        with self._context(), restored(self._module), suppress(_ForwardFailed):
            self._probe(forward, (args, kwargs), examples)

    def _probe(self, forward: _Forward, call: _Arguments, examples: int) -> None:
        if examples == 1:  # nothing to mix, but the model may carry state
            self._single_batches_left -= 1
            with torch.no_grad():
                self._repeatable_trace(forward, call)
            return
        compared = self._probe_gradients(forward, call, examples)
        compared += self._probe_subsets(forward, call, examples)
        if compared:  # else nothing was finite, or nothing could be compared
            self._batches_left -= 1

    def _probe_gradients(self, forward: _Forward, call: _Arguments, examples: int) -> int:
        # The caller's saved-tensor hooks (checkpointing) count what a forward pass saves: keep them out.
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved),
        ):
            trace = self._trace(forward, call, keep_graph=True)
            roots = [output.values for output in trace.outputs if output.module is self._module]
            roots = [root for root in roots if root.requires_grad and _has_rows(root, examples)]
            layers = [output for output in trace.outputs if output.values.requires_grad]
            layers = [output for output in layers if _has_rows(output.values, examples)]
            if not roots or not layers:
                return 0
            some, others = _halves(examples, self._batches_left)
            objective = sum(
                upcast(root[some]).nan_to_num().square().sum() + upcast(root[some]).nan_to_num().sum()
                for root in roots
            )
            try:
                values = [output.values for output in layers]
                grads = torch.autograd.grad(objective, values, allow_unused=True)  # type: ignore[arg-type]
            except RuntimeError:  # re-entrant checkpointing does not support autograd.grad
                return 0
        for output, grad in zip(layers, grads, strict=True):
            if grad is not None and bool((grad[others].isfinite() & (grad[others] != 0)).any()):
                where = "after" if output.module is not self._module else "in"
                raise UnsupportedLayerError(
                    output.layer,
                    output.module,
                    "one example's output depends on others here: " + _MIXES.format(where=where),
                )
        return sum(
            grad is not None and bool((each.values.detach()[some].isfinite() & grad[some].isfinite()).any())
            for each, grad in zip(layers, grads, strict=True)
        )

    @torch.no_grad()
    def _probe_subsets(self, forward: _Forward, call: _Arguments, examples: int) -> int:
        full = self._repeatable_trace(forward, call)
        if full is None or full.has_offsets:
            return 0
        compared = 0
        for chosen in _halves(examples, self._batches_left):
            cut = _cut(call, examples, chosen)
            if cut is None:
                return 0
            try:
                alone = self._trace(forward, cut)
            except _ForwardFailed:  # the model does not take a smaller batch
                return compared
            compared += self._compare(
                full, alone, examples, chosen, lambda: self._rounding(forward, call, full)
            )
        return compared

    def _rounding(self, forward: _Forward, call: _Arguments, full: _Trace) -> list[float]:
        """How far rounding alone may move each output, measured by moving the last bits of every layer's output.

        An output that is small because large numbers cancel is mostly rounding, which differs with the size of
        the batch and from one processor to another. Zero where the two cannot be compared: their layers or shapes
        differ, or only one of them is finite.
        """
        moved = self._trace(forward, call, move_last_bits=True)
        if len(moved.outputs) != len(full.outputs):
            return [0.0] * len(full.outputs)
        differences = [
            _difference(one.values, two.values) for one, two in zip(full.outputs, moved.outputs, strict=True)
        ]
        return [_ROUNDING_MARGIN * change if math.isfinite(change) else 0.0 for change in differences]

    def _repeatable_trace(self, forward: _Forward, call: _Arguments) -> _Trace | None:
        """The outputs in a mode in which nothing is random; the mode stays on for later calls."""
        for training in (True, False):
            self._module.train(training)
            for module in self._module.modules():
                if isinstance(module, nn.modules.dropout._DropoutNd):
                    module.eval()
            first, again = self._trace(forward, call, 0), self._trace(forward, call, 0)
            if not _agree(first, again):
                raise UnsupportedLayerError(
                    "",
                    self._module,
                    "gives other outputs when it is called again with the same batch and the same random numbers: it "
                    "carries something over from one call to the next, and so from one batch's examples to another's. "
                    "Keep such state out of forward",
                )
            if _agree(first, self._trace(forward, call, 1)):
                return first
        return None

    def _trace(
        self,
        forward: _Forward,
        call: _Arguments,
        seed: int = 0,
        keep_graph: bool = False,
        move_last_bits: bool = False,
    ) -> _Trace:
        torch.manual_seed(seed)
        outputs: list[_Output] = []
        has_offsets = False
        bits = torch.Generator().manual_seed(0)

        def record(name: str, module: nn.Module, output: Any) -> None:
            if isinstance(module, nn.RNNBase):
                output = output[0]  # the final states have the layers along dimension 0
            # A later operation may change an output in place.
            outputs.extend(
                _Output(name, module, leaf if keep_graph else leaf.clone()) for leaf in _floats(output)
            )

        with ExitStack() as stack:
            for name, module in self._layers:

                def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> Any:
                    nonlocal has_offsets
                    bag = isinstance(layer, nn.EmbeddingBag)
                    has_offsets |= bag and argument(args, kwargs, 1, "offsets") is not None
                    if move_last_bits:
                        output = tree_map(partial(_with_last_bits_moved, bits=bits), output)
                    record(name, layer, output)
                    return output

                stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
            try:
                output = forward(*call[0], **call[1])
            except Exception as error:
                raise _ForwardFailed from error
        outputs.extend(_Output("", self._module, leaf) for leaf in _floats(output))
        return _Trace(outputs, has_offsets)

    def _compare(
        self,
        full: _Trace,
        alone: _Trace,
        examples: int,
        chosen: list[int],
        rounding: Callable[[], list[float]],
    ) -> int:
        """How many outputs were compared; raises where one differs by more than rounding."""
        if [output.layer for output in full.outputs] != [output.layer for output in alone.outputs]:
            return 0
        compared = 0
        pairs = zip(full.outputs, alone.outputs, strict=True)
        for index, ((layer, module, batch), (_, _, few)) in enumerate(pairs):
            if not _has_rows(batch, examples):
                continue  # a scalar, or another size than the batch: refused at capture
            expected = batch[chosen]
            if few.numel() != expected.numel():
                if module is self._module:
                    continue
                raise UnsupportedLayerError(
                    layer,
                    module,
                    f"dimension 0 of its output is not the examples: it has {list(few.shape)} for {len(chosen)} examples "
                    f"and {list(batch.shape)} for {examples}. Give it one entry an example (positions: shape (1, T)), "
                    "or freeze it",
                )
            few = few.reshape(expected.shape)
            if not _close(expected, few) and not _difference(expected, few) <= rounding()[index]:
                raise UnsupportedLayerError(
                    layer,
                    module,
                    "gives another output for an example when the others of its batch are not there: "
                    + _MIXES.format(where="before"),
                )
            compared += bool(expected.isfinite().any())
        return compared


def _halves(examples: int, seed: int) -> tuple[list[int], list[int]]:
    """Two random halves of the examples, with the first and the last example in different halves."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed)).tolist()
    first = {0, *order[: examples // 2]} - {examples - 1}
    return sorted(first), [n for n in range(examples) if n not in first]


def _has_rows(values: Tensor, examples: int) -> bool:
    return values.dim() > 0 and values.shape[0] == examples


def _cut(call: _Arguments, examples: int, chosen: list[int]) -> _Arguments | None:
    """The arguments with these examples only; None where it is unclear how to slice them."""
    leaves, spec = tree_flatten(call)
    cut = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if leaf.dim() and leaf.shape[0] == examples:
                leaf = leaf[chosen]
            elif leaf.dim() == 1 and not leaf.is_floating_point():
                return None  # flat ids, or lengths of something else
        elif not isinstance(leaf, _PLAIN):
            return None
        cut.append(leaf)
    arguments: _Arguments = tree_unflatten(cut, spec)
    return arguments


def _floats(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _with_last_bits_moved(leaf: Any, bits: torch.Generator) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    signs = torch.randint(0, 2, leaf.shape, generator=bits).to(leaf) * 2 - 1
    return leaf * (1 + _LAST_BITS * torch.finfo(leaf.dtype).eps * signs)


def _agree(first: _Trace, second: _Trace) -> bool:
    return len(first.outputs) == len(second.outputs) and all(
        one.values.shape == two.values.shape and _close(one.values, two.values)
        for one, two in zip(first.outputs, second.outputs, strict=True)
    )


def _close(in_batch: Tensor, alone: Tensor) -> bool:
    tolerance = max(_TOLERANCE, 4 * torch.finfo(in_batch.dtype).eps)
    finite = in_batch[in_batch.isfinite()]
    scale = float(upcast(finite).abs().amax()) if finite.numel() else 0.0
    return _difference(in_batch, alone) <= tolerance * scale


def _difference(in_batch: Tensor, alone: Tensor) -> float:
    """The largest absolute difference; infinite where the shapes differ, or only one of the two is finite."""
    if in_batch.shape != alone.shape:
        return math.inf
    in_batch, alone = upcast(in_batch), upcast(alone)
    finite = in_batch.isfinite()
    if not torch.equal(finite, alone.isfinite()):
        return math.inf
    difference = (in_batch - alone)[finite].abs()
    return float(difference.amax()) if difference.numel() else 0.0


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers and modes, and the state of torch's random numbers."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(part, part.training) for part in module.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        for device_type, devices in _accelerators(module):
            stack.enter_context(torch.random.fork_rng(devices, device_type=device_type))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        try:
            # In evaluation nn.TransformerEncoder packs padded examples together, which has no dimension 0.
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)
            torch.backends.mha.set_fastpath_enabled(fast_path)
            for part, training in modes:
                part.training = training


def _accelerators(module: nn.Module) -> Iterator[tuple[str, list[int]]]:
    """The devices other than the CPU on which parameters live, by type: each has random numbers of its own."""
    devices = {
        parameter.device for parameter in module.parameters() if parameter.device.type not in ("cpu", "meta")
    }
    for device_type in sorted({device.type for device in devices}):
        yield device_type, sorted({device.index or 0 for device in devices if device.type == device_type})
