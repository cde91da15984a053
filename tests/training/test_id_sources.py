"""Ids are found in a batch before it is run, and compared with what is read when it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture, Captured
from sparsedp.core.tables import TableShape
from sparsedp.rows import RowSpace
from sparsedp.training.batch import LogicalBatch
from sparsedp.training.id_sources import IdSources

SPACE = RowSpace(selectable=(TableShape("words", 20, 2), TableShape("tag", 9, 3)))


class Model(nn.Module):
    """Words with padding, of which an example has several, and one tag from a column of the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 2, sparse=True, padding_idx=0)
        self.tag = nn.Embedding(9, 3, sparse=True)
        self.shift = 0

    def forward(self, ids: Tensor) -> Tensor:
        words = ids[:, 1:] if not self.shift else ids[:, 1:] + self.shift
        return self.words(words).sum((1, 2)) + self.tag(ids[:, 0]).sum(1)


def batch_of(examples: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (examples, 5), generator=generator)


def captured_of(model: Model, *batches: Tensor) -> list[Captured]:
    capture = Capture(model, loss_reduction="sum")
    for ids in batches:
        model(ids).sum().backward()
    found = capture.take()
    capture.detach()
    return found


def learnt() -> IdSources:
    ids = batch_of(4, 0)
    (captured,) = captured_of(Model(), ids)
    sources = IdSources.learn(captured, (ids, torch.zeros(4)), ["words", "tag"])
    assert isinstance(sources, IdSources)
    return sources


@pytest.mark.parametrize("norm", [10.0, 1.3])
def test_the_counts_are_those_of_the_captured_batch(norm: float) -> None:
    """Three pieces of other sizes, with repeats and padding."""
    batches = [batch_of(size, seed) for seed, size in enumerate((4, 1, 3))]
    found = learnt().batch([(ids, torch.zeros(len(ids))) for ids in batches], SPACE)
    assert found is not None
    counts = found.contributions(norm)
    expected = LogicalBatch(captured_of(Model(), *batches), SPACE).contributions(norm)
    assert counts.ids.tolist() == expected.ids.tolist()
    assert counts.values.tolist() == pytest.approx(expected.values.tolist(), rel=1e-12)
    assert 0 not in counts.ids  # padding


def test_scores_are_not_known_before_the_gradients() -> None:
    found = learnt().batch([(batch_of(4, 1), torch.zeros(4))], SPACE)
    assert found is not None
    with pytest.raises(NotImplementedError):
        found.scores()


def test_a_batch_of_another_form_is_not_guessed_at() -> None:
    wider = torch.zeros(4, 6, dtype=torch.int64)
    assert learnt().batch([(wider, torch.zeros(4))], SPACE) is None
    transposed = torch.zeros(5, 4, dtype=torch.int64).T
    assert learnt().batch([(transposed, torch.zeros(4))], SPACE) is None


def test_ids_that_the_model_makes_itself_are_not_found() -> None:
    model, ids = Model(), batch_of(4, 0)
    model.shift = 1
    (captured,) = captured_of(model, ids)
    assert IdSources.learn(captured, (ids, torch.zeros(4)), ["words", "tag"]) == "words"
    assert isinstance(IdSources.learn(captured, (ids, torch.zeros(4)), ["tag"]), IdSources)


def test_a_piece_that_reads_other_ids_than_were_counted_is_refused() -> None:
    sources, ids = learnt(), batch_of(4, 7)
    (captured,) = captured_of(Model(), ids)
    sources.check(captured, (ids, torch.zeros(4)))
    other = ids.clone()
    other[2, 3] += 1
    with pytest.raises(ValueError, match="table 'words': was given other ids"):
        sources.check(captured, (other, torch.zeros(4)))
    twice = Capture(model := Model(), loss_reduction="sum")
    (model(ids).sum() + model(ids).sum()).backward()
    (captured,) = twice.take()
    twice.detach()
    with pytest.raises(ValueError, match="another number of times"):
        sources.check(captured, (ids, torch.zeros(4)))


def test_what_was_learnt_from_one_example_holds_for_many() -> None:
    """The stride of a dimension of size one says nothing: a view of one example may have any."""
    ids = batch_of(1, 0)
    model = Model()
    capture = Capture(model, loss_reduction="sum")
    view = ids[0, 1:].unsqueeze(0)  # whose first stride is not the tensor's
    assert view.stride(0) != ids.stride(0)
    (model.words(view).sum((1, 2)) + model.tag(ids[:, 0]).sum(1)).sum().backward()
    (captured,) = capture.take()
    capture.detach()
    sources = IdSources.learn(captured, (ids, torch.zeros(1)), ["words", "tag"])
    assert isinstance(sources, IdSources)
    many = batch_of(6, 3)
    found = sources.batch([(many, torch.zeros(6))], SPACE)
    assert found is not None
    (whole,) = captured_of(Model(), many)
    expected = LogicalBatch([whole], SPACE).contributions(1.3)
    counts = found.contributions(1.3)
    assert counts.ids.tolist() == expected.ids.tolist()
    assert counts.values.tolist() == pytest.approx(expected.values.tolist())


@pytest.mark.parametrize("form", ["another width", "not contiguous"])
def test_a_batch_of_another_form_is_not_read_with_old_strides(form: str) -> None:
    other = torch.randint(0, 9, (4, 6)) if form == "another width" else torch.randint(0, 9, (5, 4)).T
    assert learnt().batch([(other, torch.zeros(4))], SPACE) is None
