"""ConvNeXt of a medium size, for a few steps."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.jobs.specimens import specimen_job

job = specimen_job("convnext", batch_size=64)
