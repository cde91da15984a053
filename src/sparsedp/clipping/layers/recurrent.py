"""LSTM, GRU and plain recurrent layers and cells, unrolled: torch's fused kernels expose no gate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import override

from sparsedp.clipping.errors import RuleError
from sparsedp.clipping.layers.linear import projection
from sparsedp.clipping.layers.registry import LayerCall, Parts, Rule, Trainable, argument, register_layer_rule


class Unrolled(NamedTuple):
    """One projection over all time steps, of the layer's inputs or of its hidden states (a list, one per step)."""

    inputs: Tensor | list[Tensor]
    kind: str
    """ih: from the layer's inputs; hh: from its states."""
    suffix: str
    """The layer and direction, as torch names parameters: ``_l0_reverse``; empty for a cell."""
    first: Tensor | None = None
    """The initial hidden state. It belongs to the user, who must not change it in place."""


@register_layer_rule(nn.RNN, nn.LSTM, nn.GRU)
class RecurrentRule(Rule):
    """Layers and directions one after the other, each a loop over time."""

    parameters = None

    @override
    def refusal(self, module: nn.Module) -> str | None:
        assert isinstance(module, nn.RNNBase)
        if not module.batch_first:
            return "has the batch along dimension 1; make it with batch_first=True"
        if module.proj_size:
            return "proj_size has no rule; put a Linear after the layer"
        return None

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert isinstance(module, nn.RNNBase)
        inputs = argument(args, kwargs, 0, "input")
        if isinstance(inputs, PackedSequence) or inputs.dim() != 3:
            raise RuleError(
                "input: must be a padded tensor (examples, positions, features), not a packed sequence or a "
                "single example"
            )
        return _unroll(module, layer_call, inputs, argument(args, kwargs, 1, "hx"))

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        yield from _unrolled_parts(saved, grad, trainable)


@register_layer_rule(nn.RNNCell, nn.LSTMCell, nn.GRUCell)
class RecurrentCellRule(Rule):
    """A single step."""

    parameters = None

    @override
    def forward(
        self, module: nn.Module, layer_call: LayerCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        assert isinstance(module, nn.RNNCellBase)
        inputs, hx = argument(args, kwargs, 0, "input"), argument(args, kwargs, 1, "hx")
        if inputs.dim() != 2:
            raise RuleError("input: must be (examples, features)")
        step, states = _step_of(module)
        if hx is None:
            hx = (inputs.new_zeros(inputs.shape[0], module.hidden_size),) * states
        state = hx if isinstance(hx, tuple) else (hx,)
        from_inputs = F.linear(inputs, module.weight_ih, module.bias_ih)
        from_state = F.linear(state[0], module.weight_hh, module.bias_hh)
        state = step(
            layer_call.trace(Unrolled(inputs.detach(), "ih", ""), from_inputs),
            layer_call.trace(Unrolled(state[0].detach(), "hh", ""), from_state),
            state,
        )
        return state if states > 1 else state[0]

    @override
    def gradients(self, module: nn.Module, saved: Any, grad: Tensor, trainable: Trainable) -> Parts:
        yield from _unrolled_parts(saved, grad, trainable)


State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]


def _unrolled_parts(saved: Unrolled, grad: Tensor, trainable: Trainable) -> Parts:
    inputs = saved.inputs if isinstance(saved.inputs, Tensor) else torch.stack(saved.inputs, 1)
    weight, bias = (f"{name}_{saved.kind}{saved.suffix}" for name in ("weight", "bias"))
    yield from projection(inputs, grad, trainable, weight, bias)


def _unroll(
    module: nn.RNNBase, layer_call: LayerCall, inputs: Tensor, hx: Tensor | tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor | State]:
    directions = 2 if module.bidirectional else 1
    step, states = _step_of(module)
    if hx is None:
        shape = (module.num_layers * directions, inputs.shape[0], module.hidden_size)
        hx = (inputs.new_zeros(shape),) * 2
    first = hx if isinstance(hx, tuple) else (hx,)
    finals = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            state = tuple(part[layer * directions + direction] for part in first[:states])
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            output, state = _sweep(module, layer_call, inputs, state, suffix, step)
            outputs.append(output)
            finals.append(state)
        inputs = torch.cat(outputs, -1)
        if layer + 1 < module.num_layers:
            inputs = F.dropout(inputs, module.dropout, module.training)
    last = tuple(torch.stack(part) for part in zip(*finals, strict=True))
    return inputs, last if states > 1 else last[0]


def _sweep(
    module: nn.RNNBase, layer_call: LayerCall, inputs: Tensor, state: State, suffix: str, step: Step
) -> tuple[Tensor, State]:
    """One layer in one direction, over all time steps."""
    w_ih, w_hh = getattr(module, f"weight_ih{suffix}"), getattr(module, f"weight_hh{suffix}")
    b_ih = getattr(module, f"bias_ih{suffix}") if module.bias else None
    b_hh = getattr(module, f"bias_hh{suffix}") if module.bias else None
    gates = layer_call.trace(Unrolled(inputs.detach(), "ih", suffix), F.linear(inputs, w_ih, b_ih))
    # Zeros are added to the projected states: the gradient of these zeros is that of all steps at once.
    before: list[Tensor] = [state[0]] * inputs.shape[1]
    zeros = layer_call.trace(Unrolled(before, "hh", suffix, state[0].detach()), torch.zeros_like(gates))
    steps = list(enumerate(zip(gates.unbind(1), zeros.unbind(1), strict=True)))
    outputs: list[Tensor] = [state[0]] * len(steps)
    for time, (gate, zero) in reversed(steps) if suffix.endswith("reverse") else steps:
        before[time] = state[0].detach()
        state = step(gate, F.linear(state[0], w_hh, b_hh) + zero, state)
        outputs[time] = state[0]
    return torch.stack(outputs, 1), state


def _lstm(x: Tensor, h: Tensor, state: State) -> State:
    input_gate, forget_gate, cell_gate, output_gate = (x + h).chunk(4, 1)
    cell = forget_gate.sigmoid() * state[1] + input_gate.sigmoid() * cell_gate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def _gru(x: Tensor, h: Tensor, state: State) -> State:
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = x.chunk(3, 1), h.chunk(3, 1)
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return (new + (update_x + update_h).sigmoid() * (state[0] - new),)


def _tanh(x: Tensor, h: Tensor, state: State) -> State:
    return ((x + h).tanh(),)


def _relu(x: Tensor, h: Tensor, state: State) -> State:
    return ((x + h).relu(),)


def _step_of(module: nn.RNNBase | nn.RNNCellBase) -> tuple[Step, int]:
    """One time step, and how many tensors its state holds."""
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return _lstm, 2
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru, 1
    return (_relu if module.nonlinearity == "relu" else _tanh), 1
