"""The per-example gradients of a model's backward passes, in factors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparsedp.clipping.errors import RuleError
from sparsedp.clipping.gradients.base import PerExampleGradient, Summand, total
from sparsedp.clipping.gradients.scattered_rows import ScatteredRows
from sparsedp.clipping.hooks import Call, Entrance, RecordedCall, Recorder, StandIn, Watch
from sparsedp.clipping.layers.registry import Part, TableRule
from sparsedp.clipping.mixing import MixingProbe
from sparsedp.clipping.validate import survey
from sparsedp.rows.lookups import EmbeddingLookups


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
    """The ids that one call of an embedding layer was given, an example along dimension 0."""

    ids: Tensor
    padding_idx: int | None


class Captured(NamedTuple):
    """One backward pass."""

    batch_size: int
    scale: float
    """The true per-example gradient is this many times the recorded one."""
    dense: dict[str, PerExampleGradient]
    """By parameter name; a parameter that the pass did not reach is absent."""
    tables: dict[str, EmbeddingLookups]
    """By table name; a table that the pass did not reach is absent."""
    table_inputs: dict[str, list[TableInput] | None]
    """By table name, call after call; None where the ids alone do not say who reads what."""


class Capture:
    """Records, until ``detach``, what every backward pass of ``module`` needs for per-example clipping.

    The module trains as before, except that backward leaves no ``.grad`` on its parameters. Every call within
    one backward pass must hold the same examples along dimension 0, in the same order: what goes through a
    layer at position i is example i's. Two batches whose losses are added before one backward are therefore
    taken for two views of one batch; give each its own backward.

    A parameter that embedding layers alone use is a table; one that is an output layer's weight as well (a
    tied embedding) is a dense parameter.
    """

    tables: dict[str, Table]
    dense: dict[str, nn.Parameter]

    def __init__(self, module: nn.Module, *, loss_reduction: Literal["mean", "sum"]) -> None:
        if not isinstance(module, nn.Module):
            raise ValueError(f"module: must be a torch.nn.Module, not {type(module).__name__}")
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction: must be 'mean' or 'sum', not {loss_reduction!r}")
        self._mean = loss_reduction == "mean"
        self._module = module
        self._recorder = Recorder(module)
        self._names = {parameter: name for name, parameter in module.named_parameters()}
        self._frozen = [(p, name) for p, name in self._names.items() if not p.requires_grad]
        self._unseen: str | None = None
        self._watches = survey(module, self._recorder)
        self._probe = MixingProbe(module, self._watches)
        self._classify()
        self._handles = [
            p.register_post_accumulate_grad_hook(self._stray)  # type: ignore[no-untyped-call]
            for p in self._names
            if p.requires_grad
        ]
        self._stand_ins: list[StandIn] = [*self._watches, Entrance(self._recorder, module, self._probe)]
        for stand_in in self._stand_ins:
            stand_in.attach()

    def begin_piece(self, piece: int, examples: int | None) -> None:
        """From now on forward passes are those of this piece of a batch; its ``examples`` are checked if known."""
        self._recorder.piece, self._recorder.examples = piece, examples

    def take(self) -> list[Captured]:
        """The backward passes since the last ``take``, oldest first; they are forgotten here."""
        return self._capture_all(self._take_calls(), None)

    def take_pieces(self, sizes: Mapping[int, int | None]) -> dict[int, Captured]:
        """The backward passes through forward passes of these pieces, each piece's as one; all are forgotten.

        ``sizes`` are the numbers of examples, None where unknown. Several passes of one piece are summed
        example by example, which is what one backward of the summed losses gives. Passes through other
        pieces, of batches that were given up, are dropped.
        """
        calls: dict[int, list[RecordedCall]] = {}
        for each in self._take_calls():
            pieces = {call.piece for call, _ in each}
            if len(pieces) > 1:
                raise RuntimeError(
                    "batch: one backward pass runs through forward passes of two batches (or of two pieces of "
                    "one); give each its own backward"
                )
            piece = pieces.pop()
            if piece is not None and piece in sizes:
                calls.setdefault(piece, []).extend(each)
        return {piece: self._capture_all([each], sizes[piece])[0] for piece, each in calls.items()}

    def discard(self) -> None:
        """Forget the backward passes so far."""
        self._recorder.take()
        self._unseen = None

    def _take_calls(self) -> list[list[RecordedCall]]:
        for parameter, name in self._frozen:
            if parameter.requires_grad:
                raise ValueError(
                    f"parameter {name!r}: was frozen when the capture began and is trainable now"
                )
        passes, unseen = self._recorder.take(), self._unseen
        self._unseen = None
        if unseen is not None and not passes:
            raise RuntimeError(
                f"parameter {unseen!r}: received a gradient while the model was in evaluation mode, where "
                "nothing is captured; call train() on the model before its forward"
            )
        return passes

    def _capture_all(self, passes: list[list[RecordedCall]], examples: int | None) -> list[Captured]:
        if not passes:
            return []
        with self._recorder.paused(), torch.no_grad():
            return [self._captured(calls, examples) for calls in passes]

    def detach(self) -> None:
        """Leave the module as it was before."""
        for stand_in in reversed(self._stand_ins):
            stand_in.detach()
        for handle in self._handles:
            handle.remove()

    def _classify(self) -> None:
        users: dict[nn.Parameter, list[Watch]] = defaultdict(list)
        for watch in self._watches:
            for parameter in watch.parameters.values():
                users[parameter].append(watch)
        self.tables, self.dense = {}, {}
        for parameter, name in self._names.items():
            if not parameter.requires_grad:
                continue
            if all(isinstance(watch.rule, TableRule) for watch in users[parameter]):
                table = Table(users[parameter][0].name, name, parameter, *parameter.shape)
                self.tables[table.name] = table
                for watch in users[parameter]:
                    watch.table = table.name
            else:
                self.dense[name] = parameter
        for watch in self._watches:
            watch.names = {local: self._names[parameter] for local, parameter in watch.parameters.items()}

    def _captured(self, calls: list[RecordedCall], examples: int | None) -> Captured:
        first, grad = calls[0]
        batch = examples if examples is not None else grad.shape[0] if grad.dim() else 0
        source = "the batch" if examples is not None else repr(first.watch.name)
        for call, grad in calls:
            call.check_unchanged()
            self._check_precision(call, grad)
            if grad.dim() == 0 or grad.shape[0] != batch:
                raise ValueError(
                    f"batch: dimension 0 must be the examples in every layer, but {call.watch.name!r} gives "
                    f"{list(grad.shape)} where {source} has {batch} examples. Keep (examples, positions, ...) "
                    "throughout: do not flatten positions into dimension 0, and put the examples first; use "
                    "each batch before the next one is read"
                )
        dense: dict[str, list[Summand]] = defaultdict(list)
        tables: dict[str, list[EmbeddingLookups]] = defaultdict(list)
        inputs: dict[str, list[TableInput] | None] = {}
        for call, grad in calls:
            watch = call.watch
            if watch.table is not None:
                _add_input(inputs, watch.table, call)
            for local, part in self._parts(call, grad):
                if watch.table is not None:
                    assert isinstance(part, EmbeddingLookups)
                    tables[watch.table].append(part)
                elif isinstance(part, EmbeddingLookups):
                    rows = watch.parameters[local].shape[0]
                    dense[watch.names[local]].append(ScatteredRows(part, batch, rows))
                else:
                    dense[watch.names[local]].append(part)
        return Captured(
            batch_size=batch,
            scale=_mean_scale(batch) if self._mean else 1.0,
            dense={name: total(parts) for name, parts in dense.items()},
            tables={name: EmbeddingLookups.concatenate(parts) for name, parts in tables.items()},
            table_inputs=inputs,
        )

    def _check_precision(self, call: Call, grad: Tensor) -> None:
        """A mean loss puts 1 / n into every gradient; rounded to 8 or 11 bits it moves all examples together."""
        if self._mean and grad.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"module {call.watch.name!r}: a mean loss in {grad.dtype} rounds 1 / (batch size), so that one example "
                "moves the gradients of all others; add the examples' losses up and give loss_reduction='sum'"
            )

    def _parts(self, call: Call, grad: Tensor) -> Iterator[tuple[str, Part]]:
        """Each parameter, as the layer itself names it, with its per-example gradients."""
        try:
            yield from call.watch.rule.gradients(call.watch.module, call.saved, grad, call.trainable)
        except RuleError as refusal:
            raise call.watch.refused(refusal) from refusal

    def _stray(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if not self._module.training:
            self._unseen = self._names[parameter]
            return
        parameter.grad = None
        raise RuntimeError(
            f"parameter {self._names[parameter]!r}: is used outside the forward of the module that holds it, "
            "where its per-example gradients cannot be seen; use it in that module's forward, or freeze it"
        )


def _mean_scale(batch: int) -> float:
    """What undoes a mean over the batch: the inverse of 1 / batch as float32 has it."""
    return 1.0 / float(np.float32(1.0) / np.float32(batch)) if batch else 0.0


def _add_input(inputs: dict[str, list[TableInput] | None], table: str, call: Call) -> None:
    assert isinstance(call.watch.rule, TableRule)
    found, ids = inputs.setdefault(table, []), call.watch.rule.ids(call.saved)
    if ids is None:
        inputs[table] = None
    elif found is not None:
        found.append(TableInput(ids, getattr(call.watch.module, "padding_idx", None)))
