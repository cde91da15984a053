"""Noise sources: cryptographic, OS-seeded and therefore private by default; seeded only on request."""

from sparsedp.randomness.cells import RoundedGaussian, rounded_gaussian
from sparsedp.randomness.lattice import lattice_of, release_on_lattice
from sparsedp.randomness.positions import bernoulli_positions
from sparsedp.randomness.rounding import (
    geometric,
    noise_lattice,
    passing_cell,
    passing_probability,
    round_exponential,
    round_gaussian,
    round_gumbel,
    round_laplace,
    rounded_gaussian_tail,
)
from sparsedp.randomness.source import NoiseSource
from sparsedp.randomness.stream import Stream

__all__ = [
    "NoiseSource",
    "RoundedGaussian",
    "Stream",
    "bernoulli_positions",
    "geometric",
    "lattice_of",
    "noise_lattice",
    "passing_cell",
    "passing_probability",
    "release_on_lattice",
    "round_exponential",
    "round_gaussian",
    "round_gumbel",
    "round_laplace",
    "rounded_gaussian",
    "rounded_gaussian_tail",
]
