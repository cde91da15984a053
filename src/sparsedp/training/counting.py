"""Row counts of a data set, each example's contribution clipped: the input of FEST's top-k."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsedp.clipping import Capture, Captured
from sparsedp.clipping.hooks import ForwardWrapper
from sparsedp.core.counts import SparseCounts
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace, SortedLookups, Units
from sparsedp.training.loader import FixedLoader, PoissonLoader, batch_of, each_once, examples_in
from sparsedp.training.user_sampler import UserSampler


def count_rows(
    module: nn.Module,
    capture: Capture,
    loader: Any,
    norm: float,
    space: RowSpace,
    stream: Stream | None = None,
) -> Mapping[str, SparseCounts]:
    """One pass over ``loader``: the joint histogram of rows read, each example's part clipped to ``norm``.

    With a ``stream`` the unit is the user: the loader has a ``UserSampler``, at most ``rows_per_user`` rows of a user
    are read (chosen by the stream where there are more), each embedding row counts once per user, and a user's part
    of the histogram is clipped to ``norm``.

    The model itself decides which ids go to which table, so it runs on every batch; where the counts are known
    already, give them instead of a loader. The loader must hold each example once. The result has no noise yet
    and must not be released.
    """
    _check_plain(loader)
    total = {table.name: SparseCounts.zeros(table.rows) for table in space.selectable}
    capture.watch_reads(list(total))
    was_training = module.training
    module.train()
    try:
        for batch, units in _batches(loader, stream):
            args, kwargs = inputs_of(module, batch)
            outputs = [leaf for leaf in tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]
            sum(leaf.sum() for leaf in outputs if leaf.requires_grad).backward()  # type: ignore[union-attr]
            for captured in capture.take():
                _check_examples(captured, batch)
                grouped = captured if units is None else captured.grouped(units)
                for name, counts in _clipped(grouped, norm, space).items():
                    total[name] += counts
    finally:
        module.train(was_training)
    return total


def _batches(loader: Any, stream: Stream | None) -> Iterator[tuple[Any, Units | None]]:
    """The batches of one pass with their units; None: each example is one."""
    sampler = getattr(loader, "sampler", None)
    if stream is None:
        if isinstance(sampler, UserSampler):
            raise ValueError(
                "private_top_k: a loader with a UserSampler is for unit='user'; give a plain loader"
            )
        yield from ((batch, None) for batch in each_once(loader))
        return
    if not isinstance(sampler, UserSampler):
        raise ValueError(
            "private_top_k: with unit='user' each user counts once; give a loader with the run's UserSampler"
        )
    fetch, rows = batch_of(loader), loader.batch_size or sampler.rows_per_user
    for chosen, units in sampler.in_pieces(stream.uint64, rows):
        yield fetch(chosen), units


def inputs_of(module: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of a batch for the model's forward, by position or, from a mapping, by name; labels are left out."""
    forward = module.forward
    while isinstance(forward, ForwardWrapper):
        forward = forward.original_forward
    parameters = inspect.signature(forward).parameters.values()
    if isinstance(batch, Mapping):
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = {p.name for p in parameters}
        return (), {name: value for name, value in batch.items() if takes_any or name in names}
    if not isinstance(batch, tuple | list):
        return (batch,), {}
    if len(batch) == 2 and isinstance(batch[0], tuple | list):
        return tuple(batch[0]), {}
    if len(batch) == 2 and isinstance(batch[0], Mapping):
        return (), dict(batch[0])
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in positional)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        needed = max(len(batch) - 1, 1)
    if len(batch) < needed:
        raise ValueError(
            f"private_top_k: the loader gives {len(batch)} items a batch and the model's forward takes {needed}; give "
            "a loader of (inputs ..., label), or the counts themselves"
        )
    return tuple(batch[: max(needed, 1)]), {}


def _check_plain(loader: Any) -> None:
    """Refuse a loader whose batches are drawn for training."""
    if isinstance(loader, PoissonLoader | FixedLoader):
        raise ValueError(
            "private_top_k: give the plain loader, not private.data_loader, whose batches are for training"
        )


def _check_examples(captured: Captured, batch: Any) -> None:
    examples = examples_in(batch)
    if examples is not None and captured.batch_size != examples:
        raise ValueError(
            f"private_top_k: the model has {captured.batch_size} entries along dimension 0 for a batch of {examples} "
            "examples; dimension 0 must be the examples in every layer"
        )


def _clipped(captured: Captured, norm: float, space: RowSpace) -> dict[str, SparseCounts]:
    all_examples = np.ones(captured.batch_size, dtype=np.bool_)
    counts = SortedLookups(space, captured.tables, captured.batch_size).contributions(norm, all_examples)
    return {
        table.name: counts.between(space.offsets[n], space.offsets[n + 1])
        for n, table in enumerate(space.selectable)
    }
