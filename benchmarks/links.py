"""Probes of links beside iperf3, on the same links, in the same run.

Two members are in network namespaces, whose links carry a known number of bytes a second each way: between them, as
through a switch, and to the namespace of the store, where `rclone serve s3` runs. `zooid.probe` measures both with 1, 4
and 16 streams (to the store: objects in flight), iperf3 with as many connections. Both count payload as it arrives,
and neither counts what is moved while connections gather speed. `ratio` is the probe's figure over iperf3's. It is the
link that is compared: the server does not read again and hash what it has got, which would leave the link idle where
one object is in flight (and `zooid.probe` would rightly say so).
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import zooid
from benchmarks.harness import Row, run_benchmark
from lab.namespaces import Namespace, Star, connect_members, shape, star
from lab.servers import rclone_s3
from zooid.core.errors import ZooidError
from zooid.core.resources.link import STORE_SITE, Link
from zooid.core.runs.spec import LinkEnd
from zooid.platforms import Launch
from zooid.platforms.local import LocalPlatform

RATES_MB_PER_S = (5, 20, 100)
QUICK_RATES_MB_PER_S = (20,)
STREAMS = (1, 4, 16)
QUICK_STREAMS = (4,)
ENDS: tuple[LinkEnd, ...] = ("peers", "store")
SITES = ("here", "there")
PROBE_S = 1.5
IPERF_S = 4
IPERF_OMITTED_S = 1
IPERF_TIMEOUT_S = 60
IPERF_PORT = 5201
IPERF_ATTEMPTS = 3


class IperfFailed(ZooidError):
    """iperf3 measured nothing, several times in a row."""


def rates(quick: bool) -> tuple[int, ...]:
    return QUICK_RATES_MB_PER_S if quick else RATES_MB_PER_S


def streams(quick: bool) -> tuple[int, ...]:
    return QUICK_STREAMS if quick else STREAMS


@dataclass(frozen=True)
class Way:
    """One direction of a link."""

    name: str
    from_site: str
    to_site: str
    is_reverse: bool
    """For iperf3, whose client is always the first member."""


WAYS: dict[LinkEnd, tuple[Way, Way]] = {
    "peers": (Way("there", SITES[0], SITES[1], False), Way("back", SITES[1], SITES[0], True)),
    "store": (Way("there", SITES[0], STORE_SITE, False), Way("back", STORE_SITE, SITES[0], True)),
}


def measure(quick: bool) -> Iterator[Row]:
    for rate in rates(quick):
        with star(2) as lab:
            connect_members(lab)
            shape(lab, rate * 10**6)
            for end in ENDS:
                links = probe(lab, end, streams(quick))
                target = lab.store if end == "store" else lab.members[1]
                for way, num_streams in itertools.product(WAYS[end], streams(quick)):
                    probed = find(links, way, num_streams).bandwidth_bytes_per_s / 1e6
                    measured = iperf_mb_per_s(lab.members[0], target, num_streams, way.is_reverse)
                    yield {
                        "link_mb_per_s": rate,
                        "to": end,
                        "streams": num_streams,
                        "direction": way.name,
                        "probe_mb_per_s": probed,
                        "iperf3_mb_per_s": measured,
                        "ratio": probed / measured,
                    }


def probe(lab: Star, end: LinkEnd, num_streams: Sequence[int]) -> tuple[Link, ...]:
    """What `zooid.probe` measures from the first member: to the second, or to the store's namespace."""
    homes = {f"m{rank}": member for rank, member in enumerate(lab.members)}
    platform = LocalPlatform(lambda launch: home_prefix(homes, launch))
    with store_in(lab, end) as url:
        sites = SITES if end == "peers" else SITES[:1]
        return zooid.probe(
            members=len(sites),
            store=url,
            sites=sites,
            ends=(end,),
            streams=num_streams,
            seconds=PROBE_S,
            platform=platform,
        ).links


def home_prefix(homes: Mapping[str, Namespace], launch: Launch) -> list[str]:
    return homes[launch.member].prefix


@contextmanager
def store_in(lab: Star, end: LinkEnd) -> Iterator[str]:
    """The store that is measured; members that only measure each other meet in a folder."""
    if end == "peers":
        with tempfile.TemporaryDirectory() as folder:
            yield f"file://{folder}"
        return
    with rclone_s3(lab.store.address, lab.store.prefix, is_hashing=False) as server:
        before = dict(os.environ)
        os.environ.update(server.environment)  # members inherit it
        try:
            yield server.bucket_url("links")
        finally:
            os.environ.clear()
            os.environ.update(before)


def find(links: Sequence[Link], way: Way, num_streams: int) -> Link:
    return next(
        link
        for link in links
        if (link.from_site, link.to_site, link.num_members, link.num_streams)
        == (way.from_site, way.to_site, 1, num_streams)
    )


@contextmanager
def iperf_server(home: Namespace) -> Iterator[None]:
    command = [*home.prefix, "iperf3", "--server", "--bind", home.address, "--port", str(IPERF_PORT), "--forceflush"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            next(line for line in process.stdout if "listening" in line)
            yield
        finally:
            process.kill()


def iperf_mb_per_s(home: Namespace, target: Namespace, num_streams: int, is_reverse: bool) -> float:
    """Goodput as the receiver counts it."""
    options = ["--time", str(IPERF_S), "--omit", str(IPERF_OMITTED_S), "--parallel", str(num_streams), "--json"]
    command = [*home.prefix, "iperf3", "--client", target.address, "--port", str(IPERF_PORT), *options]
    if is_reverse:
        command.append("--reverse")
    for _ in range(IPERF_ATTEMPTS):
        with iperf_server(target):
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=IPERF_TIMEOUT_S)
        told = json.loads(answer.stdout)
        if "error" not in told:
            bits_per_s: float = told["end"]["sum_received"]["bits_per_second"]
            return bits_per_s / 8e6
        print(f"iperf3 failed: {told['error']}", file=sys.stderr)
    raise IperfFailed(f"iperf3 failed {IPERF_ATTEMPTS} times: {told['error']}")


def num_rows(quick: bool) -> int:
    return len(rates(quick)) * len(streams(quick)) * sum(map(len, WAYS.values()))


if __name__ == "__main__":
    if shutil.which("iperf3") is None:
        sys.exit("there is no iperf3 to compare with; install it, on Debian with: apt-get install iperf3")
    run_benchmark("probes of links beside iperf3", measure, num_rows)
