"""Events that the tests of the ledger spend."""

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

ONCE = GaussianDpEvent(20.0)


STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8))
