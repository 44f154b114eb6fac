"""A relay that passes bytes on a fixed time after they came: a server's distance, where the kernel has no netem.

`python relay.py ADDRESS HOST:PORT DELAY_S` listens on a free port of ADDRESS, prints its URL, and passes what comes in
on to HOST:PORT, and back, each way DELAY_S late. A delay line, not a slow link: it limits no bandwidth, and holds what
is under way. Uses nothing but the standard library, so that it starts at once.
"""

import asyncio
import sys
from collections import deque

_MAX_HELD_BYTES = 2**23
"""Of one connection and direction: 400 MB/s at 20 ms. A sender that is faster than its receiver waits."""
_SLACK_S = 0.0005
"""What is due so soon goes at once: fewer writes, and no delay is shorter than asked for by more."""


class Line(asyncio.Protocol):
    """One end of a connection; what arrives here leaves from the other end, later."""

    def __init__(self, delay_s: float, other: "Line | None" = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay_s = delay_s
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._due: deque[tuple[float, bytes]] = deque()
        """When to pass on what; nothing at all stands for the end of the stream."""
        self._num_held_bytes = 0
        self._is_waiting = False
        self._is_paused = False

    async def open(self, host: str, port: int) -> None:
        """Connect the other end; until then nothing is read from this one."""
        assert self._transport is not None
        self._transport.pause_reading()
        try:
            _, self._other = await self._loop.create_connection(lambda: Line(self._delay_s, self), host, port)
        except OSError:
            self._end()
            return
        if self._is_lost:
            self._other._end()
        else:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_MAX_HELD_BYTES // 2)  # the reading is resumed at a quarter of that

    def data_received(self, data: bytes) -> None:
        self._due.append((self._loop.time() + self._delay_s, data))
        self._num_held_bytes += len(data)
        if not self._is_waiting:
            self._wait()
        self._regulate()

    def eof_received(self) -> bool:
        self.data_received(b"")
        return True  # the other direction goes on

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if self._other is not None:
            self.data_received(b"")

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other._regulate()

    def _end(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _wait(self) -> None:
        self._is_waiting = bool(self._due)
        if self._is_waiting:
            self._loop.call_at(self._due[0][0], self._deliver)

    def _deliver(self) -> None:
        now_s = self._loop.time() + _SLACK_S
        parts = []
        while self._due and self._due[0][0] <= now_s:
            parts.append(self._due.popleft()[1])
        self._num_held_bytes -= sum(map(len, parts))
        self._wait()
        assert self._other is not None
        target = self._other._transport
        if target is None or self._other._is_lost:
            return
        target.writelines(part for part in parts if part)
        if not parts[-1] and self._is_lost:
            target.close()
        elif not parts[-1] and target.can_write_eof():
            target.write_eof()
        self._regulate()

    def _regulate(self) -> None:
        """Stop reading while too much is held, here or in front of a receiver that is slower."""
        if self._transport is None or self._is_lost or self._other is None or self._other._transport is None:
            return
        num_bytes = self._num_held_bytes + self._other._transport.get_write_buffer_size()
        if num_bytes > _MAX_HELD_BYTES and not self._is_paused:
            self._transport.pause_reading()
        elif num_bytes <= _MAX_HELD_BYTES and self._is_paused:
            self._transport.resume_reading()
        self._is_paused = num_bytes > _MAX_HELD_BYTES


class Entrance(Line):
    """The end that a client connected to."""

    def __init__(self, delay_s: float, host: str, port: int) -> None:
        super().__init__(delay_s)
        self._target = (host, port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = self._loop.create_task(self.open(*self._target))


async def relay(address: str, host: str, port: int, delay_s: float) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Entrance(delay_s, host, port), address, 0)
    print(f"http://{address}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    _host, _, _port = sys.argv[2].rpartition(":")
    asyncio.run(relay(sys.argv[1], _host, int(_port), float(sys.argv[3])))
