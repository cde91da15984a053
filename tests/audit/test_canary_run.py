from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sparsedp.audit.canary_run import CanaryData, CanaryEngine, CanaryTraining
from sparsedp.audit.cases.trainings import rare_rows
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.selection import DPSGD, FEST, AdaFEST

DELTA = 1e-6


def stream(seed: int = 0) -> Stream:
    return NoiseSource(seed).noise


def seen_exactly(scores: np.ndarray, included: np.ndarray) -> bool:
    return bool(scores[included].min() > scores[~included].max())


@pytest.mark.parametrize("selection", [DPSGD(), DPSGD(lazy=True), AdaFEST(threshold=0.5, always_on_rows=0)])
def test_without_noise_every_attack_sees_every_coin(selection: Any) -> None:
    training = rare_rows(selection, 60, steps=2, sampling_rate=1.0, noise_multiplier=0.0)
    found = training.run(stream(), DELTA)
    assert 0 < found.included.sum() < 60
    for attack, scores in found.by_attack.items():
        if attack != "moves" or not isinstance(selection, DPSGD) or selection.lazy:
            assert seen_exactly(scores, found.included), attack
    assert not found.statement.private


def test_rate_and_divisor_do_not_depend_on_the_coins() -> None:
    training = rare_rows(DPSGD(), 40)
    configs = set()
    for coins in (np.zeros(40, bool), np.ones(40, bool)):
        engine, _ = training._make_private(training.model(), coins, 1)
        config = engine.session.step_config
        configs.add((config.expected_batch_size, config.sampling_rate, config.steps_per_epoch))
        engine.detach()
    assert configs == {(0.25 * 240, 0.25, 4)}


def test_the_claim_is_that_of_the_steps_taken() -> None:
    found = rare_rows(DPSGD(), 40, steps=3).run(stream(), DELTA)
    more = rare_rows(DPSGD(), 40, steps=6).run(stream(), DELTA)
    assert 0 < found.statement.epsilon < more.statement.epsilon
    assert found.statement.adjacency == "add-or-remove-one"


def test_other_coins_other_data() -> None:
    training = rare_rows(DPSGD(), 50, steps=1)
    first, second, again = (training.run(stream(seed), DELTA) for seed in (1, 2, 1))
    assert (first.included != second.included).any()
    assert (first.included == again.included).all()
    assert (first.by_attack["rows"] == again.by_attack["rows"]).all()


