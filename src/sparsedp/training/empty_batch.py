"""The batch without examples, with the structure of a loader's batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Fetch = Callable[[NDArray[np.int64]], Any]


def empty_batch(fetch: Fetch, examples: int) -> Any:
    """What ``fetch`` would return for no examples; raises ``ValueError`` where that is unclear.

    Poisson batches may be empty, and an empty one must hold no example at all. To see which parts of a batch
    have one entry per example, one example is fetched once and twice: tensors, arrays and lists that grow are
    emptied. Everything else must be the same for another example too, or it is refused.
    """
    first = np.zeros(1, dtype=np.int64)
    last = np.full(1, examples - 1, dtype=np.int64)
    return _empty(fetch(first), fetch(np.zeros(2, dtype=np.int64)), fetch(last), "batch")


def _empty(one: Any, two: Any, other: Any, where: str) -> Any:
    if not type(one) is type(two) is type(other) or isinstance(one, PackedSequence):
        raise _refused(one, where)
    if isinstance(one, Tensor | np.ndarray):
        return _empty_array(one, two, other, where)
    if isinstance(one, Mapping):
        items = {key: _empty(one[key], two[key], other[key], f"{where}[{key!r}]") for key in one}
        return _rebuilt(one, items, where)
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one) if field.init]
        return replace(
            one,
            **{
                name: _empty(getattr(one, name), getattr(two, name), getattr(other, name), f"{where}.{name}")
                for name in names
            },
        )
    if isinstance(one, list | tuple):
        if len(one) != len(two):
            return type(one)()  # one item per example
        triples = enumerate(zip(one, two, other, strict=True))
        entries = [_empty(*triple, f"{where}[{n}]") for n, triple in triples]
        return type(one)(*entries) if hasattr(one, "_fields") else type(one)(entries)
    constant = one is None or isinstance(one, bool | int | float | str | bytes)
    if constant and one == two == other:
        return one
    raise _refused(one, where)


def _empty_array(one: Any, two: Any, other: Any, where: str) -> Any:
    if one.ndim and (not one.shape[0] or one.shape[0] != two.shape[0]):
        return one[:0]  # without entries it holds no example: a bag may be empty
    same = torch.equal if isinstance(one, Tensor) else np.array_equal
    if same(one, two) and same(one, other):
        return one  # the same for all batches
    raise _refused(one, where)


def _rebuilt(one: Mapping[Any, Any], items: dict[Any, Any], where: str) -> Any:
    """A mapping of the same type that holds these items and nothing else."""
    if type(one) is dict:
        return items
    try:
        made = type(one)(items)  # type: ignore[call-arg]
        if list(made) == list(items):
            return made
    except TypeError:
        pass
    if isinstance(one, dict):
        return items
    raise _refused(one, where)


def _refused(value: Any, where: str) -> ValueError:
    return ValueError(
        f"data_loader: {where} is a {type(value).__name__} of which no empty batch can be made, and Poisson batches "
        "may be empty. Let collate_fn return tensors, arrays or lists with one entry an example"
    )
