from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.common.study import Study
from experiments.wide.brown_examples import BrownExamples, load
from experiments.wide.settings import DP_SGD, NON_PRIVATE
from experiments.wide.word_vectors import CONSTANT_LOSS, Setting, train


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> BrownExamples:
    return load(Study("a", tmp_path_factory.mktemp("study"), quick=True), 100)


def small(setting: Setting, **options: float) -> Setting:
    return replace(setting, batch=64, epochs=2, dim=8, **options)  # type: ignore[arg-type]


def test_without_privacy_words_of_a_group_are_learned(examples: BrownExamples) -> None:
    found = train(examples, small(NON_PRIVATE, learning_rate=0.02), None, seed=0, quick=True)
    assert (found.epsilon, found.noise_multiplier) == (None, None)
    assert [epoch.number for epoch in found.curve] == [1, 2]
    assert found.curve[-1].test < CONSTANT_LOSS < found.curve[0].test + 1


@pytest.mark.parametrize("epsilon", [0.5, 30.0])
def test_a_private_run_spends_what_it_was_given(examples: BrownExamples, epsilon: float) -> None:
    found = train(examples, small(DP_SGD), epsilon, seed=0, quick=True)
    assert found.epsilon == pytest.approx(epsilon, rel=0.02)
    assert found.epsilon <= epsilon
    assert found.gradient_size == 8 * 201
    assert found.noise_multiplier is not None


def test_runs_are_repeatable(examples: BrownExamples) -> None:
    first, again = (train(examples, small(DP_SGD), 5.0, seed=3, quick=True) for _ in range(2))
    assert first.curve == again.curve


def test_the_constant_loss_is_the_least_of_a_constant_score() -> None:
    scores = np.linspace(-6, 6, 20_001)
    losses = np.logaddexp(0, -scores) + 8 * np.logaddexp(0, scores)
    assert losses.min() == pytest.approx(CONSTANT_LOSS, abs=1e-6)
