"""Everything that people look at: progress of a run, tables on a terminal, and pages in files.

It is made from events and records only.
"""

from zooid.report.catalog_tables import age_warning, catalog_lines, import_in_words, price_lists_table
from zooid.report.correction_table import correction_tables
from zooid.report.frame import write_page
from zooid.report.link_tables import all_reduce_table, links_table
from zooid.report.prediction.page import prediction_page
from zooid.report.prediction.table import facts_in_words, prediction_tables
from zooid.report.profile.page import profile_page
from zooid.report.profile.table import offers_table, profile_table
from zooid.report.progress import View, view_for
from zooid.report.run_snapshot import snapshot_of
from zooid.report.run_tables import plan_table, replay_table, summary_table
from zooid.report.search.page import search_page
from zooid.report.search.table import search_table
from zooid.report.snapshot_view import say_snapshot, snapshot_view
from zooid.report.terminal_text import say
from zooid.report.timeline.page import timeline_page
from zooid.report.timeline.table import timeline_table
from zooid.report.timeline.trace_file import chrome_trace

__all__ = [
    "View",
    "age_warning",
    "all_reduce_table",
    "catalog_lines",
    "chrome_trace",
    "correction_tables",
    "facts_in_words",
    "import_in_words",
    "links_table",
    "offers_table",
    "plan_table",
    "prediction_page",
    "prediction_tables",
    "price_lists_table",
    "profile_page",
    "profile_table",
    "replay_table",
    "say",
    "say_snapshot",
    "search_page",
    "search_table",
    "snapshot_of",
    "snapshot_view",
    "summary_table",
    "timeline_page",
    "timeline_table",
    "view_for",
    "write_page",
]
