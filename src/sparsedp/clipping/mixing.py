"""Finds a layer that mixes the examples of a batch, by running two examples without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from sparsedp.clipping.layers.registry import argument
from sparsedp.clipping.unsupported import UnsupportedModule
from sparsedp.clipping.vectors import wide
from sparsedp.clipping.watch import Watch

BATCHES = 2
"""How many batches are probed."""

_TOLERANCE = 1e-3
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_PLAIN = (int, float, str, bool, type(None))


class _Output(NamedTuple):
    layer: str
    module: nn.Module
    values: Tensor


class _Trace(NamedTuple):
    outputs: list[_Output]
    has_offsets: bool
    """A bag was read with offsets: its examples cannot be cut out along dimension 0."""


class MixingProbe:
    """Compares the outputs of two examples by themselves with those of the same examples in their batch.

    Per-example gradients exist only where an example's outputs do not depend on the rest of its batch. The
    first batches are therefore run again, whole and cut to two examples; a layer whose outputs differ is named.
    Dropout is off meanwhile; where a model is random otherwise, it is probed in evaluation mode. What cannot
    be cut along dimension 0 (bags with offsets, objects of other types) is not probed, and neither is the loss,
    which is not part of the model.
    """

    def __init__(self, module: nn.Module, watches: Sequence[Watch]) -> None:
        self._module = module
        self._watched = [(watch.name, watch.module) for watch in watches]
        self._left = BATCHES

    @property
    def is_done(self) -> bool:
        """Enough batches have been probed."""
        return self._left == 0

    @torch.no_grad()
    def __call__(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], examples: int | None
    ) -> None:
        """Probe one call of the model's ``forward``; raises ``UnsupportedModule``."""
        if examples is None or examples < 3 or self.is_done:
            return
        pair = torch.tensor([0, examples - 1])
        cut = _cut(args, kwargs, examples, pair)
        if cut is None:
            return
        with _buffers_restored(self._module), torch.random.fork_rng(devices=[]):
            whole = self._deterministic_trace(forward, (args, kwargs))
            if whole.has_offsets:
                return
            try:
                alone = self._trace(forward, cut)
            except Exception:  # the model takes no other batch than this one
                return
            self._compare(whole, alone, examples, pair)
        self._left -= 1

    def _deterministic_trace(self, forward: Callable[..., Any], call: _Arguments) -> _Trace:
        """The outputs in training mode, or in evaluation mode where training draws random numbers.

        The mode is left on for the call that follows, and put back with the buffers.
        """
        self._module.train()
        for module in self._module.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
        first, second = self._trace(forward, call, 0), self._trace(forward, call, 1)
        if _agree(first, second):
            return first
        self._module.eval()
        return self._trace(forward, call)

    def _trace(self, forward: Callable[..., Any], call: _Arguments, seed: int = 0) -> _Trace:
        torch.manual_seed(seed)
        found: list[_Output] = []
        has_offsets = False
        args, kwargs = call
        with ExitStack() as stack:
            for name, module in self._watched:

                def keep(module: nn.Module, given: Any, named: Any, output: Any, name: str = name) -> None:
                    nonlocal has_offsets
                    if (
                        isinstance(module, nn.EmbeddingBag)
                        and argument(given, named, 1, "offsets") is not None
                    ):
                        has_offsets = True
                    if isinstance(module, nn.RNNBase):
                        output = output[0]  # the final states have the layers along dimension 0
                    found.extend(_Output(name, module, leaf.clone()) for leaf in _floats(output))

                stack.enter_context(module.register_forward_hook(keep, with_kwargs=True))
            output = forward(*args, **kwargs)
        found.extend(_Output("", self._module, leaf) for leaf in _floats(output))
        return _Trace(found, has_offsets)

    def _compare(self, whole: _Trace, alone: _Trace, examples: int, pair: Tensor) -> None:
        if [each.layer for each in whole.outputs] != [each.layer for each in alone.outputs]:
            return
        for (layer, module, batch), (_, _, two) in zip(whole.outputs, alone.outputs, strict=True):
            if batch.dim() == 0 or two.dim() == 0 or batch.shape[0] != examples:
                continue  # a scalar, or of another size than the batch: refused where it is captured
            if two.shape[0] != 2 and module is not self._module:
                raise UnsupportedModule(
                    layer,
                    module,
                    f"dimension 0 of its output is not the examples: it has {two.shape[0]} entries for 2 examples "
                    f"as for {examples}. Give it one entry an example (positions: shape (1, T))",
                )
            if two.shape[0] == 2 and not _close(batch[pair], two):
                raise UnsupportedModule(
                    layer,
                    module,
                    "gives another output for an example when the others of its batch are not there: it, or what "
                    "comes before it, mixes the examples. Their per-example gradients are not defined",
                )


def _cut(args: tuple[Any, ...], kwargs: dict[str, Any], examples: int, pair: Tensor) -> _Arguments | None:
    """The arguments with two examples only; None where it is not plain how to cut them."""
    leaves, spec = tree_flatten((args, kwargs))
    cut = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if leaf.dim() and leaf.shape[0] == examples:
                leaf = leaf[pair]
            elif leaf.dim() == 1 and not leaf.is_floating_point():
                return None  # flat ids, or lengths of something else
        elif not isinstance(leaf, _PLAIN):
            return None
        cut.append(leaf)
    found: _Arguments = tree_unflatten(cut, spec)
    return found


def _floats(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _agree(first: _Trace, second: _Trace) -> bool:
    return len(first.outputs) == len(second.outputs) and all(
        one.values.shape == two.values.shape and _close(one.values, two.values)
        for one, two in zip(first.outputs, second.outputs, strict=True)
    )


def _close(together: Tensor, alone: Tensor) -> bool:
    """Equal but for rounding, in units of the largest number."""
    if together.shape != alone.shape:
        return False
    tolerance = max(_TOLERANCE, 4 * torch.finfo(together.dtype).eps)
    together, alone = wide(together), wide(alone)
    finite = together.isfinite()
    if not torch.equal(finite, alone.isfinite()):
        return False
    difference = (together - alone).abs()[finite]
    return not difference.numel() or bool(difference.amax() <= tolerance * together[finite].abs().amax())


@contextmanager
def _buffers_restored(module: nn.Module) -> Iterator[None]:
    """Give the module its buffers and modes back as they were."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(each, each.training) for each in module.modules()]
    try:
        yield
    finally:
        for buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)
        for each, training in modes:
            each.training = training
