"""What every object store must do, over each kind there is; then what is built on it."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lab.servers import S3Server
from zooid.core.abort import Abort
from zooid.core.errors import (
    CommAborted,
    CommTimeout,
    InputError,
    ObjectExists,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)
from zooid.core.events import Metered, PhaseStarted, StepCommitted
from zooid.store import (
    EventReader,
    EventWriter,
    Faults,
    FaultyStore,
    ObjectStore,
    Rates,
    check_create_only,
    open_store,
    sweep,
    wait_for,
)

OpenStore = Callable[[str], ObjectStore]

FOR_BYTES = ["file", "memory", "rclone", "moto", "faulty"]
FOR_CREATE_ONLY = ["file", "memory", "moto", "faulty"]


def open_on(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A fresh folder of a bucket; the client reads the environment once, when it is opened."""
    with monkeypatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        return open_store(f"{server.bucket_url('contract')}/{uuid.uuid4().hex}")


def new_memory() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    def open_one(kind: str) -> ObjectStore:
        match kind:
            case "file":
                return open_store((tmp_path / "a store").as_uri())
            case "memory":
                return new_memory()
            case "faulty":
                return FaultyStore(new_memory(), Faults(), seed=0)
            case _:
                return open_on(request.getfixturevalue(f"{kind}_server"), monkeypatch)

    return open_one


@pytest.fixture(params=FOR_BYTES)
def store(request: pytest.FixtureRequest, open_kind: OpenStore) -> ObjectStore:
    return open_kind(request.param)


@pytest.fixture(params=FOR_CREATE_ONLY)
def safe_store(request: pytest.FixtureRequest, open_kind: OpenStore) -> ObjectStore:
    return open_kind(request.param)


def content(store: ObjectStore, key: str) -> bytes:
    return bytes(store.get(key))


class TestBytes:
    @pytest.mark.parametrize("num_bytes", [0, 1, 1000, 3_000_000])
    def test_what_was_put_is_got(self, store: ObjectStore, num_bytes: int) -> None:
        data = np.random.default_rng(0).bytes(num_bytes)
        store.put("folder/an object", data)
        assert content(store, "folder/an object") == data

    def test_large_objects_go_in_parts(self, store: ObjectStore) -> None:
        data = np.random.default_rng(0).integers(0, 255, 33 * 2**20 + 1, dtype=np.uint8)
        store.put("large", data.data)
        assert np.array_equal(np.frombuffer(store.get("large"), np.uint8), data)

    def test_put_overwrites(self, store: ObjectStore) -> None:
        store.put("key", b"a long first content")
        store.put("key", b"second")
        assert content(store, "key") == b"second"

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6, dtype=np.uint8),
            np.arange(6, dtype=np.float32),
            np.arange(6, dtype=np.float16).reshape(2, 3),
            np.zeros((0, 3), dtype=np.float64),
        ],
        ids=lambda array: f"{array.dtype}{array.shape}",
    )
    def test_arrays_are_stored_as_their_bytes(self, store: ObjectStore, array: np.ndarray) -> None:
        store.put("put", array.data)
        store.create("created", array.data)
        store.create("created", array.data)
        assert content(store, "put") == array.tobytes()
        assert content(store, "created") == array.tobytes()

    def test_a_buffer_may_be_reused_after_the_call(self, store: ObjectStore) -> None:
        buffer = bytearray(b"before")
        store.put("put", buffer)
        store.create("created", memoryview(buffer))
        buffer[:] = b"after!"
        assert (content(store, "put"), content(store, "created")) == (b"before", b"before")

    def test_a_view_outlives_its_object(self, store: ObjectStore) -> None:
        store.put("key", b"content")
        view = store.get("key")
        store.put("key", b"changed")
        store.delete(["key"])
        assert bytes(view) == b"content"
        assert view.readonly

    def test_missing_objects_are_not_found(self, store: ObjectStore) -> None:
        store.put("folder/key", b"")
        for key in ("missing", "folder", "folder/missing", "missing/key"):
            with pytest.raises(ObjectNotFound, match=key):
                store.get(key)

    def test_list_is_recursive_sorted_and_ends_at_the_folder(self, store: ObjectStore) -> None:
        for key in ("a/10", "a/9", "a/b/1", "a/b/c/2", "ab/1", "b"):
            store.put(key, b"")
        assert store.list("a") == ["a/10", "a/9", "a/b/1", "a/b/c/2"]
        assert store.list("a/b") == ["a/b/1", "a/b/c/2"]
        assert store.list("") == ["a/10", "a/9", "a/b/1", "a/b/c/2", "ab/1", "b"]
        assert store.list("b") == []
        assert store.list("none") == []

    def test_list_goes_on_behind_a_key(self, store: ObjectStore) -> None:
        for number in range(5):
            store.put(f"events/w/{number:08d}.jsonl", b"")
        assert store.list("events/w", after="events/w/00000002.jsonl") == [
            "events/w/00000003.jsonl",
            "events/w/00000004.jsonl",
        ]
        assert store.list("events/w", after="events/w/00000004.jsonl") == []
        assert store.list("events/w", after="events/w/000000025") == store.list("events/w")[3:]

    def test_folders_are_listed_by_name(self, store: ObjectStore) -> None:
        for key in ("events/w2/1", "events/w1/1", "events/w1/2/3", "events/key", "other/1"):
            store.put(key, b"")
        assert store.list_folders("events") == ["w1", "w2"]
        assert store.list_folders("") == ["events", "other"]
        assert store.list_folders("none") == []

    def test_delete_forgives_what_is_missing(self, store: ObjectStore) -> None:
        for key in ("a/1", "a/2", "a/3"):
            store.put(key, b"")
        store.delete(key for key in ("missing", "a/1", "a/missing", "a/3"))
        assert store.list("a") == ["a/2"]
        store.delete([])

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", "a#1", "a\nb"])
    def test_keys_that_some_store_could_not_hold_are_refused_by_all(self, store: ObjectStore, key: str) -> None:
        for call in (lambda: store.put(key, b""), lambda: store.create(key, b""), lambda: store.get(key)):
            with pytest.raises(InputError, match="cannot be a key"):
                call()


