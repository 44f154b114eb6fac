"""Members as processes on this machine, which needs no set-up."""

from zooid.platforms.local.processes import LocalPlatform

__all__ = ["LocalPlatform"]
