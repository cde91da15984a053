"""Tokenised texts: a data set for the Poisson loader, with dynamic padding."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import I64, U64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.durable import replace_file
from sparsedp.data.hashing import GAMMA, mix
from sparsedp.data.sentences import Sentences

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_FORMAT = 2
"""Raised whenever the cached arrays change."""
_NO_LIMIT = 10**9
"""A tokeniser without a limit has a ``model_max_length`` far above this."""


@dataclass(frozen=True, eq=False)
class TextData:
    """Token ids of texts. Batches are padded to their longest text; a pad has mask 0 and the id ``pad``.

    ``collates``: ``sparsedp``'s loaders take whole batches from it. A batch is a dict of tensors (``input_ids``,
    ``attention_mask``, for pairs ``token_type_ids``, ``labels``), as Hugging Face models take them.
    """

    tokens: NDArray[np.int32]
    """The ids of all texts, one after the other."""
    offsets: I64
    """Where each text begins, and the end."""
    types: NDArray[np.int8] | None
    """Which sentence of a pair each token belongs to."""
    labels: I64 | None
    """The number of each text's label."""
    pad: int
    vocabulary: int
    """How many ids the tokeniser has."""
    classes: tuple[str, ...] = ()
    """The names of the labels, by number: public."""
    rows: I64 | None = None
    """A subset: its examples, by their numbers in the arrays."""

    collates = True

    def __len__(self) -> int:
        return self.offsets.size - 1 if self.rows is None else self.rows.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One text, unpadded."""
        return {name: values[0] for name, values in self.__getitems__(np.array([number])).items()}

    def __getitems__(self, numbers: Sequence[int] | I64) -> dict[str, Any]:
        """A padded batch."""
        import torch

        rows = self._rows(np.asarray(numbers, dtype=np.int64))
        begin, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        positions = np.arange(lengths.max(initial=0))
        mask = positions < lengths[:, None]
        source = np.where(mask, begin[:, None] + positions, 0)
        batch = {"input_ids": np.where(mask, self.tokens[source], self.pad).astype(np.int64)}
        batch["attention_mask"] = mask.astype(np.int64)
        if self.types is not None:
            batch["token_type_ids"] = np.where(mask, self.types[source], 0).astype(np.int64)
        if self.labels is not None:
            batch["labels"] = self.labels[rows]
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _rows(self, numbers: I64) -> I64:
        return numbers if self.rows is None else self.rows[numbers]

    @property
    def lengths(self) -> I64:
        """Tokens in each text."""
        return np.diff(self.offsets)[self._rows(np.arange(len(self)))]

    @property
    def label(self) -> I64:
        """The labels of all examples; refused where there are none."""
        if self.labels is None:
            raise ValueError("labels: these texts have none")
        return self.labels[self._rows(np.arange(len(self)))]

    def loader(self, batch_size: int, *, shuffle: bool = False, **options: Any) -> DataLoader[Any]:
        """Return a torch loader over padded batches; further options are those of torch's `DataLoader`."""
        from torch.utils.data import DataLoader

        return DataLoader(self, batch_size, shuffle, collate_fn=_as_it_is, **options)  # type: ignore[arg-type]

    def batches(self, size: int) -> Iterator[dict[str, Any]]:
        """Yield all examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.__getitems__(np.arange(start, min(start + size, len(self))))

    def subset(self, numbers: I64) -> TextData:
        """These examples only, in this order."""
        return replace(self, rows=self._rows(np.asarray(numbers, dtype=np.int64)))

    def by_length(self) -> TextData:
        """The same examples, short texts first: pieces of a Poisson batch then hold texts of like length.

        Poisson sampling draws each example by itself, so that their order does not matter.
        """
        return self.subset(np.argsort(self.lengths, kind="stable"))

    def split(self, fraction: float, *, salt: int = 0) -> tuple[TextData, TextData]:
        """Return (the rest, about `fraction` of the examples), which ones by a public hash of their tokens.

        So adding or removing an example moves no other to the other side, and copies of a text stay together.
        """
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"fraction must lie between 0 and 1, got {fraction}")
        hashed = mix(self._digests() ^ mix(np.full(1, salt % 2**64, np.uint64)))
        held_out = hashed < np.uint64(int(fraction * 2**64))
        if held_out.all() or not held_out.any():
            raise ValueError(f"fraction: {fraction} of {len(self)} examples leaves none on one side")
        return self.subset(np.flatnonzero(~held_out)), self.subset(np.flatnonzero(held_out))

    def _digests(self) -> U64:
        """A number for each example, from its tokens in their order."""
        begin = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        places = (np.arange(self.tokens.size) - begin).astype(np.uint64)
        sums = np.append(np.uint64(0), np.cumsum(mix(mix(places) + GAMMA * self.tokens.astype(np.uint64))))
        rows = self._rows(np.arange(len(self)))
        return sums[self.offsets[rows + 1]] - sums[self.offsets[rows]]  # modulo 2^64

    def token_counts(self, norm: float) -> SparseCounts:
        """How many texts hold each token, each text's part clipped to the l2 norm ``norm``.

        Pads are not in the arrays, and a token counts once a text. Private: noise comes after.
        """
        rows = self._rows(np.arange(len(self)))
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        text_of = np.repeat(np.arange(rows.size), lengths)
        starts = np.repeat(self.offsets[rows] - np.append(0, np.cumsum(lengths)[:-1]), lengths)
        ids = self.tokens[starts + np.arange(text_of.size)].astype(np.int64)
        keys = np.unique(text_of * np.int64(self.vocabulary) + ids)
        text_of, ids = keys // self.vocabulary, keys % self.vocabulary
        distinct = np.bincount(text_of, minlength=rows.size)
        shares = np.minimum(1.0, norm / np.sqrt(np.maximum(distinct, 1)))[text_of]
        present, inverse = np.unique(ids, return_inverse=True)
        return SparseCounts(present, np.bincount(inverse, shares).astype(np.float64), self.vocabulary)


def tokenize(
    sentences: Sentences,
    tokenizer: Any,
    *,
    classes: Sequence[str] = ("0", "1"),
    most_tokens: int | None = None,
    max_length: int | None = None,
    cache: Path | None = None,
) -> TextData:
    """Tokenise texts once with a Hugging Face tokeniser.

    ``classes`` are the public names of the labels, in the order of their numbers. A text of more than
    ``most_tokens`` tokens (what the model takes; default: what the tokeniser says) is refused; with ``max_length``
    longer texts are truncated to that many. ``cache`` is a folder for the tokenised texts, which are as private
    as the texts: only the owner may read them. It is for fast tokenisers, whose whole state is known; a folder that
    cannot be written is left alone.
    """
    if tokenizer.pad_token_id is None:
        raise ValueError(
            "tokenizer: has no pad token, so that texts cannot share a batch; set tokenizer.pad_token"
        )
    limit = min(most_tokens or _NO_LIMIT, tokenizer.model_max_length)
    if max_length is not None and not 2 < max_length <= limit:
        raise ValueError(
            f"max_length: must lie between 3 and {limit}, which the model takes; got {max_length}"
        )
    labels = None if sentences.labels is None else _label_numbers(sentences.labels, classes)
    if cache is None:
        arrays = _arrays(sentences, tokenizer, max_length)
    else:
        arrays = _cached(sentences, tokenizer, max_length, cache)
    lengths = np.diff(arrays["offsets"])
    if not lengths.all():
        raise ValueError(
            f"text number {int(np.argmin(lengths))} has no tokens; leave it out, or let the tokeniser add special ones"
        )
    longest = int(np.argmax(lengths))
    length = int(lengths[longest])
    if length > limit:
        raise ValueError(
            f"text number {longest} has {length} tokens, and the model takes {limit}; give max_length to truncate"
        )
    return TextData(
        tokens=arrays["tokens"],
        offsets=arrays["offsets"],
        types=arrays.get("types"),
        labels=labels,
        pad=tokenizer.pad_token_id,
        vocabulary=len(tokenizer),
        classes=tuple(classes) if labels is not None else (),
    )


def _label_numbers(labels: Sequence[str], classes: Sequence[str]) -> I64:
    numbers = {name: number for number, name in enumerate(classes)}
    if len(numbers) < 2 or len(numbers) != len(classes):
        raise ValueError(f"classes: must be two or more different labels, got {list(classes)}")
    unknown = next((n for n, label in enumerate(labels) if label not in numbers), None)
    if unknown is not None:
        raise ValueError(
            f"label {labels[unknown]!r} of text number {unknown} is not one of {', '.join(map(repr, classes))}; give "
            "all labels as classes (they are public)"
        )
    return np.array([numbers[label] for label in labels], dtype=np.int64)


def _arrays(sentences: Sentences, tokenizer: Any, max_length: int | None) -> dict[str, NDArray[Any]]:
    pairs = None if sentences.pairs is None else list(sentences.pairs)
    encoded = tokenizer(
        list(sentences.texts),
        pairs,
        padding=False,
        truncation=max_length is not None,
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=pairs is not None and "token_type_ids" in tokenizer.model_input_names,
        verbose=False,
    )
    ids = encoded["input_ids"]
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([np.asarray(each, dtype=np.int32) for each in ids]),
        "offsets": np.append(0, np.cumsum([len(each) for each in ids])).astype(np.int64),
    }
    if "token_type_ids" in encoded:
        arrays["types"] = np.concatenate([np.asarray(e, dtype=np.int8) for e in encoded["token_type_ids"]])
    return arrays


def _cached(
    sentences: Sentences, tokenizer: Any, max_length: int | None, cache: Path
) -> dict[str, NDArray[Any]]:
    """The arrays from the cache, or computed and stored. A file that cannot be read is replaced."""
    key = _key(sentences, tokenizer, max_length)
    if key is None:
        return _arrays(sentences, tokenizer, max_length)
    path = cache / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        if arrays["offsets"].size == len(sentences) + 1 and arrays["offsets"][-1] == arrays["tokens"].size:
            return arrays
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    arrays = _arrays(sentences, tokenizer, max_length)

    def write(partial: Path) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        partial.touch(mode=0o600)
        os.chmod(partial, 0o600)
        partial.write_bytes(buffer.getvalue())

    with contextlib.suppress(OSError):  # only a shortcut
        cache.mkdir(parents=True, exist_ok=True)
        replace_file(path, write, shared_cache=True)
    return arrays


def _key(sentences: Sentences, tokenizer: Any, max_length: int | None) -> str | None:
    """A digest of everything that the arrays depend on; None where the tokeniser does not show it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    parts = json.loads(backend.to_str())
    settings = {
        "format": _FORMAT,
        "tokenizers": importlib.metadata.version("tokenizers"),
        "class": type(tokenizer).__name__,
        "max_length": max_length,
        # What a call sets in the backend comes from here; what the last call has set does not matter.
        "truncation_side": tokenizer.truncation_side,
        "inputs": list(tokenizer.model_input_names),
        "split_special_tokens": getattr(tokenizer, "split_special_tokens", False),
        "backend": {name: part for name, part in parts.items() if name not in ("truncation", "padding")},
    }
    digest = hashlib.sha256()
    for part in (json.dumps(settings), *sentences.texts, *(sentences.pairs or ("\x00no pairs",))):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _as_it_is(batch: Any) -> Any:
    return batch