class TestCreateOnly:
    def test_the_second_writer_is_refused(self, safe_store: ObjectStore) -> None:
        safe_store.create("rosters/1", b"first")
        with pytest.raises(ObjectExists, match="rosters/1"):
            safe_store.create("rosters/1", b"second")
        assert content(safe_store, "rosters/1") == b"first"

    def test_the_same_bytes_count_as_written(self, safe_store: ObjectStore) -> None:
        safe_store.create("rosters/1", b"mine")
        safe_store.create("rosters/1", b"mine")

    def test_one_of_eight_racing_threads_wins(self, safe_store: ObjectStore) -> None:
        for race in range(5):
            start = threading.Barrier(8)
            nonces = [uuid.uuid4().bytes for _ in range(8)]

            def wins(nonce: bytes, race: int = race, start: threading.Barrier = start) -> bool:
                start.wait()
                try:
                    safe_store.create(f"races/{race}", nonce)
                except ObjectExists:
                    return False
                return True

            with ThreadPoolExecutor(8) as pool:
                winners = [nonce for nonce, won in zip(nonces, pool.map(wins, nonces), strict=True) if won]
            assert winners == [content(safe_store, f"races/{race}")]

    def test_safe_stores_are_accepted_and_left_clean(self, safe_store: ObjectStore) -> None:
        check_create_only(safe_store)
        assert safe_store.list("") == []

    def test_a_store_where_the_second_writer_wins_is_refused(self, open_kind: OpenStore) -> None:
        unsafe = open_kind("rclone")
        with pytest.raises(UnsafeStore, match=r"two coordinators.*use a store that honours") as refusal:
            check_create_only(unsafe)
        assert unsafe.url in str(refusal.value)
        assert unsafe.list("") == []


