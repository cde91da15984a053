"""Predictions of a loaded model: those of the trained module on the prepared rows, for any kind of frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.served import Served, raw_frame
from torch import Tensor, nn

import sparsedp
from sparsedp.runs import TrainedModel, load
from sparsedp.runs.result import NOT_PRIVATE


@pytest.fixture(scope="module")
def model(served: Served) -> TrainedModel:
    return load(served.run)


@pytest.fixture(scope="module")
def expected(served: Served, model: TrainedModel) -> Any:
    """The module on the rows as they were prepared."""
    with torch.no_grad():
        return torch.sigmoid(model.module(*served.examples.tensors()[0]).double()).numpy()


def test_predictions_are_those_of_the_prepared_rows(model: TrainedModel, expected: Any) -> None:
    found = model.predict_proba(raw_frame())
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)
    assert found.std() > 0.001


def test_every_kind_of_frame_predicts_the_same(model: TrainedModel, expected: Any) -> None:
    frame = raw_frame()
    mapping = {name: frame[name].to_list() for name in model.columns}
    arrays = {**mapping, "item": frame["item"].to_numpy(), "price": frame["price"].to_numpy()}
    lists = {**mapping, "tags": [text.split("|") for text in frame["tags"]], "more": "ignored"}
    for given in (mapping, arrays, lists, frame.to_arrow(), frame.sample(fraction=1.0, seed=1).sort("when")):
        np.testing.assert_array_equal(model.predict_proba(given), expected)


def test_a_frame_that_hands_out_arrow_data(model: TrainedModel, expected: Any) -> None:
    class Frame:
        """As pandas has it."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return raw_frame().to_arrow().__arrow_c_stream__(requested_schema)

    np.testing.assert_array_equal(model.predict_proba(Frame()), expected)


def test_rows_are_predicted_by_themselves(model: TrainedModel, expected: Any) -> None:
    frame = raw_frame()
    for at in (0, 7, 399):
        assert model.predict_proba(frame[at])[0] == pytest.approx(expected[at], abs=1e-7)
    assert model.predict_proba(frame.clear()).shape == (0,)


def test_many_rows_in_several_passes(
    model: TrainedModel, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsedp.runs.prediction.BATCH", 150)
    np.testing.assert_allclose(model.predict_proba(raw_frame()), expected, atol=1e-7)


def test_unseen_and_missing_values_have_predictions(model: TrainedModel) -> None:
    rows = {
        "user": ["new", None],
        "item": [10**9, None],
        "tags": ["t99|", None],
        "price": [float("nan"), None],
    }
    assert np.isfinite(model.predict_proba(rows)).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"user": "a"}, "user: must be a list or an array"),
        ({"user": 3}, "user: must be a list or an array"),
        ({"user": ["a"]}, "frame: columns of different lengths"),
        ({"user": ["a", object()]}, "user: "),
        ({"item": [1.0, 2.0]}, "item: values of type Float64 have no one text"),
        ({"price": ["1", "x"]}, "frame: row 1: price is 'x', which is no number"),
    ],
)
def test_wrong_columns_are_named(model: TrainedModel, changes: Any, said: str) -> None:
    rows = {"user": ["a", "b"], "item": [1, 2], "tags": ["", ""], "price": [1.0, 2.0]}
    with pytest.raises(ValueError, match=said):
        model.predict_proba({**rows, **changes})


def test_missing_columns_and_other_things_are_refused(model: TrainedModel) -> None:
    with pytest.raises(ValueError, match="frame: no column 'user', 'tags'; it has price, item"):
        model.predict_proba({"item": [1], "price": [2.0]})
    with pytest.raises(ValueError, match=r"frame must be a polars or pandas frame.* got list"):
        model.predict_proba([1, 2])


class TwoLogits(nn.Module):
    def forward(self, numeric: Tensor, ids: Tensor, *bags: Any) -> Tensor:
        return torch.zeros(len(ids), 2)


class Broken(nn.Module):
    def forward(self, numeric: Tensor, ids: Tensor, *bags: Any) -> Tensor:
        raise RuntimeError("shapes differ")


def test_a_model_that_does_not_give_one_logit_a_row(model: TrainedModel) -> None:
    for module, said in (
        (TwoLogits(), r"shape \(400, 2\) for 400 rows"),
        (Broken(), "cannot predict these rows"),
    ):
        other = TrainedModel(module, model.encoding, model.schema, None)
        with pytest.raises(ValueError, match=said):
            other.predict_proba(raw_frame())


def test_a_model_that_diverged_is_refused(model: TrainedModel) -> None:
    class Diverged(nn.Module):
        def forward(self, numeric: Tensor, ids: Tensor, *bags: Any) -> Tensor:
            return torch.full((len(ids),), float("nan"))

    with pytest.raises(ValueError, match="model: its predictions are not numbers"):
        TrainedModel(Diverged(), model.encoding, model.schema, None).predict_proba(raw_frame())


def test_what_the_model_carries(model: TrainedModel, served: Served) -> None:
    assert repr(sparsedp.load(served.run)) == repr(model)
    assert model.statement is None
    assert model.privacy == NOT_PRIVATE
    assert NOT_PRIVATE in repr(model)
    assert model.columns == ("price", "user", "item", "tags")
    assert [each.name for each in model.schema.categorical] == ["user", "item", "user*item"]
    assert not model.module.training
