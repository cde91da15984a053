"""Which backward passes are recorded, which are refused, and what is left when they are over."""

from __future__ import annotations

import pytest
import torch
from support.spies import spy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sparsedp.clipping import Capture
from sparsedp.clipping.mixing import MixingProbe


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 3, padding_idx=0), nn.Linear(3, 2)
        self.positions = nn.Embedding(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])[None]
        return self.out(self.table(ids) + self.positions(places)).sum(1)


IDS = torch.tensor([[1, 2, 2], [3, 0, 4], [5, 6, 7], [1, 1, 0]])


def start() -> tuple[Net, Capture]:
    torch.manual_seed(0)
    model = Net()
    return model, Capture(model, loss_reduction="sum")


def total(capture: Capture, piece: int, examples: int) -> dict[str, Tensor]:
    """Every example's gradient of every dense parameter, of the passes of one piece."""
    captured = capture.take_pieces({piece: examples})[piece]
    assert captured.batch_size == examples
    return {name: gradient.instantiate() for name, gradient in captured.dense.items()}


def test_a_pass_that_keeps_its_graph_is_refused() -> None:
    """Gradient penalties have per-example gradients that no hook sees."""
    model, capture = start()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        model(IDS).sum().backward(create_graph=True)
    capture.detach()


def test_passes_of_one_piece_are_added_and_those_of_others_dropped() -> None:
    model, capture = start()
    capture.begin_piece(1, 4)
    model(IDS).sum().backward()
    once = total(capture, 1, 4)
    capture.begin_piece(2, 2)
    model(IDS[:2]).sum().backward()
    capture.begin_piece(3, 4)
    model(IDS).sum().backward()
    (3 * model(IDS)).sum().backward()
    twice = total(capture, 3, 4)
    assert set(once) == set(twice) == {"out.weight", "out.bias"}
    for name, values in once.items():
        torch.testing.assert_close(twice[name], 4 * values)
    assert capture.take() == []
    capture.detach()


def test_discarded_passes_are_gone() -> None:
    model, capture = start()
    capture.begin_piece(1, 4)
    model(IDS).sum().backward()
    capture.discard()
    assert capture.take() == []
    model(IDS).sum().backward()
    expected = total(capture, 1, 4)
    model(IDS).sum().backward()
    capture.discard()
    model(IDS).sum().backward()
    for name, values in total(capture, 1, 4).items():
        torch.testing.assert_close(values, expected[name])
    model.eval()
    model(IDS).sum().backward()
    capture.discard()  # the gradient of the evaluation pass is forgotten too
    assert capture.take() == []
    capture.detach()


def test_a_gradient_in_evaluation_is_an_error_only_where_nothing_else_came() -> None:
    model, capture = start()
    model.eval()
    model(IDS).sum().backward()
    with pytest.raises(RuntimeError, match="in evaluation mode"):
        capture.take()
    assert capture.take() == []
    model.train()
    model(IDS).sum().backward()
    assert len(capture.take()) == 1
    capture.detach()


def test_a_call_leaves_nothing_behind() -> None:
    """What a model was called with says how many examples a call holds, as long as the call lasts."""
    model, capture = start()
    recorder = capture._recorder
    model(IDS)
    assert recorder.arguments is None
    with pytest.raises(ValueError, match="out of range"):
        model(torch.tensor([[9]]))
    assert recorder.arguments is None
    assert not recorder.is_paused
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert recorder.batch_size() is None
    recorder.examples = 7
    assert recorder.batch_size() == 7
    recorder.arguments = ((IDS, torch.zeros(4)), {})
    assert recorder.batch_size() == 4
    recorder.arguments = ((IDS, torch.zeros(2)), {})
    assert recorder.batch_size() == 7
    capture.detach()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_model_is_probed_outside_its_backward_pass(
    monkeypatch: pytest.MonkeyPatch, reentrant: bool
) -> None:
    probed = spy(monkeypatch, MixingProbe, "__call__")
    model = nn.Sequential(nn.Linear(3, 2))
    capture = Capture(model, loss_reduction="sum")
    checkpoint(model, torch.ones(4, 3, requires_grad=True), use_reentrant=reentrant).sum().backward()
    expected = 0 if reentrant else 1  # the first run of a re-entrant checkpoint has gradients off
    assert len(probed) == expected
    assert [each.batch_size for each in capture.take()] == [4]
    capture.detach()


def test_what_a_table_was_given_is_kept_with_its_padding() -> None:
    model, capture = start()
    model(IDS).sum().backward()
    (captured,) = capture.take()
    (words,) = captured.table_inputs["table"] or []
    assert torch.equal(words.ids, IDS)
    assert words.padding_idx == 0
    (places,) = captured.table_inputs["positions"] or []
    assert places.ids.shape == (4, 3)
    assert places.padding_idx is None
    read = captured.tables["table"]
    assert read.ids.tolist() == [1, 2, 2, 3, 4, 5, 6, 7, 1, 1]
    assert read.examples.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    capture.detach()
