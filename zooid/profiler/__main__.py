"""`python -m zooid.profiler SPEC`: measure a job, links or all-reduces on this machine, and store the results."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zooid.core.abort import Abort
from zooid.core.jobs.job import load_job
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.events import ProfileProgress
from zooid.core.runs.spec import MemberSpec, ProbeSpec, ProfilerSpec, SweepSpec
from zooid.profiler.probes import probe_links
from zooid.profiler.probes.probe_member import Progress
from zooid.store import EventWriter, ObjectStore
from zooid.store.member_program import end_process, run_member

PRELOADS = ("torch", "zooid.profiler.job_profile", "zooid.profiler.probes.library_sweep", "torch.export._trace")
"""Modules that every member imports; a process that forks members imports them once for all of them."""


def main() -> int:
    return run_member(sys.argv[1:], {ProfilerSpec: _profile, ProbeSpec: _probe, SweepSpec: _sweep})


def _profile(spec: ProfilerSpec, store: ObjectStore) -> None:
    is_forked = "torch" in sys.modules

    import torch

    torch.set_num_threads(spec.num_threads)
    job = load_job(spec.job_file)  # before imports that take half a second, so that a wrong job is reported sooner
    loaded_cpu_s = time.process_time()

    from zooid.profiler.job_profile import measure_job

    # whoever forks members has imported the rest by the time at which members of a run start
    imported_cpu_s = loaded_cpu_s if is_forked else time.process_time()
    with _progress_events(spec, store) as progress:
        profile = measure_job(job, spec, store, progress, imported_cpu_s)
        store.put(keys.PROFILE, encode_record(profile))


def _probe(spec: ProbeSpec, store: ObjectStore) -> None:
    with _progress_events(spec, store, spec.rank) as progress:
        probe_links(spec, store, progress, Abort())


def _sweep(spec: SweepSpec, store: ObjectStore) -> None:
    import torch

    from zooid.profiler.probes.library_sweep import sweep_all_reduces

    torch.set_num_threads(spec.num_threads)
    with _progress_events(spec, store, spec.rank) as progress:
        sweep_all_reduces(spec, store, progress, Abort())


@contextmanager
def _progress_events(spec: MemberSpec, store: ObjectStore, rank: int = 0) -> Iterator[Progress]:
    """Report progress as events in the store; of members that measure together, only the first one reports."""
    if rank > 0:
        yield lambda done, total: None
        return
    with EventWriter(store, spec.member, spec.roster, reports_usage=True) as events:

        def progress(done: int, total: int) -> None:
            events.write(ProfileProgress(at_s=time.time(), done=done, total=total))

        yield progress


if __name__ == "__main__":
    end_process(main())
