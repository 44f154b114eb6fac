"""What people look at, made from events and records only: progress while a run goes on, tables when it is over,
and pages to keep."""

from zooid.report.pages import profile_page, write_page
from zooid.report.tables import links_table, plan_table, profile_table, summary_table
from zooid.report.views import View, view_for

__all__ = [
    "View",
    "links_table",
    "plan_table",
    "profile_page",
    "profile_table",
    "summary_table",
    "view_for",
    "write_page",
]
