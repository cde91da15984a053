import sys
import types

import pytest
from torch import nn

from sparsedp.data.schema import Feature, Schema
from sparsedp.models import DLRM, PCTR, load_model

SCHEMA = Schema("label", "", ("x",), "", (Feature("a", 5, ""), Feature("b", 6, "")))


class Own(nn.Module):
    def __init__(self, schema, width=3):
        super().__init__()
        self.table = nn.Embedding(schema.vocabulary_sizes[0], width)


@pytest.fixture(autouse=True)
def user_package(monkeypatch):
    module = types.ModuleType("their_models")
    module.Own, module.number, module.not_a_model = Own, 3, lambda schema: "text"
    monkeypatch.setitem(sys.modules, "their_models", module)


def test_ours_by_name_and_anyones_by_path():
    assert isinstance(load_model("pctr", SCHEMA, hidden=(4,)), PCTR)
    assert isinstance(load_model("dlrm", SCHEMA, dim=4), DLRM)
    assert isinstance(load_model("sparsedp.models:PCTR", SCHEMA, hidden=(4,)), PCTR)
    assert load_model("their_models:Own", SCHEMA, width=7).table.weight.shape == (5, 7)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pctrr", "^model must be one of pctr, dlrm, or an import path"),
        ("their_models:", "^model must be one of"),
        ("no_such_package.x:Y", "^model no_such_package.x:Y: cannot import no_such_package.x"),
        ("their_models:Missing", "^model their_models:Missing: their_models has no Missing"),
        ("their_models:number", "cannot be called to make a model"),
        ("their_models:not_a_model", "gave a str, not a torch module"),
    ],
)
def test_errors_name_the_model_and_the_fault(name, said):
    with pytest.raises(ValueError, match=said):
        load_model(name, SCHEMA)


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match=r"^model pctr cannot be built with options \['depth'\]"):
        load_model("pctr", SCHEMA, depth=3)