class TestOpening:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "run-7",
            "./run-7",
            "/tmp/run-7",
            "file:/tmp/run-7",
            "file://run-7",
            "file://./run-7",
            "file:///",
            "memory://",
            "s3://",
            "s3:///run-7",
            "s3://[bucket/run-7",
            "s3://bucket/run-7?region=x",
            "file:///tmp/run#7",
            "https://bucket.example.com/run-7",
            "ftp://host/run-7",
        ],
    )
    def test_bad_urls_are_refused_with_an_example(self, url: str) -> None:
        with pytest.raises(InputError, match=r"for example .*s3://bucket/run-7") as refusal:
            open_store(url)
        assert repr(url) in str(refusal.value)

    def test_a_folder_is_created_and_seen_by_another_store(self, tmp_path: Path) -> None:
        url = (tmp_path / "new" / "with space").as_uri()
        open_store(url + "/").put("a/b", b"content")
        assert (tmp_path / "new" / "with space" / "a" / "b").read_bytes() == b"content"
        assert content(open_store(url), "a/b") == b"content"
        assert open_store(url + "/").url == url

    def test_a_file_in_the_way_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=r"cannot be opened: .*File exists"):
            open_store((tmp_path / "file").as_uri())

    def test_one_memory_for_each_url(self) -> None:
        url = f"memory://{uuid.uuid4().hex}"
        open_store(url).put("key", b"content")
        assert content(open_store(url + "/"), "key") == b"content"
        assert open_store(url + "2").list("") == []

    def test_an_endpoint_without_scheme_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "localhost:9000")
        with pytest.raises(InputError, match="AWS_ENDPOINT_URL is 'localhost:9000'; it must start with http"):
            open_store("s3://bucket/run-7")

    def test_a_missing_azure_account_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
        with pytest.raises(InputError, match=r"check .* AZURE_STORAGE_ACCOUNT_NAME"):
            open_store("az://container/run-7")


