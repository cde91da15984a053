"""Rates and lower bounds of SGO as programs."""

from sparsedp.convex.theory import hard_instances, rates

__all__ = ["hard_instances", "rates"]
