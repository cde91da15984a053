"""The planner: the noise, threshold and gradient size of a run before any data is read; the recipe of its settings."""

from sparsedp.planning.planner import Plan, PlannedTable, plan
from sparsedp.planning.recipes import Recipe, recipe
from sparsedp.planning.users import UserPlan, plan_users

__all__ = ["Plan", "PlannedTable", "Recipe", "UserPlan", "plan", "plan_users", "recipe"]
