"""The laboratory is what it says: links carry their rate and no more, and distance costs time and no bandwidth."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.crew import Home, MemberFailed, crew
from lab.namespaces import Namespace, Star, apart, connect_members, shape
from lab.servers import S3Server, delayed, rclone_s3
from tests.integration.laboratory import star_or_skip
from zooid.store import open_store

pytestmark = pytest.mark.timeout(60)

SLOW_BYTES_PER_S = 5_000_000
FAST_BYTES_PER_S = 100_000_000
ROUND_TRIP_S = 0.040
MIN_FAR_BYTES_PER_S = 20_000_000
"""One window of 64 KiB in a round trip would be 1.6 MB/s; what is measured beside other work is several times this."""
ATTEMPTS = 4
"""Other programs may take the cores away for a while; a limit that is too low would show every time."""

EXCHANGE = """
import socket, threading
def exchange(connection, num_bytes):
    sender = threading.Thread(target=connection.sendall, args=(bytes(num_bytes),))
    sender.start()
    missing, buffer = num_bytes, bytearray(2**18)
    while missing:
        received = connection.recv_into(buffer, min(missing, len(buffer)))
        assert received, "the other end is gone"
        missing -= received
    sender.join()
    connection.sendall(b"!")
    assert connection.recv(1) == b"!"
"""
LISTEN = """
import sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=exchange, args=(server.accept()[0], int(sys.argv[2]))).start()
"""
CONNECT = """
import sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[3])), timeout=20)
begin_s = time.monotonic()
exchange(connection, int(sys.argv[2]))
print(time.monotonic() - begin_s)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Star]:
    with star_or_skip(2) as made:
        yield made


