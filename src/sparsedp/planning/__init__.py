"""The planner: the noise, threshold and gradient size of a run, before any data is read."""

from sparsedp.planning.planner import Plan, PlannedTable, plan

__all__ = ["Plan", "PlannedTable", "plan"]
