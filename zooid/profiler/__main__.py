"""`python -m zooid.profiler SPEC`: measure a job where this process runs, and write the profile to the store."""

import sys
import time

from zooid.core import keys
from zooid.core.events import ProfileProgress
from zooid.core.job import load_job
from zooid.core.records import encode_record
from zooid.core.spec import ProfilerSpec
from zooid.store import EventWriter, ObjectStore
from zooid.store.program import end_process, run_member


def main() -> int:
    return run_member(sys.argv[1:], ProfilerSpec, _work)


def _work(spec: ProfilerSpec, store: ObjectStore) -> None:
    import torch

    from zooid.profiler.measuring import measure_job

    torch.set_num_threads(spec.num_threads)
    with EventWriter(store, spec.member) as events:

        def progress(done: int, total: int) -> None:
            events.write(ProfileProgress(at_s=time.time(), done=done, total=total))

        job = load_job(spec.job_file)
        profile = measure_job(job, spec, store, progress)
        store.put(keys.PROFILE, encode_record(profile))


if __name__ == "__main__":
    end_process(main())
