"""What a process needs leaves out pages of files that it does not use."""

import subprocess
import sys
from pathlib import Path

import pytest

from zooid.core.resources.process_memory import peak_needed_bytes, peak_resident_bytes

STATUS = "VmHWM:\t  900 kB\nRssAnon:\t  400 kB\n"
MAPPINGS = """\
7f00-7f10 r-xp 00000000 08:01 42                         /lib/libtorch.so
Size:                600 kB
Rss:                 300 kB
Pss:                 300 kB
Referenced:          100 kB
Anonymous:             0 kB
7f10-7f20 rw-p 00000000 08:01 42                         /lib/libtorch.so
Rss:                  80 kB
Referenced:           10 kB
Anonymous:            60 kB
7f20-7f30 rw-p 00000000 00:00 0                          [heap]
Rss:                 500 kB
Referenced:            0 kB
Anonymous:           500 kB
"""
FREED = """
from zooid.core.resources.process_memory import anonymous_bytes, forget_peak, peak_needed_bytes
forget_peak()
before_bytes = peak_needed_bytes()
block = bytearray(b"x" * 2**26)
del block
print(before_bytes, peak_needed_bytes(), anonymous_bytes())
"""


def test_pages_of_files_that_nothing_used_are_not_needed(tmp_path: Path) -> None:
    (tmp_path / "status").write_text(STATUS)
    assert peak_needed_bytes(tmp_path) == peak_resident_bytes(tmp_path) == 900 * 1024, "without smaps all count"
    (tmp_path / "smaps").write_text(MAPPINGS)
    assert peak_needed_bytes(tmp_path) == (900 - 200 - 10) * 1024


def test_memory_that_was_freed_again_was_needed() -> None:
    """A process of its own measures it, since threads of other tests allocate memory in this one."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this kernel does not forget peaks")
    measured = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True, timeout=60)
    before_bytes, peak_bytes, held_bytes = map(int, measured.stdout.split())
    assert peak_bytes >= held_bytes + 2**25
    assert peak_bytes >= before_bytes + 2**25
