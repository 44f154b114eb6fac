"""Members of a rehearsal that count what they send, take and ask of the store in every step.

Everything that a member does is real; this only reads its groups' counters before and after each step.
"""

import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict
from multiprocessing.context import ForkServerProcess
from typing import Any

from tests.integration.ranks import FORKING
from tests.platforms import PretendedPlatform
from zooid.comm.traffic_counter import Counter
from zooid.core.environment import member_environment
from zooid.core.runs import keys
from zooid.platforms import Exit, Launch
from zooid.store import ObjectStore, open_store

Counts = dict[str, float]


class CountingPlatform(PretendedPlatform):
    """Forks members that count. What they print goes to this process's own error stream."""

    look_s = 0.01

    def __init__(self) -> None:
        super().__init__()
        self._processes: dict[str, ForkServerProcess] = {}

    def begin(self, launch: Launch) -> None:
        ticket = launch.ticket
        process = FORKING.Process(target=_become, args=(ticket.spec_url, member_environment(ticket.num_threads)))
        process.start()
        self._processes[ticket.title] = process

    def members(self, run: str) -> Mapping[str, Exit | None]:
        return {
            title: None if process.exitcode is None else Exit(process.exitcode)
            for title, process in self._processes.items()
        }

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        for title in titles:
            self._processes[title].kill()
            self._processes[title].join()
        return ()


def counted_steps(store: ObjectStore, member: str) -> list[Counts]:
    """What a member counted in each of its steps; through all of its groups together."""
    steps: list[Counts] = json.loads(bytes(store.get(_key(member))))
    return steps


def _key(member: str) -> str:
    return f"counts/{member}.json"


def _become(spec_url: str, environment: Mapping[str, str]) -> None:
    from zooid.store.member_program import end_process

    os.environ.clear()
    os.environ.update(environment)
    end_process(_run(spec_url))


def _run(spec_url: str) -> int:
    from zooid.comm.store import store_transport
    from zooid.comm.tcp import tcp_transport
    from zooid.worker import __main__ as program
    from zooid.worker.step import transactions
    from zooid.worker.step.executor import Executor

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

    for module in (store_transport, tcp_transport):
        vars(module)["Counter"] = counter
    vars(transactions)["Executor"] = CountedExecutor
    sys.argv[1:] = [spec_url]
    status = program.main()
    store_url, spec_key = keys.split_spec_url(spec_url)
    member = spec_key.rpartition("/")[2].removesuffix(".json")
    open_store(store_url).put(_key(member), json.dumps(steps).encode())
    return status
