"""Defaults that more than one room needs, each stated here alone."""

from __future__ import annotations

DEFAULT_ALWAYS_ON_ROWS = 1000
"""Tables of at most this many rows are trained whole: selecting among so few rows saves little."""
DEFAULT_NOISE_RATIO = 5.0
"""AdaFEST: noise on the contribution map over noise on the gradient (sigma1 / sigma2)."""
DEFAULT_FALSE_POSITIVES = 50.0
"""AdaFEST: untouched rows that survive a step by chance, on average."""
DEFAULT_MEMORY_STEPS = 1000
"""AdaFEST with memory: steps whose noisy counts are added up."""
DEFAULT_MEMORY_EVERY = 2
"""AdaFEST with memory: steps between two in which a row is trained that is not far above the threshold."""
DEFAULT_UPDATE_EVERY = 128
"""FEST with rows in turns: steps between two updates of a rare row."""
DEFAULT_MU = 0.05
"""FEST: the Gaussian-DP parameter of the private top-k."""
SMALL_DATA_MU = 0.02
"""The same, for at most ``SMALL_DATA`` examples."""
SMALL_DATA = 100_000


def default_mu(examples: int) -> float:
    """The Gaussian-DP parameter of a private top-k on so many examples.

    On small data 0.05 takes more of the budget: at epsilon 1 it adds 0.1% to the noise of training on 4.5e7
    examples, 0.4% on 1e5 and 0.7% on 1e4. Only the planner follows this rule. A selection and a run's settings are
    written before their data is read and identify a run (its folder, ledger and seeded result), so their default is
    ``DEFAULT_MU`` whatever the data. A plan shows its mu, to be set there.
    """
    return SMALL_DATA_MU if examples <= SMALL_DATA else DEFAULT_MU


def default_delta(examples: int) -> float:
    """``1 / (10 n)``: at ``1 / n`` a mechanism could publish a random record."""
    return 1 / (10 * examples)