@contextmanager
def listening(home: Namespace, num_bytes: int) -> Iterator[str]:
    """A server that exchanges so many bytes with everyone, both ways at once; yields its port."""
    command = [*home.prefix, sys.executable, "-c", EXCHANGE + LISTEN, home.address, str(num_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def rates(sources: list[Namespace], target: Namespace, num_bytes: int) -> list[float]:
    """Bytes per second each way, of all sources at the same time."""
    with listening(target, num_bytes) as port:
        arguments = [target.address, str(num_bytes), port]
        started = [
            subprocess.Popen(
                [*source.prefix, sys.executable, "-c", EXCHANGE + CONNECT, *arguments],
                stdout=subprocess.PIPE,
                text=True,
            )
            for source in sources
        ]
        return [num_bytes / float(process.communicate(timeout=30)[0]) for process in started]


def best(measure: Callable[[], float], enough: float) -> float:
    """The highest of a few measurements, as soon as one is enough."""
    highest = 0.0
    for _ in range(ATTEMPTS):
        highest = max(highest, measure())
        if highest >= enough:
            break
    return highest


def test_a_shaped_link_carries_its_rate_both_ways_at_once(lab: Star) -> None:
    shape(lab, SLOW_BYTES_PER_S)
    members: list[Namespace] = list(lab.members)
    lowest = best(lambda: min(rates(members, lab.store, SLOW_BYTES_PER_S)), enough=0.95 * SLOW_BYTES_PER_S)
    print(f"{lowest / 1e6:.3f} MB/s each way, of {SLOW_BYTES_PER_S / 1e6}")
    assert 0.95 <= lowest / SLOW_BYTES_PER_S <= 1.01, "a burst may pass in no time, but that is a hundredth"


def test_members_that_may_meet_do_so_over_both_their_links(lab: Star) -> None:
    connect_members(lab)
    shape(lab, FAST_BYTES_PER_S)
    one, other = lab.members

    def rate() -> float:
        return rates([one], other, FAST_BYTES_PER_S // 2)[0]

    fast = best(rate, enough=0.9 * FAST_BYTES_PER_S)
    assert 0.9 <= fast / FAST_BYTES_PER_S <= 1.01
    print(f"{fast / 1e6:.1f} MB/s each way, of {FAST_BYTES_PER_S / 1e6}")


def test_members_that_are_apart_wait_a_round_trip_and_lose_no_bandwidth(lab: Star) -> None:
    connect_members(lab)
    shape(lab, SLOW_BYTES_PER_S)
    one, other = lab.members
    with apart(lab, ROUND_TRIP_S):
        waited_s = 1 / best(lambda: rates([one], other, 1)[0], enough=0.45 / ROUND_TRIP_S)
        carried = best(lambda: rates([one], other, 2 * SLOW_BYTES_PER_S)[0], enough=0.9 * SLOW_BYTES_PER_S)
    print(f"{waited_s:.4f} s for a byte each way, {carried / 1e6:.2f} MB/s of {SLOW_BYTES_PER_S / 1e6}")
    assert 2 * ROUND_TRIP_S <= waited_s < 3 * ROUND_TRIP_S, "the byte that ends it waits until the first is confirmed"
    assert 0.85 <= carried / SLOW_BYTES_PER_S <= 1.01


@pytest.fixture(scope="module")
def near() -> Iterator[S3Server]:
    with rclone_s3() as server:
        yield server


def request_s(server: S3Server) -> float:
    """The fastest of a few small requests over a connection that is open."""
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=10)
    times_s = []
    with contextlib.closing(connection):
        for _ in range(5):
            begin_s = time.monotonic()
            connection.request("GET", "/")
            connection.getresponse().read()
            times_s.append(time.monotonic() - begin_s)
    return min(times_s[1:])


def test_distance_costs_time(near: S3Server) -> None:
    with delayed(near, ROUND_TRIP_S) as far:
        added_s = request_s(far) - request_s(near)
    print(f"{1000 * added_s:.1f} ms more, of {1000 * ROUND_TRIP_S}")
    assert ROUND_TRIP_S - 0.002 <= added_s <= ROUND_TRIP_S + 0.010


def test_distance_costs_no_bandwidth(near: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a byte: what comes back is what was put, while as much goes the other way."""
    data = os.urandom(20_000_000)
    url = near.bucket_url("far")
    with delayed(near, ROUND_TRIP_S) as far:
        for name, value in far.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{url}/run")
        store.put("filling", data)

        def rate() -> float:
            begin_s = time.monotonic()
            putting = threading.Thread(target=store.put, args=("other", data))
            putting.start()
            assert store.get("filling") == data
            putting.join()
            return len(data) / (time.monotonic() - begin_s)

        each_way = best(rate, enough=MIN_FAR_BYTES_PER_S)
        assert store.get("other") == data
    print(f"{each_way / 1e6:.0f} MB/s each way")
    assert each_way >= MIN_FAR_BYTES_PER_S


def test_a_member_that_dies_is_told_at_once() -> None:
    with (
        pytest.raises(MemberFailed, match="member 1: ended with status 1"),
        crew([member_that("exec sleep 60"), Home(prefix=("false",))], {}),
    ):
        pass


def test_a_member_that_hangs_holds_nobody_up_and_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with crew([member_that(f"echo $$ > {note}; echo '{{}}'; exec sleep 60")], {}) as made:
        os.kill(int(note.read_text()), 0)
        with pytest.raises(MemberFailed, match=r"member 0: no answer in 0\.2 s"):
            made.ask("nothing", timeout_s=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_what_a_member_says_of_its_failure_is_passed_on() -> None:
    complaint = json.dumps({"error": "OSError: too late"})
    says = f"echo '{{}}'; read request; echo gone wrong >&2; echo '{complaint}'; exec sleep 60"
    with crew([member_that(says)], {}) as made, pytest.raises(MemberFailed, match=r"too late.*gone wrong"):
        made.ask("anything", timeout_s=10)


def member_that(script: str) -> Home:
    """A member that does not run the program that it is given, but this."""
    return Home(prefix=("sh", "-c", script))
