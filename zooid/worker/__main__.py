"""`python -m zooid.worker SPEC`: run one member, given the URL of its spec."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from zooid.core.abort import Abort
from zooid.core.runs.spec import RehearsalSpec, WarmUpSpec, WorkerSpec
from zooid.store import ObjectStore
from zooid.store.member_program import end_process, run_member
from zooid.worker.member_imports import lasting_imports

PRELOADS = (
    "torch",
    "zooid.worker.member.train_task",
    "zooid.worker.rehearsed.rehearsed_member",
    "zooid.worker.member.prepare_task",
    "torch.export._trace",
)
"""Modules that every member imports. A process that forks members imports them once for all."""


def main() -> int:
    return run_member(sys.argv[1:], {WorkerSpec: _work, WarmUpSpec: _warm_up, RehearsalSpec: _rehearse})


def _work(spec: WorkerSpec, store: ObjectStore) -> None:
    with lasting_imports():
        import torch

        from zooid.worker.member import train_task
        from zooid.worker.member.notices import passed_on

    torch.set_num_threads(spec.num_threads)
    if spec.task == "train":
        with _aborting() as abort, passed_on(spec, store):
            train_task.train(spec, store, abort)
        return
    from zooid.worker.member import prepare_task  # it traces, and so imports a compiler

    tasks = {"prepare": prepare_task.prepare, "check": prepare_task.check, "plan": prepare_task.plan_layout}
    tasks[spec.task](spec, store)


def _warm_up(spec: WarmUpSpec, store: ObjectStore) -> None:
    """Do nothing: the process that has forked this one has imported what lasts."""


def _rehearse(spec: RehearsalSpec, store: ObjectStore) -> None:
    import torch

    from zooid.worker.member import train_task
    from zooid.worker.rehearsed.rehearsed_member import RehearsedMember

    torch.set_num_threads(spec.num_threads)
    with _aborting() as abort:
        train_task.train(spec, store, abort, RehearsedMember)


@contextmanager
def _aborting() -> Iterator[Abort]:
    """An abort that is set in the end, which frees every waiting thread, so that the process can exit."""
    abort = Abort()
    try:
        yield abort
    finally:
        abort.set("the member ends")


if __name__ == "__main__":
    end_process(main())
