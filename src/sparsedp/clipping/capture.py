"""The per-example gradients of a model's backward passes, in factored form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparsedp.clipping.errors import RuleError
from sparsedp.clipping.gradients.base import PerExampleGradient, Summand, total
from sparsedp.clipping.gradients.scattered_rows import ScatteredRows
from sparsedp.clipping.hooks import Call, ForwardWrapper, LayerWrapper, ModelWrapper, RecordedCall, Recorder
from sparsedp.clipping.layers.registry import Part, TableRule
from sparsedp.clipping.mixing import MixingProbe
from sparsedp.clipping.padding import PaddingProbe
from sparsedp.clipping.validate import wrap_layers
from sparsedp.core.arrays import F64
from sparsedp.rows.lookups import EmbeddingLookups
from sparsedp.rows.units import Units


@dataclass(frozen=True)
class Table:
    """An embedding table: a parameter that only embedding layers use."""

    name: str
    """The qualified name of the (first) module that reads it."""
    parameter_name: str
    parameter: nn.Parameter
    rows: int
    dim: int


class TableInput(NamedTuple):
    """The ids of one call of an embedding layer, with the examples along dimension 0."""

    ids: Tensor
    padding_idx: int | None


class Captured(NamedTuple):
    """One backward pass."""

    batch_size: int
    scale: float | F64
    """The true per-example gradient is this many times the recorded one."""
    dense: dict[str, PerExampleGradient]
    """By parameter name; a parameter that the pass did not reach is absent."""
    tables: dict[str, EmbeddingLookups]
    """By table name; a table that the pass did not reach is absent."""
    table_inputs: dict[str, list[TableInput] | None]
    """By table name, in the order of calls; None where the ids alone do not tell which example reads which row."""

    def grouped(self, units: Units) -> Captured:
        """The same pass with one gradient per unit, the sum (or the mean) over its examples; ``table_inputs`` stay."""
        assert isinstance(self.scale, float)
        if units.of_example.size != self.batch_size:
            raise ValueError(f"units: of {units.of_example.size} examples, the pass has {self.batch_size}")
        if units.most == 1:
            return self
        return self._replace(
            batch_size=units.count,
            scale=units.scales(self.scale),
            dense={name: gradient.grouped(units) for name, gradient in self.dense.items()},
            tables={name: lookups.grouped(units) for name, lookups in self.tables.items()},
        )


class Capture:
    """Records, until ``detach``, what every backward pass of ``module`` needs for per-example clipping.

    The module trains as before, except that backward leaves no ``.grad`` on its parameters. Every call within
    one backward pass must hold the same examples along dimension 0, in the same order: entry i of a layer's
    input belongs to example i. Two batches whose losses are added before one backward are therefore treated as
    two views of one batch; give each its own backward.

    A parameter that only embedding layers use is a table; one that is also an output layer's weight (a tied
    embedding) is a dense parameter.

    ``while_probing`` is entered around the passes that look for layers that mix examples (see ``MixingProbe``,
    ``PaddingProbe``).
    """

    tables: dict[str, Table]
    dense: dict[str, nn.Parameter]

    def __init__(
        self,
        module: nn.Module,
        *,
        loss_reduction: Literal["mean", "sum"],
        while_probing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ValueError(f"module: must be a torch.nn.Module, not {type(module).__name__}")
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction: must be 'mean' or 'sum', not {loss_reduction!r}")
        self.loss_reduction = loss_reduction
        self._mean = loss_reduction == "mean"
        self._module = module
        self._recorder = Recorder(module)
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._frozen = [(p, name) for p, name in self._names.items() if not p.requires_grad]
        self._gradient_in_eval: str | None = None
        self._layers = wrap_layers(module, self._recorder)
        self._padding = PaddingProbe(module, self._layers, while_probing)
        mixing = MixingProbe(module, self._layers, while_probing)
        probes = (mixing, self._padding) if self._padding.takes_texts else (mixing,)
        self._classify()
        self._handles = [
            p.register_post_accumulate_grad_hook(self._refuse_unclipped_gradient)  # type: ignore[no-untyped-call]
            for p in self._names
            if p.requires_grad
        ]
        self._wrappers: list[ForwardWrapper] = [
            *self._layers,
            ModelWrapper(self._recorder, module, probes),
        ]
        for wrapper in self._wrappers:
            wrapper.attach()

    def watch_reads(self, tables: Sequence[str]) -> None:
        """Of these tables it is counted who reads which rows: refuse reads that depend on other examples' lengths."""
        self._padding.watch_reads(tables)

    def begin_piece(self, piece: int, examples: int | None) -> None:
        """From now on forward passes belong to this piece of a batch; its number of examples is checked if known."""
        self._recorder.piece, self._recorder.examples = piece, examples

    def take(self) -> list[Captured]:
        """The backward passes since the last ``take``, oldest first; they are cleared here."""
        return self._capture_all(self._take_calls(), None)

    def take_pieces(self, sizes: Mapping[int, int | None]) -> dict[int, Captured]:
        """The backward passes through these pieces, merged per piece; all recorded passes are cleared.

        ``sizes`` are the numbers of examples, None where unknown. Several passes of one piece are summed per
        example, as one backward of the summed losses would. Passes through other pieces, of abandoned batches,
        are dropped.
        """
        calls: dict[int, list[RecordedCall]] = {}
        for pass_calls in self._take_calls():
            pieces = {call.piece for call, _ in pass_calls}
            if len(pieces) > 1:
                raise RuntimeError(
                    "batch: one backward pass runs through forward passes of two batches (or of two pieces of "
                    "one); give each its own backward"
                )
            piece = pieces.pop()
            if piece is not None and piece in sizes:
                calls.setdefault(piece, []).extend(pass_calls)
        return {piece: self._capture_all([merged], sizes[piece])[0] for piece, merged in calls.items()}

    def discard(self) -> None:
        """Discard the backward passes so far."""
        self._recorder.take()
        self._gradient_in_eval = None

    def _take_calls(self) -> list[list[RecordedCall]]:
        for parameter, name in self._frozen:
            if parameter.requires_grad:
                raise ValueError(
                    f"parameter {name!r}: was frozen when the capture began and is trainable now"
                )
        passes, gradient_in_eval = self._recorder.take(), self._gradient_in_eval
        self._gradient_in_eval = None
        if gradient_in_eval is not None and not passes:
            raise RuntimeError(
                f"parameter {gradient_in_eval!r}: received a gradient while the model was in evaluation mode, where "
                "nothing is captured; call train() on the model before its forward"
            )
        return passes

    def _capture_all(self, passes: list[list[RecordedCall]], examples: int | None) -> list[Captured]:
        if not passes:
            return []
        with self._recorder.paused(), torch.no_grad():
            return [self._captured(calls, examples) for calls in passes]

    def detach(self) -> None:
        """Restore the module."""
        for wrapper in reversed(self._wrappers):
            wrapper.detach()
        for handle in self._handles:
            handle.remove()

    def _classify(self) -> None:
        users: dict[nn.Parameter, list[LayerWrapper]] = defaultdict(list)
        for layer in self._layers:
            for parameter in layer.parameters.values():
                users[parameter].append(layer)
        self.tables, self.dense = {}, {}
        for parameter, name in self._names.items():
            if not parameter.requires_grad:
                continue
            if all(isinstance(layer.rule, TableRule) for layer in users[parameter]):
                reader = users[parameter][0]
                assert isinstance(reader.rule, TableRule)
                rows = reader.rule.rows(reader.module)
                table = Table(reader.name, name, parameter, rows, parameter.shape[1])
                self.tables[table.name] = table
                for layer in users[parameter]:
                    layer.table = table.name
            else:
                self.dense[name] = parameter
        for layer in self._layers:
            layer.names = {local: self._names[parameter] for local, parameter in layer.parameters.items()}

    def _captured(self, calls: list[RecordedCall], examples: int | None) -> Captured:
        first, grad = calls[0]
        batch = examples if examples is not None else grad.shape[0] if grad.dim() else 0
        source = "the batch" if examples is not None else repr(first.layer.name)
        for call, grad in calls:
            call.check_unchanged()
            self._check_precision(call, grad)
            if grad.dim() == 0 or grad.shape[0] != batch:
                raise ValueError(
                    f"batch: dimension 0 must be the examples in every layer, but {call.layer.name!r} gives "
                    f"{list(grad.shape)} where {source} has {batch} examples. Keep (examples, positions, ...) "
                    "throughout: do not flatten positions into dimension 0, and put the examples first; use "
                    "each batch before the next one is read; freeze a layer that the examples share (relative "
                    "positions)"
                )
        dense: dict[str, list[Summand]] = defaultdict(list)
        tables: dict[str, list[EmbeddingLookups]] = defaultdict(list)
        inputs: dict[str, list[TableInput] | None] = {}
        for call, grad in calls:
            layer = call.layer
            if layer.table is not None:
                _add_input(inputs, layer.table, call)
            for local, part in self._parts(call, grad):
                if layer.table is not None:
                    assert isinstance(part, EmbeddingLookups)
                    tables[layer.table].append(part)
                elif isinstance(part, EmbeddingLookups):
                    rows = layer.parameters[local].shape[0]
                    dense[layer.names[local]].append(ScatteredRows(part, batch, rows))
                else:
                    dense[layer.names[local]].append(part)
        return Captured(
            batch_size=batch,
            scale=_mean_scale(batch) if self._mean else 1.0,
            dense={name: total(parts) for name, parts in dense.items()},
            tables={name: EmbeddingLookups.concatenate(parts) for name, parts in tables.items()},
            table_inputs=inputs,
        )

    def _check_precision(self, call: Call, grad: Tensor) -> None:
        """Refuse a mean loss in half precision: 1 / n, rounded to 8 or 11 bits, moves the gradients of all examples."""
        if self._mean and grad.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"module {call.layer.name!r}: a mean loss in {grad.dtype} rounds 1 / (batch size), so that one example "
                "moves the gradients of all others; add the examples' losses up and give loss_reduction='sum'"
            )

    def _parts(self, call: Call, grad: Tensor) -> Iterator[tuple[str, Part]]:
        """Each parameter, by its name within the layer, with its per-example gradients."""
        try:
            yield from call.layer.rule.gradients(call.layer.module, call.saved, grad, call.trainable)
        except RuleError as error:
            raise call.layer.unsupported(error) from error

    def _refuse_unclipped_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if not self._module.training:
            self._gradient_in_eval = self._names[parameter]
            return
        parameter.grad = None
        raise RuntimeError(
            f"parameter {self._names[parameter]!r}: is used outside the forward of the module that holds it, "
            "where its per-example gradients cannot be seen; use it in that module's forward, or freeze it"
        )


def _mean_scale(batch: int) -> float:
    """Undoes a mean over the batch: the inverse of 1 / batch, rounded to float32."""
    return 1.0 / float(np.float32(1.0) / np.float32(batch)) if batch else 0.0


def _add_input(inputs: dict[str, list[TableInput] | None], table: str, call: Call) -> None:
    assert isinstance(call.layer.rule, TableRule)
    calls, ids = inputs.setdefault(table, []), call.layer.rule.ids(call.saved)
    if ids is None:
        inputs[table] = None
    elif calls is not None:
        calls.append(TableInput(ids, getattr(call.layer.module, "padding_idx", None)))