class TestFailures:
    def test_wrong_credentials_are_not_worth_retrying(
        self, rclone_server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rclone_server.bucket_url("contract")
        for name, value in (rclone_server.environment | {"AWS_SECRET_ACCESS_KEY": "something-else"}).items():
            monkeypatch.setenv(name, value)
        refused = open_store("s3://contract/run-7")
        for call in (
            lambda: refused.put("key", b""),
            lambda: refused.create("key", b""),
            lambda: refused.get("key"),
            lambda: refused.list("folder"),
            lambda: refused.delete(["key"]),
        ):
            with pytest.raises(StoreError, match="refused; check AWS_ACCESS_KEY_ID") as error:
                call()
            assert not isinstance(error.value, StoreUnavailable)

    def test_a_missing_bucket_is_named(self, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in moto_server.environment.items():
            monkeypatch.setenv(name, value)
        nowhere = open_store("s3://no-such-bucket/run-7")
        for call in (
            lambda: nowhere.put("key", b""),
            lambda: nowhere.create("key", b""),
            lambda: nowhere.get("key"),
            lambda: nowhere.list("folder"),
        ):
            with pytest.raises(StoreError, match=r"no-such-bucket.*does not exist; create it") as error:
                call()
            assert not isinstance(error.value, StoreUnavailable | ObjectNotFound)

    def test_a_failing_service_is_tried_again_then_reported(self, failing_service: "FailingService") -> None:
        flaky = failing_service.open(num_failures=2)
        assert content(flaky, "key") == b"content"
        assert failing_service.num_requests == 3
        down = failing_service.open(num_failures=1000)
        with pytest.raises(StoreUnavailable, match=r"get of 'key' in s3://bucket/run-7 failed.*503"):
            down.get("key")

    def test_other_threads_run_while_a_request_waits(self, failing_service: "FailingService") -> None:
        slow = failing_service.open(num_failures=0, delay_s=0.5)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(slow.get, "key")
            num_ticks = 0
            while not pending.done():
                time.sleep(0.001)
                num_ticks += 1
        assert bytes(pending.result()) == b"content"
        assert num_ticks > 50

    def test_killed_writers_litter_is_swept(self, tmp_path: Path) -> None:
        store = open_store(tmp_path.as_uri())
        store.put("comm/1/key", b"content")
        old, young, elsewhere = (tmp_path / name for name in ("comm/1/key#1", "comm/1/key#2", "key#1"))
        for staged in (old, young, elsewhere):
            staged.write_bytes(b"half")
        os.utime(old, (0, 0))
        os.utime(elsewhere, (0, 0))
        assert store.list("") == ["comm/1/key"]
        assert sweep(store, "comm") == 1
        assert (old.exists(), young.exists(), elsewhere.exists()) == (False, True, True)
        assert sweep(store, "comm", min_age_s=0) == 1
        assert content(store, "comm/1/key") == b"content"
        assert sweep(store, "none") == 0
        assert sweep(new_memory(), "comm") == 0

    def test_a_forked_child_is_told_instead_of_hanging(self, tmp_path: Path) -> None:
        program = f"""
import os, zooid.store
store = zooid.store.open_store({tmp_path.as_uri()!r})
store.put("key", b"")
if os.fork() == 0:
    try:
        store.get("key")
    except zooid.store.objects.StoreError as error:
        print(error)
else:
    os.wait()
"""
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
        assert "forked" in answer.stdout


class FailingService:
    """An S3 service that answers 503 for a number of requests, then holds one object."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.num_requests += 1
                time.sleep(service.delay_s)
                body = b"" if service.num_requests <= service.num_failures else b"content"
                self.send_response(200 if body else 503)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", '"e"')
                self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._monkeypatch = monkeypatch
        self.num_requests = self.num_failures = 0
        self.delay_s = 0.0

    def open(self, num_failures: int, delay_s: float = 0.0) -> ObjectStore:
        self.num_requests, self.num_failures, self.delay_s = 0, num_failures, delay_s
        credentials = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "something"}
        endpoint = f"http://127.0.0.1:{self.server.server_port}"
        for name, value in ({"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"} | credentials).items():
            self._monkeypatch.setenv(name, value)
        return open_store("s3://bucket/run-7")


@pytest.fixture
def failing_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingService]:
    service = FailingService(monkeypatch)
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield service
    service.server.shutdown()
    thread.join()
    service.server.server_close()


class TestFaults:
    def test_every_kind_fires_at_its_rate_and_is_counted(self) -> None:
        rates = Rates(delay=0.2, delay_s=0.0001, error=0.2, lost_response=0.2)
        store = FaultyStore(new_memory(), Faults.everywhere(rates), seed=1)
        num_raised = 0
        for number in range(300):
            calls: list[Callable[[], object]] = [
                lambda number=number: store.put(f"a/{number}", b"1"),  # type: ignore[misc]
                lambda number=number: store.get(f"a/{number}"),  # type: ignore[misc]
                lambda: store.list("a"),
                lambda number=number: store.delete([f"a/{number}"]),  # type: ignore[misc]
            ]
            for call in calls:
                try:
                    call()
                except StoreUnavailable:
                    num_raised += 1
                except ObjectNotFound:
                    pass
        counts = store.counts
        for operation in ("put", "get", "list", "delete"):
            assert 30 < counts[f"{operation}.delay"] < 90
            assert 30 < counts[f"{operation}.error"] < 90
        assert num_raised == sum(count for name, count in counts.items() if not name.endswith("delay"))

    def test_the_seed_decides(self) -> None:
        def outcomes(seed: int) -> list[bool]:
            store = FaultyStore(new_memory(), Faults(put=Rates(error=0.5)), seed)
            succeeded = []
            for number in range(50):
                try:
                    store.put(f"key/{number % 7}", b"")
                    succeeded.append(True)
                except StoreUnavailable:
                    succeeded.append(False)
            return succeeded

        assert outcomes(1) == outcomes(1) != outcomes(2)

    def test_a_lost_response_leaves_the_object(self) -> None:
        store = FaultyStore(new_memory(), Faults(put=Rates(lost_response=1)), seed=0)
        with pytest.raises(StoreUnavailable, match="response was lost"):
            store.put("key", b"content")
        assert content(store, "key") == b"content"
        assert store.counts == {"put.lost_response": 1}

    def test_a_lost_response_of_create_is_resolved(self) -> None:
        store = FaultyStore(new_memory(), Faults(create=Rates(lost_response=1)), seed=0)
        store.create("key", b"mine")
        with pytest.raises(ObjectExists):
            store.create("key", b"of another")
        assert content(store, "key") == b"mine"
        assert store.counts["create.lost_response"] >= 1

    def test_create_that_cannot_be_resolved_stays_ambiguous(self) -> None:
        store = FaultyStore(new_memory(), Faults(create=Rates(lost_response=1), get=Rates(error=1)), seed=0)
        with pytest.raises(StoreUnavailable):
            store.create("key", b"mine")
        with pytest.raises(StoreUnavailable):
            store.create("key", b"of another")

    def test_create_that_was_not_done_is_reported(self) -> None:
        store = FaultyStore(new_memory(), Faults(create=Rates(error=1)), seed=0)
        with pytest.raises(StoreUnavailable, match="before it was done"):
            store.create("key", b"mine")

    def test_one_winner_under_faults(self) -> None:
        faults = Faults(create=Rates(error=0.3, lost_response=0.3), get=Rates(error=0.2))
        store = FaultyStore(new_memory(), faults, seed=3)

        def wins(race: int, nonce: bytes) -> bool:
            while True:
                try:
                    store.create(f"races/{race}", nonce)
                    return True
                except ObjectExists:
                    return False
                except StoreUnavailable:
                    continue

        with ThreadPoolExecutor(8) as pool:
            for race in range(40):
                assert sum(pool.map(lambda n, race=race: wins(race, n), [uuid.uuid4().bytes for _ in range(8)])) == 1
        assert min(store.counts[name] for name in ("create.error", "create.lost_response", "get.error")) > 5

    def test_impossible_rates_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"`error` is 1.5; it must be from 0 to 1"):
            Rates(error=1.5)
        with pytest.raises(InputError, match="both"):
            Rates(delay=0.5)


class TestWaiting:
    def test_an_object_that_arrives_later_is_returned(self, store: ObjectStore) -> None:
        writer = threading.Timer(0.05, lambda: store.put("late", b"content"))
        writer.start()
        try:
            assert bytes(wait_for(store, "late", timeout_s=10, abort=Abort())) == b"content"
        finally:
            writer.join()

    def test_one_that_does_not_come_is_named(self) -> None:
        began_s = time.monotonic()
        with pytest.raises(CommTimeout, match=r"no 'never' in memory://.* after 0\.[12] s of waiting"):
            wait_for(new_memory(), "never", timeout_s=0.1, abort=Abort())
        assert 0.1 <= time.monotonic() - began_s < 0.5

    def test_an_abort_frees_the_wait_at_once(self, open_kind: OpenStore) -> None:
        for kind in ("memory", "rclone"):
            store, abort = open_kind(kind), Abort()
            set_at_s: list[float] = []

            def free(abort: Abort = abort, set_at_s: list[float] = set_at_s) -> None:
                set_at_s.append(time.monotonic())
                abort.set("a peer is gone")

            timer = threading.Timer(0.3, free)
            timer.start()
            with pytest.raises(CommAborted, match="a peer is gone"):
                wait_for(store, "never", timeout_s=30, abort=abort)
            assert time.monotonic() - set_at_s[0] < 0.1
            timer.join()

    def test_a_store_that_fails_for_a_while_is_waited_for(self) -> None:
        store = FaultyStore(new_memory(), Faults(get=Rates(error=0.7)), seed=4)
        store.put("key", b"content")
        assert bytes(wait_for(store, "key", timeout_s=10, abort=Abort())) == b"content"
        assert store.counts["get.error"] > 0

    def test_a_store_that_goes_on_failing_is_blamed(self) -> None:
        store = FaultyStore(new_memory(), Faults(get=Rates(error=1)), seed=0)
        with pytest.raises(CommTimeout, match="the store fails: injected"):
            wait_for(store, "key", timeout_s=0.05, abort=Abort())

    def test_waiting_asks_seldom(self) -> None:
        counting = FaultyStore(new_memory(), Faults(get=Rates(delay=1, delay_s=1e-9)), seed=0)
        with pytest.raises(CommTimeout):
            wait_for(counting, "never", timeout_s=1, abort=Abort())
        assert 100 < counting.counts["get.delay"] < 350  # in a second, at most every 3 ms


def step(number: int, at_s: float) -> StepCommitted:
    return StepCommitted(at_s=at_s, step=number, epoch=0, loss=1.0, num_samples=8, step_s=0.1)


class TestEvents:
    def test_round_trip_in_order_and_only_once(self, store: ObjectStore) -> None:
        reader = EventReader(store)
        assert reader.read_new() == []
        with EventWriter(store, "coordinator") as coordinator, EventWriter(store, "worker-1") as worker:
            coordinator.write(PhaseStarted(at_s=1.0, phase="train"))
            worker.write(step(0, 2.0))
            worker.write(step(1, 4.0))
            coordinator.write(Metered(at_s=3.0, usd=0.5))
        assert [event.at_s for event in reader.read_new()] == [1.0, 2.0, 3.0, 4.0]
        assert reader.read_new() == []
        with EventWriter(store, "worker-1") as again:
            again.write(step(2, 5.0))
        with EventWriter(store, "a-late-worker") as late:
            late.write(step(3, 6.0))
        assert [event.at_s for event in reader.read_new()] == [5.0, 6.0]
        assert [event.at_s for event in EventReader(store).read_new()] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert store.list("events/worker-1") == ["events/worker-1/00000000.jsonl", "events/worker-1/00000001.jsonl"]

    def test_events_appear_while_the_writer_is_open(self) -> None:
        store = new_memory()
        reader = EventReader(store)
        with EventWriter(store, "worker") as writer:
            for number in range(3):
                writer.write(step(number, float(number)))
                deadline_s = time.monotonic() + 5
                while not (events := reader.read_new()) and time.monotonic() < deadline_s:
                    time.sleep(0.01)
                assert events == [step(number, float(number))]

    def test_nothing_is_lost_or_doubled_by_a_failing_store(self) -> None:
        inner = new_memory()
        rates = Rates(error=0.3, lost_response=0.3)
        faulty = FaultyStore(inner, Faults(put=rates, list=rates, get=rates), seed=5)
        written = [step(number, float(number)) for number in range(40)]
        reader, read = EventReader(faulty), []
        with EventWriter(faulty, "worker") as writer:
            for event in written:
                writer.write(event)
                time.sleep(0.05)
                try:
                    read += reader.read_new()
                except StoreUnavailable:
                    continue
        read += EventReader(inner).read_new()[len(read) :]
        assert read == written
        assert min(faulty.counts[name] for name in ("put.error", "put.lost_response", "get.error", "list.error")) > 0

    def test_a_store_that_goes_on_failing_is_reported_at_close(self, caplog: pytest.LogCaptureFixture) -> None:
        store = FaultyStore(new_memory(), Faults(put=Rates(error=1)), seed=0)
        writer = EventWriter(store, "worker")
        writer.write(step(0, 0.0))
        deadline_s = time.monotonic() + 10
        while not caplog.text and time.monotonic() < deadline_s:
            time.sleep(0.01)
        with pytest.raises(StoreUnavailable, match="injected"):
            writer.close()
        assert "kept and will be tried again" in caplog.text

    def test_the_first_error_of_a_with_block_is_the_one_raised(self, caplog: pytest.LogCaptureFixture) -> None:
        store = FaultyStore(new_memory(), Faults(put=Rates(error=1)), seed=0)

        def fail() -> None:
            with EventWriter(store, "worker") as writer:
                writer.write(step(0, 0.0))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert "are lost" in caplog.text

    def test_a_damaged_object_is_named(self) -> None:
        store = new_memory()
        store.put("events/worker/00000000.jsonl", b"{}\n")
        with pytest.raises(InputError, match=r"events/worker/00000000.jsonl, line 1 is not an event"):
            EventReader(store).read_new()
