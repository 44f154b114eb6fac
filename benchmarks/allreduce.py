"""The three scatter-reduces through an object store, against their formulas and against the bound.

Members are processes in network namespaces, each with 5 MB/s each way to the store's namespace, where `rclone serve s3`
runs. In the same run and through the same client the goodput w of such a link with both ways busy is measured, with
all members at it, and the latency l of a small request; before and after the all-reduces, and the higher w counts, for
a probe that was disturbed would loosen the bound. With s bytes and n members, FuncPipe gives

    (1)  3s/w − 2s/(nw) + 4l    for three_phase, LambdaML's
    (2)  2s/w + (n + 2)l        for pipelined

and nobody is faster than the downlink, 2s(n−1)/(nw): the bound, and what streaming is held to. Rows with `latency_ms`
40 have a relay before the store that makes every request take 40 ms longer.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.harness import Row, run_benchmark
from lab.crew import Answer, Crew, Home, crew
from lab.namespaces import shape, star
from lab.servers import delayed, rclone_s3

ALGORITHMS = ("three_phase", "pipelined", "streaming")
LINK_BYTES_PER_S = 5_000_000
PROBE_BYTES = 2_000_000
PROBE_S = 4.0
WARM_UP_BYTES = 2**18
SHORT_TASK_S = 150.0


@dataclass(frozen=True)
class Scene:
    """What is measured under the same conditions."""

    num_members: int
    latency_ms: int
    num_bytes: int
    num_repetitions: int


SCENES = (
    *(Scene(n, latency_ms=0, num_bytes=32_000_000, num_repetitions=3) for n in (2, 4, 8)),
    *(Scene(n, latency_ms=40, num_bytes=32_000_000, num_repetitions=1) for n in (4, 8)),
)
QUICK_SCENES = (
    Scene(4, latency_ms=0, num_bytes=8_000_000, num_repetitions=1),
    Scene(4, latency_ms=40, num_bytes=8_000_000, num_repetitions=1),
)


@dataclass(frozen=True)
class Link:
    """A member's way to the store, as the store's client sees it."""

    bytes_per_s: float
    latency_s: float


def bound_s(num_bytes: int, num_members: int, link: Link) -> float:
    """2s(n−1)/(nw): what comes down everybody's link, however it is arranged."""
    return 2 * num_bytes * (num_members - 1) / (num_members * link.bytes_per_s)


def formula_s(algorithm: str, num_bytes: int, num_members: int, link: Link) -> float:
    """FuncPipe's equations (1) and (2); the bound for streaming."""
    whole_s = num_bytes / link.bytes_per_s
    if algorithm == "three_phase":
        return 3 * whole_s - 2 * whole_s / num_members + 4 * link.latency_s
    if algorithm == "pipelined":
        return 2 * whole_s + (num_members + 2) * link.latency_s
    assert algorithm == "streaming"
    return bound_s(num_bytes, num_members, link)


def scenes(quick: bool) -> tuple[Scene, ...]:
    return QUICK_SCENES if quick else SCENES


def measure(quick: bool) -> Iterator[Row]:
    for scene in scenes(quick):
        yield from measure_scene(scene)


def measure_scene(scene: Scene) -> Iterator[Row]:
    """All algorithms in turn, again and again, by the same members over the same links."""
    with members_around_store(scene) as (members, url):
        link = measure_link(members, url)
        members.ask("join", {"url": f"{url}/groups"}, timeout_s=SHORT_TASK_S)
        for algorithm in ALGORITHMS:
            arguments = {"name": algorithm, "backend": "zooid", "transport": "store", "all_reduce": algorithm}
            members.ask("add_group", arguments, timeout_s=SHORT_TASK_S)
            all_reduce(members, algorithm, WARM_UP_BYTES, SHORT_TASK_S)
        answers: dict[str, list[list[Answer]]] = {algorithm: [] for algorithm in ALGORITHMS}
        for _ in range(scene.num_repetitions):
            for algorithm in ALGORITHMS:
                expected_s = formula_s(algorithm, scene.num_bytes, scene.num_members, link)
                timeout_s = SHORT_TASK_S + 3 * expected_s
                answers[algorithm].append(all_reduce(members, algorithm, scene.num_bytes, timeout_s))
        link = max(link, measure_link(members, url), key=lambda measured: measured.bytes_per_s)
    for algorithm in ALGORITHMS:
        yield row_of(scene, algorithm, link, answers[algorithm])


@contextmanager
def members_around_store(scene: Scene) -> Iterator[tuple[Crew, str]]:
    """Members that reach nothing but the store, and the URL of a bucket there."""
    with ExitStack() as stack:
        lab = stack.enter_context(star(scene.num_members))
        where = (lab.store.address, lab.store.prefix)
        server = stack.enter_context(rclone_s3(*where))
        url = server.bucket_url("benchmark")
        if scene.latency_ms:
            server = stack.enter_context(delayed(server, scene.latency_ms / 1000, *where))
        shape(lab, LINK_BYTES_PER_S)
        homes = [Home(prefix=tuple(member.prefix)) for member in lab.members]
        yield stack.enter_context(crew(homes, server.environment)), url


def measure_link(members: Crew, url: str) -> Link:
    """Goodput over all members and both ways; latency while nothing else is under way."""
    where = {"url": f"{url}/links"}
    latency_s = members.ask("latency", where, timeout_s=SHORT_TASK_S, only=0)[0]["latency_s"]
    members.ask("put_object", {**where, "num_bytes": PROBE_BYTES}, timeout_s=SHORT_TASK_S)
    probe = {**where, "num_bytes": PROBE_BYTES, "duration_s": PROBE_S, "latency_s": latency_s}
    answers = members.ask_at_once("goodput", probe, timeout_s=SHORT_TASK_S)
    rates = [answer[way] for answer in answers for way in ("up_bytes_per_s", "down_bytes_per_s")]
    return Link(bytes_per_s=statistics.mean(rates), latency_s=latency_s)


def all_reduce(members: Crew, group: str, num_bytes: int, timeout_s: float) -> list[Answer]:
    members.ask("fill", {"num_bytes": num_bytes}, timeout_s=SHORT_TASK_S)
    return members.ask_at_once("all_reduce", {"group": group, "num_times": 1}, timeout_s=timeout_s)


def row_of(scene: Scene, algorithm: str, link: Link, repetitions: list[list[Answer]]) -> Row:
    time_s = statistics.median(
        max(answer["end_s"] for answer in answers) - min(answer["begin_s"] for answer in answers)
        for answers in repetitions
    )
    everything = [answer for answers in repetitions for answer in answers]
    counts = {name: sum(answer["counts"][name] for answer in everything) for name in everything[0]["counts"]}
    num_requests = sum(counts[name] for name in ("num_gets", "num_missed_gets"))  # HEAD and LIST are not used
    return {
        "n": scene.num_members,
        "algorithm": algorithm,
        "time_s": time_s,
        "ratio_to_bound": time_s / bound_s(scene.num_bytes, scene.num_members, link),
        "ratio_to_formula": time_s / formula_s(algorithm, scene.num_bytes, scene.num_members, link),
        "requests_per_get": num_requests / counts["num_gets"],
        "peak_extra_ratio": max(answer["peak_extra_bytes"] for answer in everything) / scene.num_bytes,
        "latency_ms": scene.latency_ms,
        "w_mb_per_s": link.bytes_per_s / 1e6,
        "l_ms": link.latency_s * 1000,
    }


if __name__ == "__main__":
    run_benchmark("all-reduce through an object store", measure, lambda quick: len(scenes(quick)) * len(ALGORITHMS))
