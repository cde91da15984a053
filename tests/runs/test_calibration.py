"""The output's bias and scale: one cell an example, noise of the stated size, paid before it is drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.noise_size import assert_normal_of_size
from support.runs import config
from torch import Tensor, nn

from sparsedp.accounting import GaussianDpEvent, Ledger, PoissonSampledDpEvent, epsilon_of
from sparsedp.data import ClickData
from sparsedp.data.batch import Batch
from sparsedp.randomness import NoiseSource
from sparsedp.runs import RunFolder, resume, train
from sparsedp.runs.calibration import (
    EDGES,
    calibrate_output,
    calibration_events,
    fit,
    histogram,
    weights_of,
)
from sparsedp.runs.sources import fresh_model, open_data
from sparsedp.runs.training import Progress

MU = 0.2


class Biased(nn.Module):
    """A logit from the first number, off by a scale and a shift; remembers how it was rescaled."""

    def __init__(self, spread: float = 1.0) -> None:
        super().__init__()
        self.spread = spread
        self.rescaled: tuple[float, float] | None = None

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        return self.spread * (numeric[:, 0] - 1.0)

    def rescale_output(self, scale: float, shift: float) -> None:
        self.rescaled = (scale, shift)


@pytest.mark.parametrize("spread", [1.0, 1e6, math.inf, math.nan], ids=str)
def test_an_example_is_one_cell_whatever_it_is(spread: float) -> None:
    """Removing an example moves one count by one: also one whose logit is out of range or no number."""
    data = open_data("generated:300")
    whole = histogram(Biased(spread), data)
    assert whole.sum() == 300
    for left_out in (0, 7, 299):
        others = data.subset(np.delete(np.arange(300), left_out))
        difference = whole - histogram(Biased(spread), others)
        assert np.abs(difference).sum() == 1.0


@pytest.mark.parametrize("sizes", [[5, 5, 1, 3], [9, 1, 1]], ids=["within the cap", "more rows than the cap"])
def test_a_user_moves_the_histogram_by_one_at_most(sizes: list[int]) -> None:
    """All rows of a user in one cell, the worst case; counted by rows it would move by their number."""
    user = np.repeat(np.arange(len(sizes)), sizes).astype(np.int64)
    schema = replace(open_data("generated:5").schema, multi_hot=(), user="user_hash", rows_per_user=5)
    ids = np.zeros((user.size, len(schema.categorical)), np.int32)
    numeric = np.ones((user.size, len(schema.numeric)), np.float32)
    data = ClickData(Batch(numeric, ids, np.ones(user.size, np.float32), user=user), schema)
    whole = histogram(Biased(), data, weights_of(data, "user"))
    for each in range(len(sizes)):
        others = data.subset(np.flatnonzero(user != each))
        moved = whole - histogram(Biased(), others, weights_of(others, "user"))
        assert np.linalg.norm(moved) <= 1.0 + 1e-12
        assert moved.max() == pytest.approx(sizes[each] / max(sizes[each], 5))


def test_the_fit_finds_the_scale_and_the_shift() -> None:
    centres = np.concatenate([[EDGES[0]], (EDGES[:-1] + EDGES[1:]) / 2, [EDGES[-1]]])
    total = 1e5 * np.exp(-(centres**2) / 2)
    clicked = 1 / (1 + np.exp(-(0.5 * centres - 1.2)))
    scale, shift = fit(np.array([total * (1 - clicked), total * clicked]), weight=10.0)
    assert (scale, shift) == (pytest.approx(0.5, abs=0.01), pytest.approx(-1.2, abs=0.01))


def test_with_nothing_but_noise_the_model_stays_as_it_is() -> None:
    noise = np.random.default_rng(0).normal(0, 1 / MU, (2, EDGES.size + 1))
    scale, shift = fit(noise, weight=1e6)
    assert (scale, shift) == (pytest.approx(1.0, abs=0.02), pytest.approx(0.0, abs=0.02))


def test_the_noise_is_that_of_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-squared over 400 histograms: a false alarm below 1e-9; half or twice the noise is caught."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        "sparsedp.runs.calibration.fit", lambda counts, weight: (seen.append(counts), (1.0, 0.0))[1]
    )
    data, model, stream = open_data("generated:50"), Biased(), NoiseSource(3).noise
    for _ in range(400):
        calibrate_output(model, data, MU, stream)
    noise = (np.array(seen) - histogram(model, data)).ravel()
    (event,) = calibration_events(MU)
    assert isinstance(event, GaussianDpEvent)
    assert_normal_of_size(noise, event.noise_multiplier)


def test_a_run_pays_for_it_within_its_epsilon(tmp_path: Path) -> None:
    """Charged once, on disk, and the steps left room for it."""
    asked = config("lazy", calibration_mu=MU)
    result = train(asked, tmp_path / "run")
    events = Ledger.read(RunFolder(tmp_path / "run").ledger).events()
    assert [count for event, count in events if isinstance(event, GaussianDpEvent)] == [1]
    assert sum(count for event, count in events if isinstance(event, PoissonSampledDpEvent)) == result.steps
    assert result.steps == result.planned_steps
    assert result.calibrated
    assert epsilon_of(events, asked.delta_for(result.training_rows)) <= 2.0 * (1 + 1e-6)
    plain = train(config("lazy"), tmp_path / "plain")
    assert plain.noise_multiplier is not None
    assert result.noise_multiplier is not None
    assert result.noise_multiplier > plain.noise_multiplier
    assert plain.calibrated is None


@pytest.mark.slow
def test_a_run_that_crashes_left_without_it_says_so(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    asked = config(
        "lazy", data="generated:400", calibration_mu=0.5, expected_batch_size=20, checkpoint_every=1000
    )
    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "run", stop)
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", stop)
    result = resume(tmp_path / "run")
    assert result.lost_steps == 2
    assert result.calibrated is False
    assert not [
        event
        for event, _ in Ledger.read(RunFolder(tmp_path / "run").ledger).events()
        if isinstance(event, GaussianDpEvent)
    ]


@pytest.mark.parametrize("model", ["pctr", "dlrm"])
def test_the_models_rescale_their_output(model: str) -> None:
    data = open_data("generated:40")
    made = fresh_model(config(model=model, model_options={}), data)
    features, _ = next(iter(data.batches(40))).tensors()
    before = made(*features)
    made.rescale_output(0.5, -1.0)  # type: ignore[operator]
    assert torch.allclose(made(*features), 0.5 * before - 1.0, atol=1e-5)


def test_where_it_is_refused(tmp_path: Path) -> None:
    for changes in ({"algorithm": "non-private"}, {"period": 1}):
        with pytest.raises(ValueError, match="calibration_mu: is for private runs"):
            config(**{"calibration_mu": MU, **changes})
    with pytest.raises(ValueError, match="has no rescale_output"):
        train(config(calibration_mu=MU, model="torch.nn:Identity", model_options={}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
