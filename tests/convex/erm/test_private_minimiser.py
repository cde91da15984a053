import numpy as np

from sparsedp.convex import FunctionRisk, Regularity
from sparsedp.convex.erm.private_minimiser import minimiser_statement
from sparsedp.randomness import NoiseSource


def test_statement_names_everything():
    risk = FunctionRisk(lambda x: (0.0, np.zeros(3)), 70, 3, Regularity.sparse(1.0, 1))
    statement = minimiser_statement(risk, 0.5, 1e-4, "add-or-remove-one", NoiseSource(seed=1))
    assert (statement.epsilon, statement.delta, statement.adjacency) == (0.5, 1e-4, "add-or-remove-one")
    assert statement.released == "3 parameters fitted to 70 examples"
    assert not statement.private
    assert minimiser_statement(risk, 0.5, 0.0, "replace-one", NoiseSource()).private
