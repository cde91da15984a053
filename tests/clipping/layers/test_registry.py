from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsedp.clipping import Rule, register_layer_rule
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.layers import rule_of
from sparsedp.clipping.layers.linear import LinearRule
from sparsedp.clipping.layers.registry import argument


def test_a_rule_follows_the_forward_not_the_class():
    class Same(nn.Linear):
        pass

    class Changed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert isinstance(rule_of(nn.Linear(2, 2)), LinearRule)
    assert isinstance(rule_of(Same(2, 2)), LinearRule)
    assert rule_of(Changed(2, 2)) is None
    assert rule_of(nn.PReLU()) is None


def test_a_subclass_with_a_forward_of_its_own_is_still_exact(check):
    class Changed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    check(Changed(3, 2), torch.randn(4, 3))


def test_a_rule_of_the_users_own(check):
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, input: Tensor) -> Tensor:
            return input + self.weight

    seen = []

    @register_layer_rule(Shift)
    class ShiftRule(Rule):
        def gradients(self, module, saved, grad, trainable):
            seen.append(trainable)
            yield "weight", Materialised(grad)

    check(Shift(), torch.randn(4, 3))
    assert seen == [frozenset({"weight"})]


def test_arguments_by_place_and_by_name():
    assert argument((1, 2), {}, 1, "b") == 2
    assert argument((1,), {"b": 3}, 1, "b") == 3
    assert argument((1,), {}, 1, "b") is None
