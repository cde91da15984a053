"""Finds a layer that mixes the examples of a batch: by gradients across examples, and by leaving examples out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.gradients.vectors import upcast
from sparsedp.clipping.hooks import Watch
from sparsedp.clipping.layers.registry import argument

BATCHES = 2
"""How many batches are probed."""

_TOLERANCE = 1e-3
_LAST_BITS = 4
"""By how many units in the last place ``_rounding`` moves what a layer gives."""
_ROUNDING_MARGIN = 16
"""Differences up to so many times what ``_rounding`` finds are taken for rounding."""
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_Forward = Callable[..., Any]
_PLAIN = (int, float, str, bool, type(None))

_MIXES = (
    "it, or what comes {where} it, mixes the examples of a batch. Their per-example gradients are not defined; compute "
    "each example from itself alone"
)


class _ForwardFailed(Exception):
    """The model itself raised; it will do so again where the user sees it, or cannot be probed."""


class _Output(NamedTuple):
    layer: str
    module: nn.Module
    values: Tensor


class _Trace(NamedTuple):
    outputs: list[_Output]
    """Of the watched layers in the order of their calls, then of the model."""
    has_offsets: bool
    """A bag was read with offsets: its examples cannot be cut out along dimension 0."""


class MixingProbe:
    """Runs the first batches again, to see whether an example's outputs depend on the rest of its batch.

    Per-example gradients exist only where they do not. Two probes, since neither sees everything. The gradient
    of half of the examples' outputs must be zero at the other examples of every layer: this needs no second form of
    the batch, whatever is random. And each half by itself must have the outputs that it has in its batch: this also
    sees what ``detach`` hides from gradients. It is made in training mode, in evaluation mode
    where training draws random numbers, and not at all where evaluation does too or the batch cannot be cut along
    dimension 0. A model whose outputs change from call to call carries state from one batch to the next, and is
    refused. The loss is not part of the model, and is not probed.
    """

    def __init__(self, module: nn.Module, watches: Sequence[Watch]) -> None:
        self._module = module
        self._watched = [(watch.name, watch.module) for watch in watches]
        self._left = BATCHES
        self._single_left = BATCHES

    def __call__(
        self, forward: _Forward, args: tuple[Any, ...], kwargs: dict[str, Any], examples: int | None
    ) -> None:
        """Probe one call of the model's ``forward``; raises ``UnsupportedLayerError``."""
        if not self._left or not examples or (examples == 1 and not self._single_left):
            return
        with _left_as_it_was(self._module), suppress(_ForwardFailed):
            self._probe(forward, (args, kwargs), examples)

    def _probe(self, forward: _Forward, call: _Arguments, examples: int) -> None:
        if examples == 1:  # there is nothing to mix, but state to carry
            self._single_left -= 1
            with torch.no_grad():
                self._repeatable_trace(forward, call)
            return
        compared = self._probe_gradients(forward, call, examples)
        compared += self._probe_subsets(forward, call, examples)
        if compared:  # else nothing was finite, or nothing could be seen
            self._left -= 1

    def _probe_gradients(self, forward: _Forward, call: _Arguments, examples: int) -> int:
        # Hooks of the caller's on saved tensors (checkpointing) count what a forward pass saves.
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved),
        ):
            trace = self._trace(forward, call, keep_graph=True)
            roots = [each.values for each in trace.outputs if each.module is self._module]
            roots = [root for root in roots if root.requires_grad and _has_rows(root, examples)]
            layers = [each for each in trace.outputs if each.values.requires_grad]
            layers = [each for each in layers if _has_rows(each.values, examples)]
            if not roots or not layers:
                return 0
            some, others = _halves(examples, self._left)
            one = sum(
                upcast(root[some]).nan_to_num().square().sum() + upcast(root[some]).nan_to_num().sum()
                for root in roots
            )
            try:
                grads = torch.autograd.grad(one, [each.values for each in layers], allow_unused=True)  # type: ignore[arg-type]
            except RuntimeError:  # re-entrant checkpointing has no gradients of parts
                return 0
        for each, grad in zip(layers, grads, strict=True):
            if grad is not None and bool((grad[others].isfinite() & (grad[others] != 0)).any()):
                where = "after" if each.module is not self._module else "in"
                raise UnsupportedLayerError(
                    each.layer,
                    each.module,
                    "one example's output depends on others here: " + _MIXES.format(where=where),
                )
        return sum(
            grad is not None and bool((each.values.detach()[some].isfinite() & grad[some].isfinite()).any())
            for each, grad in zip(layers, grads, strict=True)
        )

    @torch.no_grad()
    def _probe_subsets(self, forward: _Forward, call: _Arguments, examples: int) -> int:
        whole = self._repeatable_trace(forward, call)
        if whole is None or whole.has_offsets:
            return 0
        compared = 0
        for chosen in _halves(examples, self._left):
            cut = _cut(call, examples, torch.tensor(chosen))
            if cut is None:
                return 0
            try:
                alone = self._trace(forward, cut)
            except _ForwardFailed:  # the model takes no other batch than this one
                return compared
            compared += self._compare(
                whole, alone, examples, chosen, lambda: self._rounding(forward, call, whole)
            )
        return compared

    def _rounding(self, forward: _Forward, call: _Arguments, whole: _Trace) -> list[float]:
        """How far rounding alone may move each output: seen by moving the last bits of what each layer gives.

        An output that is small because large numbers cancel is mostly rounding, which differs with the size of
        the batch and from one processor to another. Not at all where the two cannot be compared: their layers or
        shapes differ, or only one of them is finite.
        """
        moved = self._trace(forward, call, move_last_bits=True)
        if len(moved.outputs) != len(whole.outputs):
            return [0.0] * len(whole.outputs)
        differences = [
            _difference(one.values, two.values) for one, two in zip(whole.outputs, moved.outputs, strict=True)
        ]
        return [_ROUNDING_MARGIN * each if math.isfinite(each) else 0.0 for each in differences]

    def _repeatable_trace(self, forward: _Forward, call: _Arguments) -> _Trace | None:
        """The outputs in a mode in which nothing is random; the mode is left on for the calls that follow."""
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
        found: list[_Output] = []
        has_offsets = False
        bits = torch.Generator().manual_seed(0)

        def keep(name: str, module: nn.Module, output: Any) -> None:
            if isinstance(module, nn.RNNBase):
                output = output[0]  # the final states have the layers along dimension 0
            # What follows may change an output in place.
            found.extend(
                _Output(name, module, leaf if keep_graph else leaf.clone()) for leaf in _floats(output)
            )

        with ExitStack() as stack:
            for name, module in self._watched:

                def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name) -> Any:
                    nonlocal has_offsets
                    bag = isinstance(layer, nn.EmbeddingBag)
                    has_offsets |= bag and argument(args, kwargs, 1, "offsets") is not None
                    if move_last_bits:
                        output = tree_map(partial(_with_last_bits_moved, bits=bits), output)
                    keep(name, layer, output)
                    return output

                stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
            try:
                output = forward(*call[0], **call[1])
            except Exception as error:
                raise _ForwardFailed from error
        found.extend(_Output("", self._module, leaf) for leaf in _floats(output))
        return _Trace(found, has_offsets)

    def _compare(
        self,
        whole: _Trace,
        alone: _Trace,
        examples: int,
        chosen: list[int],
        rounding: Callable[[], list[float]],
    ) -> int:
        """How many outputs were compared; raises where one differs by more than rounding."""
        if [each.layer for each in whole.outputs] != [each.layer for each in alone.outputs]:
            return 0
        compared = 0
        pairs = zip(whole.outputs, alone.outputs, strict=True)
        for index, ((layer, module, batch), (_, _, few)) in enumerate(pairs):
            if not _has_rows(batch, examples):
                continue  # a scalar, or of another size than the batch: refused where it is captured
            expected = batch[chosen]
            if few.numel() != expected.numel():
                if module is self._module:
                    continue
                raise UnsupportedLayerError(
                    layer,
                    module,
                    f"dimension 0 of its output is not the examples: it has {list(few.shape)} for {len(chosen)} examples "
                    f"and {list(batch.shape)} for {examples}. Give it one entry an example (positions: shape (1, T))",
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
    """Two random halves of the examples, the first and the last apart: few that mix can be in one half together."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed)).tolist()
    first = {0, *order[: examples // 2]} - {examples - 1}
    return sorted(first), [n for n in range(examples) if n not in first]


def _has_rows(values: Tensor, examples: int) -> bool:
    return values.dim() > 0 and values.shape[0] == examples


def _cut(call: _Arguments, examples: int, chosen: Tensor) -> _Arguments | None:
    """The arguments with these examples only; None where it is not clear how to cut them."""
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
    found: _Arguments = tree_unflatten(cut, spec)
    return found


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


def _close(together: Tensor, alone: Tensor) -> bool:
    tolerance = max(_TOLERANCE, 4 * torch.finfo(together.dtype).eps)
    finite = together[together.isfinite()]
    scale = float(upcast(finite).abs().amax()) if finite.numel() else 0.0
    return _difference(together, alone) <= tolerance * scale


def _difference(together: Tensor, alone: Tensor) -> float:
    """The largest; infinite where the shapes differ, or only one of the two is finite."""
    if together.shape != alone.shape:
        return math.inf
    together, alone = upcast(together), upcast(alone)
    finite = together.isfinite()
    if not torch.equal(finite, alone.isfinite()):
        return math.inf
    difference = (together - alone)[finite].abs()
    return float(difference.amax()) if difference.numel() else 0.0


@contextmanager
def _left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Give the module its buffers and modes back, and the random numbers their place."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(each, each.training) for each in module.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng(devices=[]):
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
            for each, training in modes:
                each.training = training
