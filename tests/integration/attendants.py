"""The programs that attend members on this machine, as the kernel sees them."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOK_S = 0.01
_START_FIELD = 19
"""The field of /proc/PID/stat, counted after the name, with the start of the process in ticks since the boot."""


@contextmanager
def attended_s() -> Iterator[dict[str, float]]:
    """Note for how many seconds each member was attended, by its name, while the block runs.

    Another process looks, because this one may be busy for a second.
    """
    lived_s: dict[str, float] = {}
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as look:
        try:
            yield lived_s
        finally:
            said, _ = look.communicate()
            lived_s.update(json.loads(said))


def main() -> None:
    lived_s: dict[str, float] = {}
    ended = threading.Event()
    watching = threading.Thread(target=_watch, args=(lived_s, ended))
    watching.start()
    sys.stdin.read()
    ended.set()
    watching.join()
    print(json.dumps(lived_s))


def _watch(lived_s: dict[str, float], has_ended: threading.Event) -> None:
    living: dict[int, tuple[str, float, int]] = {}
    """Member, start since the boot, and descriptor of each process."""
    while not has_ended.wait(_LOOK_S) or living:
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in living:
                with suppress(OSError):
                    _take(int(name), living)
        for pid, (member, began_s, descriptor) in list(living.items()):
            if select.select([descriptor], [], [], 0)[0]:
                lived_s[member] = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
                os.close(descriptor)
                del living[pid]


def _take(pid: int, living: dict[int, tuple[str, float, int]]) -> None:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    if "zooid.entry" not in words:
        return
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        return
    title = words[words.index("zooid.entry") + 1]
    member = title.partition(".")[2]
    living[pid] = (member, int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK"), os.pidfd_open(pid))


if __name__ == "__main__":
    main()
