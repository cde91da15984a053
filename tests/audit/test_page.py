from __future__ import annotations

from dataclasses import replace

from sparsedp.audit.case import Claim, Finding
from sparsedp.audit.cases.trainings import rare_rows
from sparsedp.audit.one_run_case import OneRunCase
from sparsedp.audit.page import page
from sparsedp.randomness import NoiseSource
from sparsedp.selection import DPSGD

STANDS = Finding(
    "laplace", "mechanism", False, Claim(1.0, 0.0, "the output"), 0.95, 1 - 1e-4, "4 x 10", 1.2, "a value"
)
CAUGHT = replace(STANDS, name="laplace, half", is_control=True, lower_bound=1.8)


def test_every_claim_stands_beside_its_bound() -> None:
    text = page([STANDS, CAUGHT], command="sparsedp audit --all", error=0.01, seed=0)
    assert "**1 of 1 claims stand; 1 of 1 known-bad forms are caught.**" in text
    assert "Made by `sparsedp audit --all`, with the seed 0." in text
    assert (
        "| laplace | 1.00 | 0 | 0.95 | 4 x 10 | 1.2 | the output; example, add-or-remove-one | a value |"
        in text
    )
    assert text.index("| laplace |") < text.index("Known-bad forms, with") < text.index("| laplace, half |")
    assert "at least 0.99" in text
    assert "UNEXPECTED" not in text


def test_what_should_not_be_is_said_at_the_top() -> None:
    text = page(
        [replace(STANDS, lower_bound=1.1), replace(CAUGHT, lower_bound=0.5)],
        command="x",
        error=0.01,
        seed=None,
    )
    assert "**0 of 1 claims stand; 0 of 1 known-bad forms are caught.**" in text
    assert text.count("- UNEXPECTED: ") == 2
    assert "**1.10, UNEXPECTED**" in text
    assert "by randomness of the operating system" in text


def test_models_have_a_second_table_by_attack() -> None:
    case = OneRunCase("a model", "one run", lambda n: rare_rows(DPSGD(), n, steps=1), 1e-6, "rows", 50)
    found = case.run(NoiseSource(0).noise, 0.99)
    text = page([found], command="x", error=0.01, seed=0)
    assert text.count("| a model |") == 2
    assert "white box: epsilon ≥ | if Gaussian DP | black box: epsilon ≥ | ideal" in text
