"""How figures and tables call and colour the algorithms, in the order in which they name them."""

from __future__ import annotations

from sparsedp.report.run_report import NAMES

TITLES = NAMES
COLOURS = {
    "non-private": "#475569",
    "dp-sgd": "#b91c1c",
    "lazy": "#f97316",
    "fest": "#0b6e99",
    "adafest": "#15803d",
    "adafest+": "#7c3aed",
    "exponential": "#a16207",
    "sparse-vector": "#be185d",
    "random": "#64748b",
}
