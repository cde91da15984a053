from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from sparsedp.clipping import Capture, UnsupportedLayerError

B, T, IN, H = 4, 6, 3, 5


class Read(nn.Module):
    """A recurrent layer whose outputs and final states both count, with the batch first."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *first: Tensor) -> tuple[Tensor, ...]:
        hx = tuple(state.transpose(0, 1).contiguous() for state in first)
        outputs, last = self.layer(x, *([hx] if len(hx) > 1 else hx))
        states = last if isinstance(last, tuple) else (last,)
        return outputs, *(state.transpose(0, 1) for state in states)


LAYERS = [
    nn.LSTM(IN, H, batch_first=True),
    nn.LSTM(IN, H, num_layers=2, bidirectional=True, batch_first=True),
    nn.GRU(IN, H, batch_first=True),
    nn.GRU(IN, H, num_layers=2, bidirectional=True, batch_first=True, bias=False),
    nn.RNN(IN, H, num_layers=2, batch_first=True),
    nn.RNN(IN, H, nonlinearity="relu", batch_first=True),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers(check, layer):
    check(Read(layer), torch.randn(B, T, IN), tolerance=3e-5)


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[2]], ids=str)
def test_first_states(check, layer):
    states = 2 if isinstance(layer, nn.LSTM) else 1
    check(Read(layer), torch.randn(B, T, IN), *(torch.randn(B, 1, H) for _ in range(states)), tolerance=3e-5)


class Stepwise(nn.Module):
    """A cell called once per position, the first time without a state."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize("cell", [nn.LSTMCell(IN, H), nn.GRUCell(IN, H), nn.RNNCell(IN, H)], ids=str)
def test_cells_called_several_times(check, cell):
    check(Stepwise(cell), torch.randn(B, 4, IN), tolerance=3e-5)


def test_dropout_between_layers():
    layer = nn.LSTM(IN, 40, num_layers=2, dropout=0.5, batch_first=True)
    x = torch.randn(50, T, IN)
    capture = Capture(layer, loss_reduction="sum")
    first, second = layer(x)[0], layer(x)[0]
    assert not torch.equal(first, second)
    first.sum().backward()
    assert set(capture.take()[0].dense) == set(capture.dense)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[2], LAYERS[4]], ids=str)
def test_first_states_changed_in_place_afterwards_are_an_error(layer):
    model = nn.ModuleList([layer])
    capture = Capture(model, loss_reduction="sum")
    first = torch.zeros(layer.num_layers, B, H).add_(1.0)
    hx = (first, torch.ones_like(first)) if isinstance(layer, nn.LSTM) else first
    layer(torch.randn(B, T, IN), hx)[0].sum().backward()
    assert len(capture.take()) == 1
    out = layer(torch.randn(B, T, IN), hx)[0].sum()
    first.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        out.backward()
    capture.detach()


def test_a_layer_that_does_not_train_drops_nothing_in_a_model_that_does():
    model = nn.ModuleList([nn.LSTM(IN, 40, num_layers=2, dropout=0.5, batch_first=True)])
    Capture(model, loss_reduction="sum")
    model[0].eval()
    x = torch.randn(50, T, IN)
    assert torch.equal(model[0](x)[0], model[0](x)[0])


def test_refused():
    with pytest.raises(UnsupportedLayerError, match="batch_first=True"):
        Capture(nn.Sequential(nn.LSTM(IN, H)), loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match="proj_size"):
        Capture(nn.LSTM(IN, H, proj_size=2, batch_first=True), loss_reduction="mean")
    layer, cell = nn.GRU(IN, H, batch_first=True), nn.GRUCell(IN, H)
    model = nn.ModuleDict({"layer": layer, "cell": cell})
    Capture(model, loss_reduction="mean")
    packed = pack_padded_sequence(torch.randn(2, T, IN), torch.tensor([6, 3]), batch_first=True)
    with pytest.raises(UnsupportedLayerError, match=r"module 'layer' .*packed"):
        layer(packed)
    with pytest.raises(UnsupportedLayerError, match="module 'cell'"):
        cell(torch.randn(IN))
