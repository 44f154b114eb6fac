"""Messages over sockets: for ranks that reach each other. A broken connection is noticed at once, by everyone."""

from zooid.comm.tcp.mesh import connect

__all__ = ["connect"]
