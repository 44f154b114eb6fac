"""What stores refuse, and how their failures are told apart."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lab.servers import S3Server
from tests.contract.stores import content, new_memory
from zooid.core.errors import (
    InputError,
    ObjectNotFound,
    StoreError,
    StoreUnavailable,
)
from zooid.store import (
    ObjectStore,
    open_store,
    sweep,
)


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
        assert repr(url.replace("?region=x", "?…")) in str(refusal.value)

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
            with pytest.raises(StoreError, match="forbidden; check AWS_ACCESS_KEY_ID") as error:
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

    def test_a_failing_service_is_tried_again_then_reported(
        self, failing_service: "FailingService", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flaky = failing_service.open(num_failures=2)
        assert content(flaky, "key") == b"content"
        assert failing_service.num_requests == 3
        monkeypatch.setenv("ZOOID_STORE_PATIENCE", "1")
        down = failing_service.open(num_failures=10**6)
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
