"""Each DP primitive on plain numpy arrays: the private data first, public parameters by keyword, a stream.

A mechanism's docstring states its price as an event for the accountant; where that takes arithmetic, a function
``*_event`` beside it does it, and whoever charges for the mechanism calls that function. Mechanisms that range over
very many rows take ``(ids, values, size)`` and never touch the rest. Where values and noise meet, the sum is an
integer of a public lattice whose probabilities are right to a relative 2^-40, never a float.
"""

from sparsedp.mechanisms.batch_clip import batch_clip_sensitivity
from sparsedp.mechanisms.exponential import exponential, exponential_event, exponential_top_k
from sparsedp.mechanisms.gaussian import gaussian, gaussian_event, gaussian_std
from sparsedp.mechanisms.laplace import laplace, laplace_event
from sparsedp.mechanisms.noisy_histogram import noisy_histogram
from sparsedp.mechanisms.noisy_max import report_noisy_max
from sparsedp.mechanisms.noisy_sums import NoisySums
from sparsedp.mechanisms.permute_and_flip import permute_and_flip
from sparsedp.mechanisms.projections import Ball, Box, Domain, Simplex, project_l1_ball, project_linf
from sparsedp.mechanisms.repetition import best_of_repetitions, draw_repetitions, repetition_event
from sparsedp.mechanisms.sparse_vector import numeric_sparse, sparse_vector, sparse_vector_event
from sparsedp.mechanisms.thresholded_counts import (
    draw_survivors,
    threshold_for_false_positives,
    thresholded_counts,
    thresholded_counts_event,
)
from sparsedp.mechanisms.top_k import (
    top_k_gaussian,
    top_k_gaussian_event,
    top_k_gumbel,
    top_k_laplace,
)

__all__ = [
    "Ball",
    "Box",
    "Domain",
    "NoisySums",
    "Simplex",
    "batch_clip_sensitivity",
    "best_of_repetitions",
    "draw_repetitions",
    "draw_survivors",
    "exponential",
    "exponential_event",
    "exponential_top_k",
    "gaussian",
    "gaussian_event",
    "gaussian_std",
    "laplace",
    "laplace_event",
    "noisy_histogram",
    "numeric_sparse",
    "permute_and_flip",
    "project_l1_ball",
    "project_linf",
    "repetition_event",
    "report_noisy_max",
    "sparse_vector",
    "sparse_vector_event",
    "threshold_for_false_positives",
    "thresholded_counts",
    "thresholded_counts_event",
    "top_k_gaussian",
    "top_k_gaussian_event",
    "top_k_gumbel",
    "top_k_laplace",
]
