"""All-reduce over TCP: zooid's own sockets beside Gloo's, in the same processes, in turn.

On `link` rows members are in network namespaces, with 100 MB/s each way for each of them and a switch between; on
`loopback` rows they share this machine's loopback device. Either backend reduces the same numbers, on one thread, after
a warm-up; `ratio` above 1 means that zooid is faster.
"""

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import Row, run_benchmark
from lab.crew import Crew, Home, crew
from lab.namespaces import connect_members, shape, star

BACKENDS = ("zooid", "gloo")
PLACES = ("link", "loopback")
LINK_BYTES_PER_S = 100_000_000
SIZES = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
QUICK_SIZES = (2**10, 2**16, 2**22)
WORLDS = (2, 4)
QUICK_WORLDS = (2,)
NUM_REPETITIONS = 7
QUICK_NUM_REPETITIONS = 3
BYTES_IN_A_ROW = 2**22
MAX_IN_A_ROW = 40
"""Small all-reduces are timed in a row, for one alone would tell how processes wake up; sums, which grow by the number
of members each time, stay within float32."""
TASK_S = 120.0


def sizes(quick: bool) -> tuple[int, ...]:
    return QUICK_SIZES if quick else SIZES


def worlds(quick: bool) -> tuple[int, ...]:
    return QUICK_WORLDS if quick else WORLDS


def measure(quick: bool) -> Iterator[Row]:
    num_repetitions = QUICK_NUM_REPETITIONS if quick else NUM_REPETITIONS
    for place in PLACES:
        for num_members in worlds(quick):
            with (
                homes_at(place, num_members) as homes,
                tempfile.TemporaryDirectory() as folder,
                crew(homes, {}) as made,
            ):
                make_groups(made, f"file://{folder}/meeting?transport=tcp")
                for num_bytes in sizes(quick):
                    times_s = compare(made, num_bytes, num_repetitions)
                    yield {
                        "where": place,
                        "n": num_members,
                        "num_bytes": num_bytes,
                        **{f"{backend}_s": time_s for backend, time_s in times_s.items()},
                        "ratio": times_s["gloo"] / times_s["zooid"],
                    }


@contextmanager
def homes_at(place: str, num_members: int) -> Iterator[list[Home]]:
    """Where members run, and which device Gloo is to use there; zooid finds out by itself."""
    if place == "loopback":
        yield [Home(environment=(("GLOO_SOCKET_IFNAME", "lo"),))] * num_members
        return
    with star(num_members) as lab:
        connect_members(lab)
        shape(lab, LINK_BYTES_PER_S)
        yield [
            Home(prefix=tuple(member.prefix), environment=(("GLOO_SOCKET_IFNAME", member.device),))
            for member in lab.members
        ]


def make_groups(members: Crew, url: str) -> None:
    members.ask("join", {"url": url}, timeout_s=TASK_S)
    for backend in BACKENDS:
        options = {"transport": "tcp"} if backend == "zooid" else {}
        members.ask("add_group", {"name": backend, "backend": backend, **options}, timeout_s=TASK_S)


def compare(members: Crew, num_bytes: int, num_repetitions: int) -> dict[str, float]:
    """Median seconds of an all-reduce by backend; each goes first as often as the other, and the first turn is a
    warm-up."""
    times_s: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for repetition in range(num_repetitions + 1):
        for backend in BACKENDS if repetition % 2 else reversed(BACKENDS):
            times_s[backend].append(all_reduce_s(members, backend, num_bytes))
    return {backend: statistics.median(measured[1:]) for backend, measured in times_s.items()}


def all_reduce_s(members: Crew, backend: str, num_bytes: int) -> float:
    num_times = min(max(1, BYTES_IN_A_ROW // num_bytes), MAX_IN_A_ROW)
    members.ask("fill", {"num_bytes": num_bytes}, timeout_s=TASK_S)
    answers = members.ask_at_once("all_reduce", {"group": backend, "num_times": num_times}, timeout_s=TASK_S)
    took_s: float = max(answer["end_s"] for answer in answers) - min(answer["begin_s"] for answer in answers)
    return took_s / num_times


if __name__ == "__main__":
    run_benchmark("all-reduce over TCP", measure, lambda quick: len(PLACES) * len(worlds(quick)) * len(sizes(quick)))
