"""The example of handwritten digits, for a few epochs only."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples import digits

job = dataclasses.replace(digits.job, epochs=4)
