"""The time of a message through the store, measured with the transport that training uses."""

import datetime
import random
import secrets
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from zooid.comm.echo import StoreProbe
from zooid.core.resources.link import STORE_SITE, Link
from zooid.profiler.interference import MessageCost
from zooid.store import ObjectStore

_SMALL_BYTES = 1024
_LARGE_BYTES = 8 * 2**20
_SMALL_REPEATS = 30
_LARGE_REPEATS = 5
_HEAD_START_S = 0.03


def probe_store(store: ObjectStore, site: str, cost: MessageCost) -> tuple[Link, Link]:
    """Measure the links to and from the store: the round trip of a small request, and the bandwidth.

    A get includes polling, since its reader has waited for a while, as in training.
    """
    probe = StoreProbe(store)
    small = _times(probe, 0, _SMALL_BYTES, _SMALL_REPEATS)
    large = _times(probe, _SMALL_REPEATS, _LARGE_BYTES, _LARGE_REPEATS)
    probe.close()
    today = datetime.date.today().isoformat()
    source = f"probe of {store.url.partition('://')[0]}"

    def link(from_site: str, to_site: str, rtt_s: float, large_s: float, all_large_s: list[float]) -> Link:
        bandwidth = (_LARGE_BYTES - _SMALL_BYTES) / max(large_s - rtt_s, 1e-6)
        return Link(
            from_site=from_site,
            to_site=to_site,
            bandwidth_bytes_per_s=bandwidth,
            rtt_s=rtt_s,
            cpu_s=cost.cpu_s,
            cpu_s_per_byte=cost.cpu_s_per_byte,
            spread=(max(all_large_s) - min(all_large_s)) / max(large_s, 1e-6),
            source=source,
            date=today,
        )

    return (
        link(site, STORE_SITE, statistics.median(small.puts_s), statistics.median(large.puts_s), large.puts_s),
        link(STORE_SITE, site, statistics.mean(small.gets_s), statistics.mean(large.gets_s), large.gets_s),
    )


class _Times(NamedTuple):
    puts_s: list[float]
    gets_s: list[float]
    """Seconds from the end of each put until a waiting reader has the bytes."""


def _times(probe: StoreProbe, first: int, num_bytes: int, repeats: int) -> _Times:
    def arrival_s(number: int) -> float:
        probe.receive(number, num_bytes)
        return time.perf_counter()

    data = memoryview(secrets.token_bytes(num_bytes))
    times = _Times([], [])
    with ThreadPoolExecutor(1) as reader:
        for number in range(first, first + repeats):
            arrival = reader.submit(arrival_s, number)
            time.sleep(_HEAD_START_S * random.uniform(1, 1.5))  # not always at the same moment between two polls
            begin_s = time.perf_counter()
            probe.send(number, data)
            end_s = time.perf_counter()
            times.puts_s.append(end_s - begin_s)
            times.gets_s.append(max(0.0, arrival.result() - end_s))
    return times
