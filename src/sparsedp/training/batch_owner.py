"""The owner of the logical batch: what a step is made of, and that it is made of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsedp.clipping import Capture, Captured


class Piece(NamedTuple):
    """One physical piece of a logical batch, after its backward pass."""

    contents: Any
    """What the loader handed out."""
    captured: Captured | None
    """The per-example gradients; None for a piece without examples through which no pass ran."""


class BatchOwner:
    """Makes sure that a step is the examples of one logical batch, each once.

    The loader hands out a batch as pieces of known sizes; the optimiser takes back what was captured of them.
    Guarantee: what ``take`` returns belongs to the one batch in hand; each of its pieces comes back once, with
    exactly as many examples as were handed out; several backward passes through one piece are summed example
    by example before anything is clipped; passes of a batch that was given up are dropped. Anything else is
    refused.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._numbers = 0
        self._open: dict[int, tuple[int | None, Any]] = {}
        self._whole = False
        self.batch = 0
        """The number of the batch in hand; 0 before the first."""
        self.in_hand = False
        """A batch was handed out, and its step was not yet taken."""
        self.contents: Sequence[Any] = ()
        """All pieces of the batch in hand, where the loader fetches them together."""

    def begin_epoch(self) -> None:
        """A new iterator begins: a batch that is still in hand is given up."""
        self._capture.discard()
        self._give_up()

    def end_epoch(self) -> None:
        """The iterator is at its end: the last batch must have had its step."""
        self._check_stepped()
        self._give_up()

    def hand_out(
        self,
        contents: Any,
        examples: int | None,
        *,
        first: bool = True,
        last: bool = True,
        batch: Sequence[Any] = (),
    ) -> None:
        """The loader gives out a piece of ``examples`` (None: unknown); ``batch`` are all pieces, if at hand."""
        if first:
            self._check_stepped()
            self._give_up()
            self.batch += 1
            self.in_hand = True
        self._numbers += 1
        self._open[self._numbers] = (examples, contents)
        self._whole = last
        self.contents = batch
        self._capture.begin_piece(self._numbers, examples)

    def take(self) -> list[Piece]:
        """The pieces handed out since the last ``take``, with their passes, oldest first."""
        self._check_in_hand()
        sizes = {number: examples for number, (examples, _) in self._open.items()}
        captured = self._capture.take_pieces(sizes)
        for number, examples in sizes.items():
            if examples != 0 and number not in captured:
                raise RuntimeError(
                    "step() without a backward pass through the batch in hand: run the model on the batch that "
                    "private.data_loader gave last, call backward() on its loss, then step()"
                )
        pieces = [Piece(contents, captured.get(number)) for number, (_, contents) in self._open.items()]
        self._open = {}
        return pieces

    @property
    def is_whole(self) -> bool:
        """All pieces of the batch in hand were handed out."""
        return self._whole

    def finish(self) -> None:
        """The batch in hand has had its step."""
        self._give_up()

    def discard_passes(self) -> None:
        """Forget the passes through pieces that were not taken yet."""
        self._capture.discard()

    def _give_up(self) -> None:
        self.in_hand, self._whole, self._open, self.contents = False, False, {}, ()

    def _check_stepped(self) -> None:
        """Refuse a new batch while another is in hand: that one would be left out, perhaps because of its data."""
        if self.in_hand:
            self._capture.discard()
            self._give_up()
            raise RuntimeError(
                "a batch of private.data_loader had no step(): use every batch, also an empty one, and call step() "
                "before the next is read. Whether a step is taken must not depend on the data; for larger batches "
                "raise expected_batch_size and set physical_batch_size"
            )

    def _check_in_hand(self) -> None:
        if not self.in_hand:
            self._capture.discard()
            raise RuntimeError(
                "step() without a new batch of private.data_loader: each batch pays for one step only"
            )
