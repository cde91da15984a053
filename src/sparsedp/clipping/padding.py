"""Detects what depends on how far a batch is padded, and so on its longest text: a text's outputs, the rows it reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsedp.clipping.errors import UnsupportedLayerError
from sparsedp.clipping.gradients.vectors import upcast
from sparsedp.clipping.hooks import LayerWrapper
from sparsedp.clipping.layers.registry import argument
from sparsedp.clipping.mixing import restored

PROBES = 2
"""How many padded texts are run again."""

_TOLERANCE = 5e-3
"""Of an output's largest value: rounding differs with the width, too."""
_REASON = (
    "gives a text other outputs where its batch is padded further, so that the longest text of a batch changes the "
    "gradients of all others. Give the model an attention_mask that it uses; pad on the right, or give position_ids "
    "that count from a text's first token; or pad all batches to one fixed length"
)
_COUNTED = (
    "pads are counted as reads of its rows (its padding_idx is {padding_idx}), so that the longest text of a batch "
    "changes the counts of all others. Set its padding_idx to the id of pads; positions cannot be counted: freeze the "
    "table, or raise always_on_rows above its size"
)


class _Trace(NamedTuple):
    """One pass of the model."""

    outputs: list[tuple[str, nn.Module, Tensor]]
    """Of the layers that hold parameters, in the order of their calls, then of the model."""
    reads: list[tuple[LayerWrapper, Tensor]]
    """The ids of counted tables, in the order of their calls."""


class _Text(NamedTuple):
    """One padded text of a batch: its number, and the columns that hold it."""

    number: int
    columns: slice
    width: int
    """Of the batch."""

    @property
    def length(self) -> int:
        return int(self.columns.stop - self.columns.start)


