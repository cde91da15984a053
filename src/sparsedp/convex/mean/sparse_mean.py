"""The mean of sparse rows with differential privacy (SGO section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sparsedp.accounting import PrivacyStatement
from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.clip import check_bound, check_rows, clip_rows, exact_mean, row_norms, zero_broken_rows
from sparsedp.convex.mean.adaptive import denoise, denoised_error_bound
from sparsedp.convex.mean.measurement import random_measurement
from sparsedp.convex.mean.projection import (
    mean_noise,
    project,
    projection_error_bound,
)
from sparsedp.convex.mean.recovery import (
    few_enough,
    measured_mean,
    measurement_bound,
    measurement_count,
    recover,
    recovery_error_bound,
    recovery_noise,
    recovery_radius,
)
from sparsedp.convex.neighbours import check_pure_or_delta
from sparsedp.convex.noise import DEFAULT_BETA, Noise
from sparsedp.core.arrays import F64
from sparsedp.core.extras import require
from sparsedp.core.validation import check_count, check_delta, check_epsilon
from sparsedp.randomness import NoiseSource

Method = Literal["auto", "projection", "recovery", "gaussian"]


@dataclass(frozen=True)
class MeanDiagnostics:
    """What was done to the data. NOT private: for the curator's eyes, never to be released.

    ``clipped_rows`` were too long, ``dense_rows`` have more non-zeros than ``sparsity``, and ``broken_rows`` held a
    NaN or an infinity: these were taken as rows of zeros.
    """

    clipped_rows: int
    dense_rows: int
    broken_rows: int


@dataclass(frozen=True)
class SparseMean:
    """A private mean with what can be said of it.

    ``error_bound`` is the theorem's, with its constants: the l2 distance to the mean of the clipped rows
    stays below it but for probability ``beta``, if no row has more than ``sparsity`` non-zeros.
    ``method`` is the mechanism that made the estimate; for ``auto`` what became of the noisy mean: ``"zero"``,
    ``"projection"`` or ``"threshold"``. ``noise_scale`` is the standard deviation of the noise
    on each coordinate or measurement, or the scale of its Laplace law.
    """

    estimate: F64
    statement: PrivacyStatement
    error_bound: float
    beta: float
    method: str
    noise_scale: float
    diagnostics: MeanDiagnostics = field(repr=False)


@dataclass(frozen=True)
class _Problem:
    """The public side of a mean to estimate."""

    n: int
    d: int
    epsilon: float
    delta: float
    l2_bound: float
    sparsity: int
    beta: float

    @property
    def radius(self) -> float:
        """L sqrt(s): rows of norm L with s non-zeros, and so their mean, lie in this l1 ball."""
        return self.l2_bound * math.sqrt(self.sparsity)


@dataclass(frozen=True)
class _Answer:
    estimate: F64
    error_bound: float
    method: str
    noise_scale: float


def private_sparse_mean(
    Z: ArrayLike | sparse.sparray | sparse.spmatrix,
    *,
    epsilon: float,
    delta: float | None = None,
    l2_bound: float,
    sparsity: int,
    method: Method = "auto",
    beta: float = DEFAULT_BETA,
    source: NoiseSource | None = None,
) -> SparseMean:
    """The mean of the rows of ``Z``, (epsilon, delta)-DP under replace-one adjacency.

    Parameters
    ----------
    Z : n rows of dimension d, dense or sparse (CSR up to d = 1e7 and beyond). n and d are public. A row with a NaN
        or an infinity counts as zero: refusing it would reveal its presence.
    epsilon, delta : the guarantee; ``delta=0`` requests pure DP, ``None`` means 1 / (10 n).
    l2_bound : L. Rows are clipped to this norm, so nothing is assumed of the data.
    sparsity : s, the largest expected number of non-zeros in a row. It affects utility only, except with
        ``delta=0``, where rows are also clipped to l1 norm L sqrt(s); rows with more non-zeros do not break the
        guarantee, but bias the estimate towards the l1 ball of that radius.
    method : ``"projection"`` (Algorithm 1), ``"recovery"`` (Algorithm 2; needs delta > 0, and is the plain
        Gaussian mechanism where d < m ln^2 m), ``"gaussian"`` (needs delta > 0), or ``"auto"``: coordinates of the
        noisy mean far above the noise stay, the rest is projected, thresholded or dropped, by the least error as
        estimated from the noisy mean itself (``denoise``).
    beta : how often ``error_bound`` may fail.
    source : where noise comes from; a new secure source unless given.

    Guarantee: adjacency replace-one; unit: one row; event: Gaussian(sigma_AG(epsilon, delta)) or
    Laplace(1/epsilon); released: the estimate (a function of one noisy vector). Proof: ``mean_noise`` and
    ``recovery_noise`` state the sensitivity; all else is post-processing. ``auto`` never looks at ``Z``:
    its choice is made on the vector that is already private.
    """
    rows = check_rows("Z", Z)
    problem = _check_problem(rows, epsilon, delta, l2_bound, sparsity, beta)
    source = NoiseSource() if source is None else source
    if method not in _MECHANISMS:
        raise ValueError(f"method must be one of {', '.join(_MECHANISMS)}, got {method!r}")
    pure = problem.delta == 0.0
    if pure and method in ("recovery", "gaussian"):
        raise ValueError(f"method {method!r} needs delta > 0; 'projection' and 'auto' give pure DP")
    finite, broken = zero_broken_rows(rows)
    clipped = clip_rows(finite, l2=problem.l2_bound, l1=problem.radius if pure else math.inf)
    answer = _MECHANISMS[method](clipped, problem, source)
    return SparseMean(
        estimate=answer.estimate,
        statement=_statement(problem, source),
        error_bound=answer.error_bound,
        beta=problem.beta,
        method=answer.method,
        noise_scale=answer.noise_scale,
        diagnostics=_diagnostics(finite, problem, pure, int(broken.sum())),
    )


def _statement(p: _Problem, source: NoiseSource) -> PrivacyStatement:
    return PrivacyStatement(
        epsilon=p.epsilon,
        delta=p.delta,
        adjacency=REPLACE_ONE,
        unit="example (one row)",
        released=f"the mean of {p.n} rows shortened to l2 norm {p.l2_bound:g}",
        private=source.is_private,
    )


def _noisy_mean(rows: sparse.csr_array, p: _Problem, source: NoiseSource) -> tuple[Noise, F64]:
    noise = mean_noise(p.n, epsilon=p.epsilon, delta=p.delta, l2_bound=p.l2_bound, sparsity=p.sparsity)
    return noise, noise.add(exact_mean(rows, l2=p.l2_bound), source.noise)


def _gaussian(rows: sparse.csr_array, p: _Problem, source: NoiseSource) -> _Answer:
    noise, noisy = _noisy_mean(rows, p, source)
    return _Answer(noisy, noise.norm(p.d, p.beta), "gaussian", noise.scale)


def _projection(rows: sparse.csr_array, p: _Problem, source: NoiseSource) -> _Answer:
    noise, noisy = _noisy_mean(rows, p, source)
    bound = projection_error_bound(noise, p.d, p.radius, beta=p.beta)
    return _Answer(project(noisy, p.radius).point, bound, "projection", noise.scale)


def _auto(rows: sparse.csr_array, p: _Problem, source: NoiseSource) -> _Answer:
    noise, noisy = _noisy_mean(rows, p, source)
    ball = {"l2_bound": p.l2_bound, "radius": p.radius}
    answer = denoise(noisy, noise, **ball)
    bound = denoised_error_bound(answer, noise, p.d, beta=p.beta, **ball)
    return _Answer(answer.point, bound, answer.method, noise.scale)


def _recovery(rows: sparse.csr_array, p: _Problem, source: NoiseSource) -> _Answer:
    m = measurement_count(p.n, p.d, p.sparsity, p.epsilon, p.delta)
    if not few_enough(m, p.d):
        return _gaussian(rows, p, source)
    require("spgl1")  # before privacy is spent
    measurement = random_measurement(m, p.d, source.sampling)
    measured = measured_mean(rows, measurement, measurement_bound(m, p.l2_bound))
    noise = recovery_noise(p.n, m, epsilon=p.epsilon, delta=p.delta, l2_bound=p.l2_bound)
    noisy = noise.add(measured, source.noise)
    third = p.beta / 3  # noise, clipping, and the measurement matrix
    radius = recovery_radius(noise, m, p.l2_bound, beta=third)
    estimate = recover(measurement, noisy, radius=radius, l2_bound=p.l2_bound)
    bound = recovery_error_bound(radius, m, p.d, p.sparsity, p.l2_bound, beta=third)
    return _Answer(estimate, bound, "recovery", noise.std)


_MECHANISMS = {"auto": _auto, "projection": _projection, "recovery": _recovery, "gaussian": _gaussian}


def _check_problem(
    rows: sparse.csr_array,
    epsilon: float,
    delta: float | None,
    l2_bound: float,
    sparsity: int,
    beta: float,
) -> _Problem:
    n, d = rows.shape
    sparsity = check_count("sparsity", sparsity)
    if sparsity > d:
        raise ValueError(f"sparsity must be at most the dimension d = {d}, got {sparsity}")
    return _Problem(
        n=n,
        d=d,
        epsilon=check_epsilon(epsilon),
        delta=check_pure_or_delta(delta, n),
        l2_bound=check_bound("l2_bound", l2_bound),
        sparsity=sparsity,
        beta=check_delta(beta, "beta"),
    )


def _diagnostics(rows: sparse.csr_array, p: _Problem, pure: bool, broken: int) -> MeanDiagnostics:
    long = row_norms(rows, 2) > p.l2_bound
    if pure:
        long |= row_norms(rows, 1) > p.radius
    dense = np.diff(rows.indptr) > p.sparsity
    return MeanDiagnostics(int(long.sum()), int(dense.sum()), broken)
