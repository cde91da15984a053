import json
import math

import pytest

from sparsedp.accounting import GaussianDpEvent, PrivacyStatement, epsilon_of, trade_off_curve


def statement(**changes):
    fields = {
        "epsilon": 1.0,
        "delta": 1e-7,
        "adjacency": "add-or-remove-one",
        "unit": "example",
        "released": "the final model",
    }
    return PrivacyStatement(**{**fields, **changes})


def test_says_everything_an_epsilon_needs():
    text = str(statement(notes=("valid for the final model only",)))
    for part in (
        "(1, 1e-07)-DP",
        "add-or-remove-one",
        "example",
        "the final model",
        "valid for the final model only",
    ):
        assert part in text
    assert "NOT PRIVATE" not in text


def test_a_seeded_run_says_so_first():
    assert str(statement(private=False)).startswith("NOT PRIVATE")


def test_goes_through_json():
    original = statement(notes=["a", "b"])
    assert original.notes == ("a", "b")
    assert PrivacyStatement(**json.loads(json.dumps(original.to_dict()))) == original


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 1.5}, "delta"),
        ({"adjacency": "neighbours"}, "adjacency"),
        ({"unit": ""}, "unit"),
        ({"released": ""}, "released"),
    ],
)
def test_refuses_what_cannot_be_read(changes, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        statement(**changes)


def test_says_what_the_best_attack_can_do():
    events = [(GaussianDpEvent(1.0), 1)]
    told = statement(epsilon=epsilon_of(events, 1e-7), trade_off=trade_off_curve(events), unit="user")
    text = told.attack_text()
    for part in (
        "on one user (add-or-remove-one adjacency, released: the final model)",
        "advantage at most 0.383;",  # 2 Phi(1/2) - 1
        "0.0183 at a false positive rate of 0.001",
        "0.0924 at a false positive rate of 0.01",
        "N(0, 1) from N(1, 1)",
    ):
        assert part in text
    assert statement(private=False).attack_text().startswith("NOT PRIVATE")
    assert "N(0, 1)" not in statement(epsilon=float("inf")).attack_text()


def test_without_a_curve_epsilon_and_delta_decide():
    alone = statement(epsilon=1.0, delta=0.0)
    assert alone.trade_off.advantage == pytest.approx(math.tanh(0.5))
    assert alone.trade_off(0.1) == pytest.approx(1 - 0.1 * math.e)
    assert statement(epsilon=float("inf")).trade_off.advantage == 1
    assert statement(delta=1.0).trade_off.advantage == 1


def test_epsilon_and_delta_hold_beside_the_curve():
    told = statement(epsilon=0.1, delta=0.0, trade_off=trade_off_curve([(GaussianDpEvent(1.0), 1)]))
    assert told.trade_off.advantage == pytest.approx(math.tanh(0.05))


def test_the_curve_goes_through_json():
    events = [(GaussianDpEvent(1.0), 1)]
    original = statement(epsilon=epsilon_of(events, 1e-7), trade_off=trade_off_curve(events))
    fields = json.loads(json.dumps(original.to_dict()))
    assert fields["trade_off"]["advantage"] == pytest.approx(0.382925, rel=1e-5)
    assert set(fields["trade_off"]["true_positive_rates"]) == {"0.001", "0.01"}
    again = PrivacyStatement(**fields)
    assert again == original
    assert again.trade_off.advantage == original.trade_off.advantage
    assert again.trade_off(0.1) == pytest.approx(original.trade_off(0.1), abs=0.01)


@pytest.mark.parametrize("wrong", [{}, {"profile": [[1.0]]}, {"profile": [[1.0, 2.0]]}, {"profile": 3}, 5])
def test_a_curve_that_cannot_be_read_is_refused(wrong):
    with pytest.raises(ValueError, match=r"^trade_off must have a profile"):
        statement(trade_off=wrong)


def test_the_terms_beside_an_epsilon_name_unit_and_release() -> None:
    stated = PrivacyStatement(1.0, 1e-6, "add-or-remove-one", "user", "the final model")
    assert stated.terms == "delta 1e-06, add-or-remove-one user; released: the final model"


def test_a_printed_guarantee_is_not_better_than_the_true_one():
    stated = statement(epsilon=1.00004, delta=1.001e-6)
    assert str(stated).startswith("(1.001, 1.01e-06)-DP")
    assert stated.terms.startswith("delta 1.01e-06")
