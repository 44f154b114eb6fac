"""Members as processes on this machine: needs nothing."""

from zooid.platforms.local.processes import LocalPlatform

__all__ = ["LocalPlatform"]
