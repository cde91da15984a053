"""Held-out quality: against scikit-learn's own figures, and only on data that means the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score
from support.runs import config
from torch import Tensor, nn

from sparsedp.data import ClickData
from sparsedp.runs import RunFolder, evaluate, train
from sparsedp.runs.evaluation import area_under_curve, evaluate_run, mean_log_loss
from sparsedp.runs.sources import open_data, split


class FirstNumber(nn.Module):
    """The logit is a multiple of the first numeric feature."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        return self.factor * numeric[:, 0]


def test_figures_are_those_of_the_predictions() -> None:
    data = open_data("generated:500")
    found = evaluate(FirstNumber(0.3), data)
    logits = 0.3 * data.take(np.arange(500)).numeric[:, 0].astype(np.float64)
    predicted = 1 / (1 + np.exp(-logits))
    assert found.rows == 500
    assert found.auc == pytest.approx(roc_auc_score(data.label, predicted))
    assert found.log_loss == pytest.approx(log_loss(data.label, predicted), rel=1e-5)
    constant = np.full(500, data.label.mean())
    assert found.constant_log_loss == pytest.approx(log_loss(data.label, constant), rel=1e-6)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_figures_are_scikit_learns_with_and_without_ties(decimals: int) -> None:
    generator = np.random.default_rng(decimals)
    predicted = np.round(generator.random(1000), decimals)
    clicked = generator.random(1000) < predicted / 2 + 0.1
    assert area_under_curve(clicked, predicted) == pytest.approx(roc_auc_score(clicked, predicted), rel=1e-12)
    assert mean_log_loss(clicked, predicted) == pytest.approx(log_loss(clicked, predicted), rel=1e-12)


def test_a_model_that_diverged_knows_nothing() -> None:
    found = evaluate(FirstNumber(float("nan")), open_data("generated:200"))
    assert found.auc == 0.5
    assert found.log_loss == float("inf")


def test_the_mode_of_the_model_is_restored() -> None:
    model = nn.Sequential()
    model.forward = lambda numeric, ids: numeric[:, 0]  # type: ignore[method-assign, assignment]
    model.train()
    evaluate(model, open_data("generated:200"))
    assert model.training


def test_one_label_only_has_no_auc() -> None:
    data = open_data("generated:200")
    positive = data.subset(np.flatnonzero(data.label == 1))
    with pytest.raises(ValueError, match="held-out rows all have the label 1"):
        evaluate(FirstNumber(1.0), positive)


def test_a_run_is_evaluated_again_from_its_files(tmp_path: Path, other_data: Path) -> None:
    asked = config(seed=3)
    result = train(asked, tmp_path / "run")
    again = evaluate_run(tmp_path / "run")
    assert (again.auc, again.log_loss, again.rows) == (result.auc, result.log_loss, result.held_out_rows)
    assert again.rows == len(split(asked, open_data(asked.data))[1])
    assert evaluate_run(tmp_path / "run", "generated:300").rows == 300
    with pytest.raises(ValueError, match="data folder of another schema"):
        evaluate_run(tmp_path / "run", str(other_data))


def test_a_run_on_prepared_data_is_refused_generated_ones(tmp_path: Path, other_data: Path) -> None:
    asked = config(data=str(other_data), expected_batch_size=100, model_options={"hidden": [8]})
    train(asked, tmp_path / "run")
    assert evaluate_run(tmp_path / "run", str(other_data)).rows == len(ClickData.open(other_data)) == 400
    with pytest.raises(ValueError, match="another schema"):
        evaluate_run(tmp_path / "run", "generated:100")


def test_an_unfinished_run_has_no_model_yet(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").create(config())
    with pytest.raises(ValueError, match="no trained model yet"):
        evaluate_run(tmp_path / "run")
