"""One owner of the logical batch: what it takes back is what it handed out, once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture
from sparsedp.training.batch_owner import BatchOwner


class Loop:
    """A linear model under a capture, and the owner of its batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.capture = Capture(self.model, loss_reduction="sum")
        self.owner = BatchOwner(self.capture)

    def hand_out(self, examples: int, first: bool = True, last: bool = True) -> Tensor:
        contents = torch.ones(examples, 2)
        self.owner.hand_out(contents, examples, first=first, last=last)
        return contents

    def passes(self, contents: Tensor) -> None:
        self.model(contents).sum().backward()

    def step(self) -> list[int]:
        sizes = [0 if each.captured is None else each.captured.batch_size for each in self.owner.take()]
        if self.owner.is_complete:
            self.owner.finish()
        return sizes


def test_a_batch_comes_back_with_its_examples() -> None:
    loop = Loop()
    for number, size in enumerate((3, 5), 1):
        loop.passes(loop.hand_out(size))
        assert (loop.owner.batch, loop.owner.has_batch, loop.owner.is_complete) == (number, True, True)
        assert loop.step() == [size]
        assert not loop.owner.has_batch
    loop.owner.end_epoch()


def test_pieces_of_a_batch_come_back_one_by_one() -> None:
    loop = Loop()
    loop.passes(loop.hand_out(3, last=False))
    assert not loop.owner.is_complete
    assert loop.step() == [3]
    loop.passes(loop.hand_out(2, first=False))
    assert loop.step() == [2]
    assert loop.owner.batch == 1


def test_two_passes_through_one_piece_are_one_gradient_an_example() -> None:
    loop = Loop()
    contents = loop.hand_out(3)
    loop.passes(contents)
    loop.passes(contents)
    (piece,) = loop.owner.take()
    assert piece.captured is not None
    assert piece.captured.batch_size == 3
    torch.testing.assert_close(
        piece.captured.dense["weight"].instantiate().reshape(3, 2), torch.full((3, 2), 2.0)
    )


def test_each_batch_pays_for_one_step() -> None:
    loop = Loop()
    contents = loop.hand_out(3)
    loop.passes(contents)
    loop.step()
    loop.passes(contents)
    with pytest.raises(RuntimeError, match="each batch allows one step only"):
        loop.step()
    loop.passes(loop.hand_out(4))
    assert loop.step() == [4]  # what was refused is forgotten


@pytest.mark.parametrize("examples", [3, None])
def test_a_step_without_a_pass_is_refused_unless_the_batch_is_empty(examples: int | None) -> None:
    loop = Loop()
    loop.owner.hand_out(torch.ones(3, 2), examples)
    with pytest.raises(RuntimeError, match="without a backward pass"):
        loop.step()
    loop = Loop()
    loop.hand_out(0)
    assert loop.step() == [0]


@pytest.mark.parametrize("end", ["next batch", "end of epoch"])
@pytest.mark.parametrize("examples", [0, 3])
def test_a_batch_that_was_run_or_is_empty_must_have_its_step(examples: int, end: str) -> None:
    loop = Loop()
    contents = loop.hand_out(examples)
    if examples:
        loop.passes(contents)
    with pytest.raises(RuntimeError, match=r"had no step\(\)"):
        loop.hand_out(3) if end == "next batch" else loop.owner.end_epoch()
    assert not loop.owner.has_batch


@pytest.mark.parametrize("examples", [0, 1, 3])
def test_no_batch_is_passed_over(examples: int) -> None:
    """Not even one that no model has seen: its size is data too."""
    loop = Loop()
    loop.hand_out(examples)
    with pytest.raises(RuntimeError, match="had no step"):
        loop.hand_out(4)
    loop.passes(loop.hand_out(4))  # the loop may go on
    assert loop.step() == [4]


def test_a_forward_of_an_earlier_batch_is_not_part_of_a_later_one() -> None:
    loop = Loop()
    stale = loop.model(loop.hand_out(3)).sum()
    loop.owner.begin_epoch()
    contents = loop.hand_out(4)
    stale.backward()
    loop.passes(contents)
    assert loop.step() == [4]


def test_one_backward_through_two_pieces_is_refused() -> None:
    loop = Loop()
    first = loop.model(loop.hand_out(3, last=False)).sum()
    second = loop.model(loop.hand_out(3, first=False)).sum()
    (first + second).backward()
    with pytest.raises(RuntimeError, match="two batches"):
        loop.step()


def test_a_new_epoch_drops_what_was_in_hand() -> None:
    loop = Loop()
    loop.passes(loop.hand_out(3))
    loop.owner.begin_epoch()
    assert not loop.owner.has_batch
    loop.passes(loop.hand_out(5))
    assert loop.step() == [5]


def test_another_number_of_examples_is_refused() -> None:
    loop = Loop()
    loop.hand_out(3)
    loop.passes(torch.ones(6, 2))
    with pytest.raises(ValueError, match="the batch has 3 examples"):
        loop.step()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("way", ["another batch", "the end"])
def test_a_batch_without_its_step_is_refused_whole_or_not(last: bool, way: str) -> None:
    loop = Loop()
    loop.passes(loop.hand_out(3, last=last))
    with pytest.raises(RuntimeError, match="had no step"):
        loop.hand_out(2) if way == "another batch" else loop.owner.end_epoch()
    assert not loop.owner.has_batch
    loop.passes(loop.hand_out(2))
    assert loop.step() == [2]


@pytest.mark.parametrize("begins", ["an epoch", "a batch after an error"])
def test_nothing_of_a_batch_that_was_given_up_is_left(begins: str) -> None:
    loop = Loop()
    loop.passes(loop.hand_out(3, last=False))
    if begins == "an epoch":
        loop.owner.begin_epoch()
    else:
        with pytest.raises(RuntimeError, match="had no step"):
            loop.hand_out(2)
    assert (loop.owner.has_batch, loop.owner.is_complete, loop.owner.contents) == (False, False, ())
    assert loop.capture.take() == []
    with pytest.raises(RuntimeError, match="each batch allows one step only"):
        loop.owner.take()


def test_each_batch_has_a_number_of_its_own() -> None:
    loop = Loop()
    for number in (1, 2, 3):
        loop.passes(loop.hand_out(2, last=False))
        loop.passes(loop.hand_out(1, first=False))
        assert loop.owner.batch == number
        assert loop.step() == [2, 1]


@pytest.mark.parametrize("examples", [0, 2])
def test_an_empty_batch_is_a_batch_like_any_other(examples: int) -> None:
    loop = Loop()
    loop.passes(loop.hand_out(3))
    with pytest.raises(RuntimeError, match="had no step"):
        loop.hand_out(examples)
    contents = loop.hand_out(examples)
    assert loop.owner.batch == 2
    assert loop.owner.has_batch
    if examples:
        loop.passes(contents)
    assert loop.step() == [examples]
    with pytest.raises(RuntimeError, match="each batch allows one step only"):
        loop.owner.take()
