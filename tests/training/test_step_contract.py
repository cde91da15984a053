"""What a step is: one example moves its sum by at most C, whatever a training loop does, or the loop is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from support.contract import Case, cases, check
from support.loops import Net, largest_move, loss_of, make, plain, points, refused, setting
from support.neighbours import moves
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sparsedp as sdp
from sparsedp.training import Private


@settings(
    max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(cases())
def test_one_example_moves_a_step_by_at_most_c_or_the_use_is_refused(case: Case) -> None:
    check(case)


# --- one test a hole -------------------------------------------------------------------------------------


def test_the_ruler_measures() -> None:
    """Positive control. A loss that ties the examples together is not seen by anybody but the user."""

    def in_batch_negatives(private: Private) -> None:
        for (x,) in private.data_loader:
            private.optimizer.zero_grad()
            h = private.module(x)
            F.cross_entropy(5 * h @ h.T, torch.arange(len(h))).backward()
            private.optimizer.step()

    assert moves(setting(), plain, 0) == pytest.approx([0.999] * 3, abs=1e-3)
    assert largest_move(setting(), in_batch_negatives) > 1.2


def test_two_passes_and_two_towers_are_summed_before_clipping() -> None:
    def two_passes(private: Private) -> None:
        for (x,) in private.data_loader:
            loss_of(private.module(x)).backward()
            loss_of(private.module(x)).backward()
            private.optimizer.step()

    def tower_by_tower(private: Private) -> None:
        for (x,) in private.data_loader:
            loss_of(private.module[0](x)).backward()
            loss_of(private.module[1](x)).backward()
            private.optimizer.step()

    class Towers(nn.Sequential):
        pass

    assert largest_move(setting(), two_passes) == pytest.approx(0.999, abs=1e-3)
    assert largest_move(setting(lambda: Towers(Net(), Net())), tower_by_tower) == pytest.approx(
        0.999, abs=1e-3
    )


@pytest.mark.parametrize("way", ["autograd.grad", "adversarial backward"])
def test_adversarial_training(way: str) -> None:
    case = Case("linear", "dpsgd", (way,), ((0, 1, 2, 3),), 0, True, None, "mean", 1.0, 100.0, 0)
    check(case)


def test_leaving_the_loop_in_the_middle_of_a_batch() -> None:
    def leaves(private: Private) -> None:
        for (x,) in private.data_loader:
            loss_of(private.module(x)).backward()
            private.optimizer.step()
            break
        plain(private)

    given = setting(batches=[[0, 1, 2, 3], [0, 4]], options={"physical_batch_size": 2})
    assert moves(given, leaves, 0) == pytest.approx([0.999], abs=1e-3)
    [left] = given.run(leaves).sums.values()
    [alone] = setting(batches=[[0, 4]]).run(plain).sums.values()
    for name, values in left.items():
        torch.testing.assert_close(values, alone[name])


def test_two_batches_in_one_step() -> None:
    """Equal sizes: nothing but where the tensors come from tells the batches apart."""

    def both(private: Private) -> None:
        batches = iter(private.data_loader)
        for (x,), (y,) in zip(batches, batches, strict=False):
            (loss_of(private.module(x)) + loss_of(private.module(y))).backward()
            private.optimizer.step()

    for poisson in (True, False):
        assert largest_move(setting(batches=[[0, 1, 2], [3, 4, 0]], poisson=poisson), both) <= 1


def test_a_step_that_was_refused_ends_its_batch() -> None:
    """There is no second try with the same batch; the next one goes on."""
    private = make(Net(), poisson=False)
    batches = iter(private.data_loader)
    next(batches)
    with pytest.raises(RuntimeError, match="without a backward pass"):
        private.optimizer.step()
    with pytest.raises(RuntimeError, match="without a new batch"):
        private.optimizer.step()
    assert private.optimizer.steps_taken == 0
    (x,) = next(batches)
    loss_of(private.module(x)).backward()
    private.optimizer.step()
    assert private.optimizer.steps_taken == 1


def test_a_batch_changed_in_place_between_backward_and_step() -> None:
    """Loops that copy every batch into one buffer."""
    buffer = torch.zeros(4, 3)

    def reuses(private: Private) -> None:
        for (x,) in private.data_loader:
            held = buffer[: len(x)].copy_(x)
            loss_of(private.module(held)).backward()
            buffer.copy_(points()[4:])
            private.optimizer.step()

    message = refused(setting(batches=[[0, 1, 2, 3]]), reuses)
    assert "in place" in message


def test_whether_a_step_is_taken_must_not_depend_on_the_batch() -> None:
    def skips_empty(private: Private) -> None:
        for (x,) in private.data_loader:
            if len(x):
                loss_of(private.module(x)).backward()
                private.optimizer.step()

    def skips_nan(private: Private) -> None:
        for (x,) in private.data_loader:
            loss = loss_of(private.module(x))
            if loss.isfinite():
                loss.backward()
                private.optimizer.step()

    x = points()
    x[0] = float("nan")
    empty, nan = setting(batches=[[0], [1, 2], [3]]), setting(data=[x])
    for chosen, loop in ((empty, skips_empty), (nan, skips_nan)):
        assert largest_move(chosen, loop) <= 1  # fails where the two runs take other steps


def test_parameters_outside_the_module_are_refused() -> None:
    model, other = Net(), nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not of the module"):
        make(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))


@pytest.mark.parametrize("way", ["one more", "another"])
def test_parameters_that_the_optimiser_is_given_later_are_refused(way: str) -> None:
    """They would be trained on gradients without noise."""
    model, other = Net(), nn.Linear(2, 2)
    raw = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make(model, raw)
    if way == "one more":
        raw.add_param_group({"params": other.parameters()})
    else:
        raw.param_groups[0]["params"][0] = other.weight
    before = other.weight.detach().clone()
    (x,) = next(iter(private.data_loader))
    (loss_of(private.module(x)) + other(torch.ones(1, 2)).sum()).backward()
    with pytest.raises(RuntimeError, match="parameters changed after make_private"):
        private.optimizer.step()
    assert torch.equal(other.weight, before)


def test_the_optimiser_that_was_wrapped_takes_no_steps_of_its_own() -> None:
    """In evaluation mode backward leaves raw gradients on the parameters."""
    model = Net()
    raw = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make(model, raw)
    model.eval()
    (x,) = next(iter(private.data_loader))
    loss_of(model(x)).backward()
    before = model.first.weight.detach().clone()
    with pytest.raises(RuntimeError):
        raw.step()
    assert torch.equal(model.first.weight, before)


@pytest.mark.parametrize("way", ["assign", "layer", "parameter"])
def test_parameters_that_are_replaced_are_noticed(way: str) -> None:
    def replaces(private: Private) -> None:
        if way == "assign":
            private.module.load_state_dict(Net().state_dict(), assign=True)
        elif way == "layer":
            private.module.out = nn.Linear(4, 2)
        else:
            private.module.out.weight = nn.Parameter(torch.zeros(2, 4))
        plain(private)

    assert refused(setting(), replaces)


class _Auxiliary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.ones(3, 4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x @ self.weight)
        self.balance = h.square().mean(1)
        return self.out(h)


class _AuxiliaryOfChildren(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        self.balance = h.square().mean(1)
        return self.out(h)


def _with_balance(private: Private) -> None:
    for (x,) in private.data_loader:
        private.optimizer.zero_grad()
        output = private.module(x)
        (loss_of(output) + 100 * private.module.balance.mean()).backward()
        private.optimizer.step()


def test_an_auxiliary_loss_on_an_attribute_is_never_dropped() -> None:
    assert "balance" in refused(setting(_Auxiliary), _with_balance)
    small = setting(_AuxiliaryOfChildren, data=[0.1 * points()], clip=1e6)
    sums = small.run(_with_balance).sums
    for name, values in sums[2].items():  # the first batches, which are probed, as the later ones
        torch.testing.assert_close(sums[0][name], values)


def test_lbfgs_and_grad_scalers_are_refused() -> None:
    def scales(private: Private) -> None:
        scaler = torch.amp.GradScaler("cpu")
        for (x,) in private.data_loader:
            scaler.scale(loss_of(private.module(x))).backward()
            scaler.step(private.optimizer)
            scaler.update()

    assert "GradScaler" in refused(setting(), scales)
    model = Net()
    with pytest.raises(ValueError, match="LBFGS"):
        make(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(("precision", "examples"), [(torch.bfloat16, 1494), (torch.float16, 8000)])
def test_half_precision_does_not_round_by_the_size_of_the_batch(
    precision: torch.dtype, examples: int
) -> None:
    """A mean loss divides by the batch's size, and 1 / 1494 is rounded down where 1 / 1493 is rounded up."""

    def autocast(private: Private) -> None:
        for (x,) in private.data_loader:
            with torch.autocast("cpu", precision):
                output = private.module(x)
            output.float().sum(1).mean().backward()
            private.optimizer.step()

    equal = setting(
        lambda: nn.Linear(4, 1, bias=False),
        data=[torch.full((examples, 4), 0.45)],
        batches=[range(examples)],
        expected=float(examples),
    )
    assert largest_move(equal, autocast) <= 1