class Bent(nn.Module):
    """A model with a gradient that depends on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))).squeeze(1).square()


def test_the_gradient_score_is_the_sum_over_steps_of_released_times_own_gradient() -> None:
    canaries, released = torch.randn(6, 3), list[tuple[list[Tensor], list[Tensor]]]()

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            parameters = self.param_groups[0]["params"]
            released.append(([p.detach().clone() for p in parameters], [p.grad.clone() for p in parameters]))
            return super().step(closure)

    training = CanaryTraining(
        data=CanaryData((torch.randn(5, 3),), (canaries,)),
        model=Bent,
        losses=lambda module, batch: module(batch[0]),
        optimizer=lambda module: Spy(module.parameters(), lr=0.3),
        steps=3,
        sampling_rate=0.5,
        max_grad_norm=1.0,
        noise_multiplier=1.0,
    )
    found = training.run(stream(), DELTA).by_attack["gradient"]
    expected = np.zeros(6)
    for weights, gradients in released:
        model = Bent()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), weights, strict=True):
                parameter.copy_(value)
        for n in range(6):
            own = torch.autograd.grad(model(canaries[n : n + 1]).sum(), list(model.parameters()))
            expected[n] += sum(float((a * b).sum()) for a, b in zip(own, gradients, strict=True))
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)


def bent(**changes: Any) -> CanaryTraining:
    fields: dict[str, Any] = {
        "data": CanaryData((torch.randn(5, 3),), (torch.randn(6, 3),)),
        "model": Bent,
        "losses": lambda module, batch: module(batch[0]),
        "optimizer": lambda module: torch.optim.SGD(
            [each for each in module.parameters() if each.requires_grad], lr=0.3
        ),
        "steps": 3,
        "sampling_rate": 0.5,
        "max_grad_norm": 1.0,
        "noise_multiplier": 1.0,
    }
    return CanaryTraining(**{**fields, **changes})


def test_the_attacker_takes_the_shorter_way_to_losses_and_training_does_not() -> None:
    seen = list[int]()

    def short(module: nn.Module, batch: Any) -> Tensor:
        seen.append(len(batch[0]))
        return module(batch[0])

    torch.manual_seed(0)
    training = bent()
    plain = training.run(stream(), DELTA).by_attack
    found = replace(training, canary_losses=short).run(stream(), DELTA).by_attack
    assert seen == [6] * 8, "two for each of three steps and two in the end"
    for attack, scores in plain.items():
        assert (scores == found[attack]).all()


def test_frozen_parameters_are_no_part_of_what_is_seen() -> None:
    def half_frozen() -> Bent:
        model = Bent()
        model.first.requires_grad_(False)
        return model

    found = bent(model=half_frozen, noise_multiplier=0.0, view="final model").run(stream(), DELTA)
    assert set(found.by_attack) == {"gradient", "loss"}
    assert found.by_attack["gradient"].any()


def test_a_step_without_an_example_is_taken_without_a_pass() -> None:
    def losses(module: nn.Module, batch: Any) -> Tensor:
        assert len(batch[0])
        return module(batch[0])

    spent = [
        bent(losses=losses, sampling_rate=0.01, steps=steps).run(stream(), DELTA).statement.epsilon
        for steps in (10, 20)
    ]
    assert 0.0 < spent[0] < spent[1]


def test_rows_are_chosen_with_noise_of_the_seed() -> None:
    drawn = list[int]()

    def chosen(loader: Any, noise: Stream) -> DPSGD:
        drawn.append(int(noise.integers(1 << 40, 1)[0]))
        return DPSGD()

    for seed in (1, 2, 1):
        bent(selection=chosen).run(stream(seed), DELTA)
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_user_is_in_with_all_rows_or_out_with_all() -> None:
    data = CanaryData((torch.arange(100, 108),), (torch.arange(3).repeat_interleave(2),), rows_per_canary=2)
    assert data.count == 3
    dataset, users = data.included(np.array([True, False, True]))
    assert dataset.tensors[0].tolist() == [100, 101, 102, 103, 0, 0, 2, 2, 104, 105, 106, 107]
    assert users.tolist() == [3, 3, 4, 4, 0, 0, 2, 2, 5, 5, 6, 6]
    assert data.filler_users == 4


@pytest.mark.parametrize("sample", ["users", "rows"])
def test_users_are_the_unit_of_the_claim(sample: Any) -> None:
    ids = torch.arange(30).repeat_interleave(3)
    data = CanaryData((30 + torch.arange(12) % 10,), (ids,), rows_per_canary=3)
    training = rare_rows(
        FEST({"table": range(50)}),
        30,
        data=data,
        steps=2,
        noise_multiplier=2.0,
        unit="user",
        user_sample=sample,
    )
    found = training.run(stream(), DELTA)
    assert found.statement.unit == "user"
    quiet = replace(training, noise_multiplier=0.0, sampling_rate=1.0).run(stream(), DELTA)
    assert seen_exactly(quiet.by_attack["rows"], quiet.included)


@pytest.mark.parametrize(("batch", "poisson"), [(0.0, True), (11.0, True), (5.0, False), (None, True)])
def test_a_batch_that_the_population_does_not_allow_is_refused(batch: Any, poisson: bool) -> None:
    engine = CanaryEngine(10, seed=1)
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    with pytest.raises(ValueError, match=r"^expected_batch_size must be at most the 10"):
        engine._sampling_of(loader, batch, poisson)
    assert engine._sampling_of(loader, 5.0, True) == (5.0, 0.5, True, 2)
