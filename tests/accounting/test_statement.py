import json

import pytest

from sparsedp.accounting import PrivacyStatement


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