class PaddingProbe:
    """Runs a padded text again without its pads; its outputs, and the rows it reads, must be those in its batch.

    A batch that is padded to its longest text hands that text's length to every other. Where pads reach an output
    (positions that are counted from the first pad, a missing or unused mask), one text then changes the gradients of
    all; where a rule counts who reads which rows, pads that count as reads change the counts. A width that never
    changes tells nothing of the texts: the probe waits for a second width. It knows texts by the names of Hugging
    Face's arguments, ``attention_mask`` and ``input_ids``, and runs in evaluation mode, where nothing is random.
    """

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[LayerWrapper] = (),
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._module = module
        self._layers = layers
        self._counted: frozenset[str] = frozenset()
        self._context = context
        self._width: int | None = None
        parameters = inspect.signature(module.forward).parameters.values()
        self._names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self.takes_texts = bool({"input_ids", "attention_mask"} & {*self._names})
        self.takes_texts |= any(each.kind is each.VAR_KEYWORD for each in parameters)
        self._probes = self._left = PROBES if self.takes_texts else 0

    def watch_reads(self, tables: Sequence[str]) -> None:
        """From now on also compare the rows that a text reads of these tables."""
        self._counted |= frozenset(tables)
        self._left = self._probes

    def __call__(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], examples: int | None
    ) -> None:
        """Probe one call of the model's ``forward``; raises ``UnsupportedLayerError``."""
        if not self._left or not examples or len(args) > len(self._names):
            return
        arguments = {**dict(zip(self._names, args, strict=False)), **kwargs}
        content = self._content(arguments, examples)
        if content is None:
            return
        if self._width in (None, content.shape[1]):
            self._width = content.shape[1]
            return
        text = _most_padded(content)
        if text is None:
            return
        self._left -= 1
        alone = {name: _cut(name, value, text, examples) for name, value in arguments.items()}
        with self._context(), restored(self._module), torch.no_grad():
            self._module.eval()
            try:
                within, without = self._trace(forward, arguments), self._trace(forward, alone)
            except Exception:  # the real forward raises again, or the model does not take the text alone
                return
        self._compare_outputs(within, without, text, examples)
        self._compare_reads(within, without, text)

    def _content(self, arguments: Mapping[str, Any], examples: int) -> Tensor | None:
        """Where the batch holds texts, (examples, width), as the mask says, else by the id of pads."""
        mask, ids = arguments.get("attention_mask"), arguments.get("input_ids")
        if isinstance(mask, Tensor):
            return mask != 0 if mask.dim() == 2 and mask.shape[0] == examples else None
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.shape[0] != examples:
            return None
        pads = {getattr(module, "padding_idx", None) for module in self._module.modules()}
        pads.add(getattr(getattr(self._module, "config", None), "pad_token_id", None))
        known = [pad for pad in pads if isinstance(pad, int)]
        return torch.isin(ids, torch.tensor(known, dtype=ids.dtype, device=ids.device), invert=True)

    def _trace(self, forward: Callable[..., Any], arguments: Mapping[str, Any]) -> _Trace:
        trace = _Trace([], [])

        def record(name: str, module: nn.Module, output: Any) -> None:
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            trace.outputs.extend((name, module, leaf) for leaf in leaves if leaf.is_floating_point())

        with ExitStack() as stack:
            for name, module in self._module.named_modules():
                if module is not self._module and any(True for _ in module.parameters(recurse=False)):

                    def hook(layer: nn.Module, _: Any, output: Any, name: str = name) -> None:
                        record(name, layer, output)

                    stack.enter_context(module.register_forward_hook(hook))
            for layer in self._layers:
                if layer.table in self._counted:

                    def read(_: Any, args: Any, kwargs: Any, layer: LayerWrapper = layer) -> None:
                        trace.reads.append((layer, argument(args, kwargs, 0, "input")))

                    stack.enter_context(layer.module.register_forward_pre_hook(read, with_kwargs=True))
            record("", self._module, forward(**arguments))
        return trace

    def _compare_reads(self, within: _Trace, alone: _Trace, text: _Text) -> None:
        for (layer, ids), (_, own) in zip(within.reads, alone.reads, strict=False):
            if ids.dim() < 2:
                continue
            padding_idx = getattr(layer.module, "padding_idx", None)
            shared = ids.shape[0] == 1
            rows, own_rows = (
                _rows(part, padding_idx) for part in (ids[0 if shared else text.number], own[0])
            )
            if not torch.equal(rows, own_rows):
                reason = _COUNTED.format(padding_idx=padding_idx)
                raise UnsupportedLayerError(layer.name, layer.module, reason)

    def _compare_outputs(self, within: _Trace, without: _Trace, text: _Text, examples: int) -> None:
        if [name for name, _, _ in within.outputs] != [name for name, _, _ in without.outputs]:
            return
        for (name, module, batch), (_, _, alone) in zip(within.outputs, without.outputs, strict=True):
            if batch.dim() < 2 or alone.dim() < 2 or batch.shape[0] != examples or alone.shape[0] != 1:
                continue
            expected, found = upcast(batch[text.number]), upcast(alone[0])
            if (batch.shape[1], alone.shape[1]) == (text.width, text.length):
                expected = expected[text.columns]
            if expected.shape != found.shape:
                continue
            finite = expected.isfinite() & found.isfinite()
            difference = (expected - found)[finite].abs()
            scale = batch[batch.isfinite()].abs()
            tolerance = max(_TOLERANCE, 4 * torch.finfo(batch.dtype).eps)
            if difference.numel() and float(difference.amax()) > tolerance * float(upcast(scale).amax()):
                raise UnsupportedLayerError(name, module, _REASON)


def _rows(ids: Tensor, padding_idx: int | None) -> Tensor:
    """The rows read, each once."""
    rows: Tensor = torch.unique(ids)
    return rows if padding_idx is None else rows[rows != padding_idx]


def _most_padded(content: Tensor) -> _Text | None:
    """The text with the most pads before or behind it; None where nothing is padded."""
    width = content.shape[1]
    places = torch.arange(width, device=content.device)
    first = torch.where(content, places, width).amin(1)
    stop = torch.where(content, places + 1, 0).amax(1)
    length = torch.where(stop > 0, stop - first, width)
    number = int(length.argmin())
    if int(length[number]) == width:
        return None
    return _Text(number, slice(int(first[number]), int(stop[number])), width)


def _cut(name: str, value: Any, text: _Text, examples: int) -> Any:
    """The argument with this text alone, without its pads."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    is_wide = value.dim() > 1 and value.shape[1] == text.width and not name.startswith("decoder_")
    if value.shape[0] == examples:
        value = value[text.number : text.number + 1]
        return value[:, text.columns] if is_wide else value
    # Positions that the texts share begin anew with the text.
    return value[:, : text.length] if is_wide and value.shape[0] == 1 else value
