"""What people look at, made from events and records only: progress while a run goes on, tables when it is over,
and pages to keep."""

from zooid.report.all_reduce_table import all_reduce_table
from zooid.report.frame import write_page
from zooid.report.lines import say
from zooid.report.pages import profile_page
from zooid.report.prediction_page import prediction_page
from zooid.report.prediction_tables import facts_in_words, prediction_tables
from zooid.report.search_page import search_page
from zooid.report.search_table import search_table
from zooid.report.tables import links_table, offers_table, plan_table, profile_table, summary_table
from zooid.report.timeline_page import timeline_page
from zooid.report.timeline_table import timeline_table
from zooid.report.timeline_trace import chrome_trace
from zooid.report.views import View, view_for

__all__ = [
    "View",
    "all_reduce_table",
    "chrome_trace",
    "facts_in_words",
    "links_table",
    "offers_table",
    "plan_table",
    "prediction_page",
    "prediction_tables",
    "profile_page",
    "profile_table",
    "say",
    "search_page",
    "search_table",
    "summary_table",
    "timeline_page",
    "timeline_table",
    "view_for",
    "write_page",
]
