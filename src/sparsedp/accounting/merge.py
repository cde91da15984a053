"""Merging and splitting noise multipliers: several Gaussians on the same data are one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparsedp.core.validation import check_number, check_scale


def merge_sigmas(*sigmas: float) -> float:
    """The noise multiplier `(sum sigma^-2)^-1/2` of all these Gaussian releases of the same batch together.

    Guarantee: any event of the joint release is one of `Gaussian(merge_sigmas(...))`, under the same
    adjacency, also when later releases are chosen after seeing earlier ones. Proof: the joint of N(mu_i, 1)
    coordinates with mu_i = 1/sigma_i is, by rotation, one coordinate at distance (sum mu_i^2)^1/2;
    adaptively by Gaussian DP composition (Dong, Roth and Su 2022). An infinite sigma is a
    release without information.
    """
    if not sigmas:
        raise ValueError("sigmas must not be empty")
    checked = [check_number("sigmas", sigma) for sigma in sigmas]
    if min(checked) <= 0:
        raise ValueError(f"sigmas must be positive, got {min(checked)}")
    mu = math.hypot(*(1 / sigma for sigma in checked))
    return 1 / mu if mu > 0 else math.inf


def merge_groups(groups: Iterable[tuple[float, float]]) -> float:
    """The noise multiplier of separately clipped groups: `(sum (clip_g / std_g)^2)^-1/2` over pairs (clip, std)."""
    return merge_sigmas(*(check_scale("std", std) / check_scale("clip", clip) for clip, std in groups))


def split_sigma(sigma_eff: float, noise_ratio: float) -> tuple[float, float]:
    """Split a noise multiplier over two releases: `(sigma1, sigma2)`, `sigma1 = noise_ratio * sigma2`.

    `sigma2 = sigma_eff sqrt(1 + r^-2)` and `sigma1 = r sigma2`, so that `merge_sigmas(sigma1, sigma2) =
    sigma_eff`.
    """
    sigma_eff = check_scale("sigma_eff", sigma_eff)
    noise_ratio = check_scale("noise_ratio", noise_ratio)
    sigma2 = sigma_eff * math.hypot(1, 1 / noise_ratio)
    return noise_ratio * sigma2, sigma2
