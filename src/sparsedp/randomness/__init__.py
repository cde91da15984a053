"""Noise sources: cryptographic, OS-seeded and therefore private by default; seeded only on request."""

from sparsedp.randomness.discrete import discrete_gaussian, discrete_laplace
from sparsedp.randomness.positions import bernoulli_positions
from sparsedp.randomness.secure_gaussian import add_gaussian, grid_of
from sparsedp.randomness.source import NoiseSource
from sparsedp.randomness.stream import Stream

__all__ = [
    "NoiseSource",
    "Stream",
    "add_gaussian",
    "bernoulli_positions",
    "discrete_gaussian",
    "discrete_laplace",
    "grid_of",
]