@pytest.mark.parametrize(
    ("dtype", "inputs", "grad", "clip"),
    [
        (torch.float64, 5e44, 1.0, 1.0),
        (torch.float64, 7e44, 1.0, 1.0),
        (torch.float64, 1e160, 1.0, 1.0),
        (torch.float32, 1e18, 1e-23, 1e-6),
        (torch.float32, 1e18, 1e-22, 1e-6),
        (torch.float32, 1.0, 1e-23, 1e-25),
        (torch.float32, 1e19, 1e-21, 1e-3),
        (torch.float32, 1e20, 1e20, 1.0),
    ],
)
def test_huge_and_tiny_gradients_are_clipped(
    dtype: torch.dtype, inputs: float, grad: float, clip: float
) -> None:
    def scaled(private: Private) -> None:
        for (x,) in private.data_loader:
            (grad * private.module(x)).sum().backward()
            private.optimizer.step()

    given = setting(
        lambda: nn.Linear(3, 1, bias=False, dtype=dtype),
        data=[torch.full((4, 3), inputs, dtype=dtype)],
        batches=[range(4)],
        clip=clip,
        options={"loss_reduction": "sum"},
    )
    assert largest_move(given, scaled) <= 1


def test_batches_of_the_users_own_are_accounted_for_zeroed_records() -> None:
    """Adding a record to a fixed order of batches would shift all that follow."""
    model, engine = Net(), sdp.PrivacyEngine()
    engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(points()), batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson=False,
    )
    assert "zero" in engine.statement(1e-5).adjacency


def test_buffers_that_a_forward_pass_fills_from_data_are_not_exported(tmp_path: Path) -> None:
    class Running(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("constant", torch.ones(4))
            self.register_buffer("running", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.running = 0.9 * self.running + 0.1 * self.first(x).detach().mean(0)
            return super().forward(x)

    model, engine = Running(), sdp.PrivacyEngine()
    private = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(points()), batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    plain(private)
    engine.export(tmp_path / "weights", delta=1e-5)
    with safe_open(tmp_path / "weights", "pt") as exported:
        assert "constant" in exported.keys()  # noqa: SIM118
        assert "running" not in exported.keys()  # noqa: SIM118
