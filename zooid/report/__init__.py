"""What people look at, made from events and records only: progress while a run goes on, tables when it is over."""

from zooid.report.tables import plan_table, profile_table, summary_table
from zooid.report.views import View, view_for

__all__ = ["View", "plan_table", "profile_table", "summary_table", "view_for"]
