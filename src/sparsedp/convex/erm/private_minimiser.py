"""What a private minimisation returns."""

from __future__ import annotations

from dataclasses import dataclass

from sparsedp.accounting import PrivacyStatement
from sparsedp.convex.erm.risk import EmpiricalRisk
from sparsedp.convex.neighbours import adjacency_notes
from sparsedp.core.arrays import F64
from sparsedp.randomness import NoiseSource


@dataclass(frozen=True)
class PrivateMinimiser:
    """A private minimiser with its guarantee and bounds; all of it public.

    ``sensitivity`` is that of what was perturbed (l2 for Gaussian noise, l1 for Laplace) and ``noise_scale``
    the standard deviation, or the Laplace scale, of the noise on each of its coordinates. ``lam`` is the
    regularisation. ``error_bound`` bounds the excess empirical risk where a theorem does.
    """

    x: F64
    statement: PrivacyStatement
    sensitivity: float
    noise_scale: float
    lam: float | None = None
    error_bound: float | None = None


def minimiser_statement(
    risk: EmpiricalRisk, epsilon: float, delta: float, adjacency: str, source: NoiseSource
) -> PrivacyStatement:
    """The guarantee of parameters fitted to the examples of ``risk``."""
    return PrivacyStatement(
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        unit="example",
        released=f"{risk.dimension} parameters fitted to {risk.n} examples",
        private=source.is_private,
        notes=adjacency_notes(adjacency),
    )
