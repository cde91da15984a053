"""Noise sources: cryptographic, OS-seeded and therefore private by default; seeded only on request."""

from sparsedp.randomness.discrete import discrete_gaussian, discrete_laplace
from sparsedp.randomness.lattice import (
    RoundedGaussian,
    lattice_of,
    release_on_lattice,
    rounded_gaussian,
    unit_gaussian,
)
from sparsedp.randomness.lattice_rows import rounded_gaussian_rows
from sparsedp.randomness.positions import bernoulli_positions
from sparsedp.randomness.secure_gaussian import add_gaussian, grid_of
from sparsedp.randomness.source import NoiseSource
from sparsedp.randomness.stream import Stream

__all__ = [
    "NoiseSource",
    "RoundedGaussian",
    "Stream",
    "add_gaussian",
    "bernoulli_positions",
    "discrete_gaussian",
    "discrete_laplace",
    "grid_of",
    "lattice_of",
    "release_on_lattice",
    "rounded_gaussian",
    "rounded_gaussian_rows",
    "unit_gaussian",
]
