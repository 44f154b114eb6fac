"""`python -m zooid.worker SPEC`: run one member, given the URL of its spec."""

import sys

from zooid.core.abort import Abort
from zooid.core.spec import WorkerSpec
from zooid.store import ObjectStore
from zooid.store.program import end_process, run_member


def main() -> int:
    return run_member(sys.argv[1:], WorkerSpec, _work)


def _work(spec: WorkerSpec, store: ObjectStore) -> None:
    import torch

    from zooid.worker import member

    torch.set_num_threads(spec.num_threads)
    if spec.task == "prepare":
        member.prepare(spec, store)
        return
    abort = Abort()
    try:
        member.train(spec, store, abort)
    finally:
        abort.set("the member ends")  # frees every thread that still waits, so that the process can exit


if __name__ == "__main__":
    end_process(main())
