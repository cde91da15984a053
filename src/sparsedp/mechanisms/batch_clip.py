"""WIDE's second clipping: the mean of clipped gradients is clipped once more (Algorithm 3, line 9)."""

from __future__ import annotations

from typing import Literal

from sparsedp.core.validation import check_positive

Adjacency = Literal["add-or-remove-one", "replace-one"]


def batch_clip_sensitivity(
    *, example_clip: float, batch_clip: float, batch: float, adjacency: Adjacency = "add-or-remove-one"
) -> float:
    """How far one example moves ``clip((1/batch) * sum of clip(g_i, example_clip), batch_clip)`` in l2.

    Guarantee: ``min(S1/b, 2 S2)`` add-or-remove-one, ``min(2 S1/b, 2 S2)`` replace-one, with S1 =
    ``example_clip``, S2 = ``batch_clip`` and the public constant b = ``batch``; both are reached. Noise of
    standard deviation sigma times this is the event ``Gaussian(sigma)``.
    Proof: the mean moves by at most S1/b (2 S1/b); clipping to a ball is a projection onto a convex set,
    so it never increases a distance; and two points of the ball are at most 2 S2 apart. A mean of -S2 that
    one example carries to +S2 reaches the bound. WIDE takes ``min(S1/b, S2)``, the norm, for the distance.
    """
    mean_move = check_positive("example_clip", example_clip) / check_positive("batch", batch)
    diameter = 2.0 * check_positive("batch_clip", batch_clip)
    if adjacency == "add-or-remove-one":
        return min(mean_move, diameter)
    if adjacency == "replace-one":
        return min(2.0 * mean_move, diameter)
    raise ValueError(f"adjacency must be 'add-or-remove-one' or 'replace-one', got {adjacency!r}")
