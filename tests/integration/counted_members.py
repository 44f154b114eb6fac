"""Members of a rehearsal that count what they send, take and ask of the store in every step.

Everything that a member does is real; this only reads its groups' counters before and after each step.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zooid.comm.statistics import Counter
from zooid.core import keys
from zooid.core.environment import member_environment
from zooid.platforms import Exit, Launch
from zooid.store import ObjectStore, open_store

Counts = dict[str, float]


class CountingPlatform:
    """Starts members as this program. What they print goes to this process's own error stream."""

    def launch(self, launch: Launch) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.integration.counted_members", launch.spec_url]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=member_environment(launch.num_threads))

    def poll(self, handle: "subprocess.Popen[bytes]") -> Exit | None:
        status = handle.poll()
        return None if status is None else Exit(status)

    def logs(self, handle: "subprocess.Popen[bytes]") -> str:
        return ""

    def terminate(self, handle: "subprocess.Popen[bytes]") -> None:
        handle.kill()
        handle.wait()


def counted_steps(store: ObjectStore, member: str) -> list[Counts]:
    """What a member counted in each of its steps; through all of its groups together."""
    steps: list[Counts] = json.loads(bytes(store.get(_key(member))))
    return steps


def _key(member: str) -> str:
    return f"counts/{member}.json"


def main(arguments: Sequence[str]) -> int:
    from zooid.comm import backend
    from zooid.worker import __main__ as program
    from zooid.worker import rehearsal
    from zooid.worker.executor import Executor

    counters: list[Counter] = []
    steps: list[Counts] = []

    def counter() -> Counter:
        counters.append(Counter())
        return counters[-1]

    def so_far() -> Counts:
        read = [asdict(each.read()) for each in counters]
        return {name: sum(each[name] for each in read) for name in read[0]}

    class CountedExecutor(Executor):
        def run(self, *given: Any) -> Any:
            before = so_far()
            recording = super().run(*given)
            steps.append({name: value - before[name] for name, value in so_far().items()})
            return recording

    vars(backend)["Counter"] = counter
    vars(rehearsal)["Executor"] = CountedExecutor
    sys.argv[1:] = list(arguments)
    status = program.main()
    store_url, spec_key = keys.split_spec_url(arguments[0])
    member = spec_key.rpartition("/")[2].removesuffix(".json")
    open_store(store_url).put(_key(member), json.dumps(steps).encode())
    return status


if __name__ == "__main__":
    program_status = main(sys.argv[1:])
    from zooid.store.program import end_process

    end_process(program_status)
