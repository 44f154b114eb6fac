"""The platforms on which members run: one folder for each, and one Protocol for all."""

from zooid.core.runs.member_records import Exit
from zooid.platforms.platform import Launch, Platform

__all__ = ["Exit", "Launch", "Platform"]
