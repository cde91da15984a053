"""The owner of the logical batch: a step consists of exactly the examples that the loader handed out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsedp.clipping import Capture, Captured
from sparsedp.rows import Units


class Piece(NamedTuple):
    """One physical piece of a logical batch, after its backward pass."""

    contents: Any
    """What the loader handed out."""
    captured: Captured | None
    """The per-example gradients; None for an empty piece without a backward pass."""
    units: Units | None = None
    """Which examples are one unit, whose gradients ``captured`` has summed; None: each is one."""


class BatchOwner:
    """Makes sure that a step is the examples of one logical batch, each once.

    The loader hands out a batch as pieces of known sizes; the optimiser takes what was captured of them.
    Guarantee: what ``take`` returns belongs to the current batch; each of its pieces is returned once, with
    exactly as many examples as were handed out; several backward passes through one piece are summed per
    example before anything is clipped, and so are the examples of one unit (user), which are all in one piece;
    passes of an abandoned batch are dropped. Anything else is refused.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._pieces_handed_out = 0
        self._open_pieces: dict[int, tuple[int | None, Any, Units | None]] = {}
        self._is_complete = False
        self.batch = 0
        """The number of the current batch; 0 before the first."""
        self.has_batch = False
        """A batch was handed out and has not had its step."""
        self.contents: Sequence[Any] = ()
        """All pieces of the current batch, where the loader fetches them together."""
        self.units: Sequence[Units] = ()
        """The units of those pieces."""

    def begin_epoch(self) -> None:
        """A new iterator begins: a batch without its step is abandoned."""
        self._capture.discard()
        self.finish()

    def end_epoch(self) -> None:
        """The iterator has ended: the last batch must have had its step."""
        self._check_stepped()
        self.finish()

    def hand_out(
        self,
        contents: Any,
        examples: int | None,
        *,
        first: bool = True,
        last: bool = True,
        batch: Sequence[Any] = (),
        units: Sequence[Units] = (),
    ) -> None:
        """The loader hands out a piece of ``examples`` (None: unknown); ``batch``: all pieces, if fetched.

        ``units``: those of this piece and of the rest of ``batch``; empty where each example is a unit.
        """
        if first:
            self._check_stepped()
            self.finish()
            self.batch += 1
            self.has_batch = True
        self._pieces_handed_out += 1
        self._open_pieces[self._pieces_handed_out] = (examples, contents, units[0] if units else None)
        self._is_complete = last
        self.contents, self.units = batch, units
        self._capture.begin_piece(self._pieces_handed_out, examples)

    def take(self) -> list[Piece]:
        """The pieces handed out since the last ``take``, with their passes, oldest first."""
        if not self.has_batch:
            self._capture.discard()
            raise RuntimeError(
                "step() without a new batch of private.data_loader: each batch allows one step only"
            )
        sizes = {number: examples for number, (examples, _, _) in self._open_pieces.items()}
        captured = self._capture.take_pieces(sizes)
        for number, examples in sizes.items():
            if examples != 0 and number not in captured:
                raise RuntimeError(
                    "step() without a backward pass through the current batch: run the model on the batch that "
                    "private.data_loader gave last, call backward() on its loss, then step()"
                )
        pieces = [
            Piece(contents, captured.get(number), units)
            for number, (_, contents, units) in self._open_pieces.items()
        ]
        pieces = [
            piece
            if piece.captured is None or piece.units is None
            else piece._replace(captured=piece.captured.grouped(piece.units))
            for piece in pieces
        ]
        self._open_pieces = {}
        return pieces

    @property
    def is_complete(self) -> bool:
        """All pieces of the current batch were handed out."""
        return self._is_complete

    def finish(self) -> None:
        """The current batch is over: it has had its step, or is abandoned."""
        self.has_batch, self._is_complete, self._open_pieces, self.contents = False, False, {}, ()
        self.units = ()

    def discard_passes(self) -> None:
        """Discard the passes through pieces that were not taken yet."""
        self._capture.discard()

    def _check_stepped(self) -> None:
        """Refuse a new batch before the last one has had its step: skipping a batch could depend on its data."""
        if self.has_batch:
            self._capture.discard()
            self.finish()
            raise RuntimeError(
                "a batch of private.data_loader had no step(): use every batch, also an empty one, and call step() "
                "before the next is read. Whether a step is taken must not depend on the data; for larger batches "
                "raise expected_batch_size and set physical_batch_size"
            )
