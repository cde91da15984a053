"""The planner: the noise, threshold and gradient size of a run, before any data is read."""

from sparsedp.planning.planner import Plan, PlannedTable, plan
from sparsedp.planning.users import UserPlan, plan_users

__all__ = ["Plan", "PlannedTable", "UserPlan", "plan", "plan_users"]
