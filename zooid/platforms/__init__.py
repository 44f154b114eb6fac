"""The platforms on which members run: one folder for each, and one Protocol for all."""

from zooid.platforms.platform import Exit, Launch, Platform, Program

__all__ = ["Exit", "Launch", "Platform", "Program"]
