"""Messages over TCP, for ranks that can reach each other. A broken connection is noticed at once, by all ranks."""

from zooid.comm.tcp.mesh import connect

__all__ = ["connect"]
