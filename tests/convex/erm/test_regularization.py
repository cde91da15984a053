import math

import pytest

from sparsedp.convex import Regularity, theorem_lambda
from sparsedp.convex.erm.regularization import check_lambda

L, S, D, N, EPS, DELTA, DIM, BETA = 2.0, 9, 5.0, 10_000, 0.5, 1e-6, 1000, 0.05
SMOOTH = Regularity.sparse(L, S, smoothness=3.0)
COMMON = {"n": N, "dimension": DIM, "epsilon": EPS, "diameter": D, "beta": BETA}


def test_the_three_formulas():
    ratio = S * math.log(1 / DELTA) * math.log(DIM / BETA)
    assert theorem_lambda(SMOOTH, delta=DELTA, **COMMON) == pytest.approx(
        L / D * ratio**0.25 / math.sqrt(EPS * N)
    )
    population = math.log(N) * math.log(1 / BETA) / N + math.sqrt(ratio) / (EPS * N)
    assert theorem_lambda(SMOOTH, delta=DELTA, goal="population", **COMMON) == pytest.approx(
        L / D * math.sqrt(population)
    )
    pure = (L**2 * 3.0 * S * math.log(DIM / BETA) / (D**2 * EPS * N)) ** (1 / 3)
    assert theorem_lambda(SMOOTH, delta=0.0, **COMMON) == pytest.approx(pure)


@pytest.mark.parametrize(
    ("regularity", "changes", "message"),
    [
        (SMOOTH, {"diameter": math.inf}, "diameter must be given"),
        (SMOOTH, {"diameter": 0.0}, "diameter must be positive"),
        (Regularity.sparse(L, S), {"delta": 0.0}, "lam must be given for pure DP"),
        (SMOOTH, {"goal": "both"}, "goal must be"),
    ],
)
def test_refusals(regularity, changes, message):
    with pytest.raises(ValueError, match=message):
        theorem_lambda(regularity, **{"delta": DELTA, **COMMON, **changes})


@pytest.mark.parametrize("lam", [0, 0.0, -1.0, math.nan, math.inf])
def test_lambda_must_be_positive(lam):
    with pytest.raises(ValueError, match=r"^lam must be"):
        check_lambda(lam)
