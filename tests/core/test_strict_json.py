from __future__ import annotations

import json
import math

import numpy as np

from sparsedp.core.strict_json import json_text


def strict(text: str) -> object:
    """Parse as a strict reader does: `NaN` and `Infinity` are errors."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null() -> None:
    content = {"a": math.inf, "b": [math.nan, 1.5, (-math.inf,)], "c": {"d": np.float64("nan")}, "e": 3}
    assert strict(json_text(content)) == {"a": None, "b": [None, 1.5, [None]], "c": {"d": None}, "e": 3}


def test_everything_else_is_as_json_writes_it() -> None:
    content = {"text": "é", "none": None, "yes": True, "list": [], "number": 0.1}
    assert json_text(content, indent=2) == json.dumps(content, indent=2)
