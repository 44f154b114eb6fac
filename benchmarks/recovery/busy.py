"""A run that nobody disturbs, while other processes keep all cores busy: nobody may be taken for lost."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.recovery.jobs import COMPUTE_S, write_job
from lab.attempts import Attempt
from lab.footprints import last_applied
from lab.nursery import Nursery
from lab.prepared import PreparedJob
from zooid.core.errors import ZooidError
from zooid.core.records import encode_record

_POLL_S = 0.2


def endure(home: Nursery, folder: Path, seconds: float) -> dict[str, float]:
    """Train with four members for so long; how many changes of the roster there were, and how many steps."""
    job = PreparedJob(write_job(folder / "busy" / "job.py", 4, 2 * round(seconds / COMPUTE_S) + 10))
    plan = encode_record(job.plan(4, 1, "tcp")).decode()
    url = f"{job.file.parent.as_uri()}/run"
    attempt = Attempt(
        home, folder / "busy.log", store=url, job_file=str(job.file), plan=plan, checkpoints={"every_s": 10.0}
    )
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            if attempt.status is not None:
                raise ZooidError(f"the run has ended:\n{attempt.words()}")
            time.sleep(_POLL_S)
        counts = Counter(event["event"] for event in attempt.events() if event.get("ruling") != "planned")
        num_steps = last_applied(job.file.parent)[0]
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
        home.end_all()
    return {
        "busy_s": seconds,
        "steps": num_steps,
        "roster_changes": counts["roster_changed"],
        "members_lost": counts["member_exited"],
    }
