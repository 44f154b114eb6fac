"""Strangers at the door of a rank: some say nothing, some say one byte at a time, and all come back when sent away.

`python -m lab.crowd FOLDER NUM_SILENT NUM_DRIPPING` attacks the door that was opened last under a folder in
which ranks meet. It prints a line when all strangers have connected for the first time, and one of counts when its
standard input ends.
"""

import asyncio
import contextlib
import json
import resource
import sys
from pathlib import Path

_NONCE_BYTES = 16
"""What a rendezvous puts before each value."""
_SCAN_S = 0.05
_DRIP_S = 0.2
_COMES_BACK_S = 0.2
_DOOR_CLOSED_S = 1.0
_CONNECT_S = 5.0


class Crowd:
    """All strangers, and what they have seen."""

    def __init__(self, folder: Path, num_strangers: int) -> None:
        self._folder = folder
        self._num_strangers = num_strangers
        self._port: int | None = None
        self._have_been: set[int] = set()
        self.num_connections = 0
        self.num_sent_away = 0

    async def watch(self) -> None:
        """Look for the door of the lowest rank of the group that met last."""
        seen: set[Path] = set()
        while True:
            for path in sorted(
                set(self._folder.rglob("*tcp*0/00000000")) - seen, key=lambda path: path.stat().st_mtime
            ):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self._port = int(json.loads(path.read_bytes()[_NONCE_BYTES:])["port"])
                    seen.add(path)
            await asyncio.sleep(_SCAN_S)

    async def attack(self, number: int, is_dripping: bool) -> None:
        while True:
            pause_s = _COMES_BACK_S
            try:
                await self._stand(number, is_dripping)
                self.num_sent_away += 1
            except ConnectionRefusedError:
                pause_s = _DOOR_CLOSED_S
            except (OSError, TimeoutError):
                self.num_sent_away += 1
            await asyncio.sleep(pause_s)

    async def _stand(self, number: int, is_dripping: bool) -> None:
        if self._port is None:
            raise ConnectionRefusedError("there is no door yet")
        reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self._port), _CONNECT_S)
        self.num_connections += 1
        self._have_been.add(number)
        if len(self._have_been) == self._num_strangers:
            print("here", flush=True)
            self._have_been.add(-1)
        try:
            while is_dripping and not reader.at_eof():
                writer.write(b"z")
                await asyncio.sleep(_DRIP_S)
            await reader.read(1)
        finally:
            writer.close()


async def main(folder: Path, num_silent: int, num_dripping: int) -> None:
    crowd = Crowd(folder, num_silent + num_dripping)
    tasks = [asyncio.create_task(crowd.watch())]
    tasks += [asyncio.create_task(crowd.attack(n, n >= num_silent)) for n in range(num_silent + num_dripping)]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps({"num_connections": crowd.num_connections, "num_sent_away": crowd.num_sent_away}), flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
