"""The planner: the noise, threshold and gradient size of a run, before any data is read."""

from sparsedp.planning.planner import Plan, plan

__all__ = ["Plan", "plan"]
