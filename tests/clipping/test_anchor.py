from __future__ import annotations

import pytest
import torch

from sparsedp.clipping.anchor import copy_with_sentinel, on_gradient

MAKE = {
    "fresh": lambda x: x + 1,
    "view": lambda x: (x + 1).view(3, 2),
    "part": lambda x: (x + 1).chunk(2)[0],
    "given": lambda x: x,
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_gradient_is_handed_over_and_in_place_operations_may_follow(name, needs_grad, in_place):
    x = torch.randn(2, 3, requires_grad=needs_grad)
    if needs_grad and name == "given":
        x = x * 1
    received = []
    output = MAKE[name](x)
    if needs_grad and name == "part" and in_place:
        pytest.skip("torch refuses in-place changes of one of several views")
    value = output.detach().clone()
    output = on_gradient(output, received.append)
    assert torch.equal(output.detach(), value)
    (output.mul_(3.0) if in_place else output * 3.0).sum().backward()
    assert [grad.tolist() for grad in received] == [torch.full_like(value, 3.0).tolist()]


def test_a_tensor_of_the_users_is_left_alone():
    x = torch.randn(2)
    on_gradient(x, lambda grad: None).sum().backward()
    assert not x.requires_grad
    assert x.grad_fn is None


def test_a_grounded_copy_may_be_changed_in_place():
    x = torch.ones(3, requires_grad=True)
    values = x * 2
    copy_with_sentinel(values).mul_(5).sum().backward()
    assert values.tolist() == [2.0] * 3
    assert x.grad.tolist() == [10.0] * 3
