"""What every object store must do, over each kind there is."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.contract.stores import OpenStore, content
from zooid.core.errors import (
    InputError,
    ObjectExists,
    ObjectNotFound,
    UnsafeStore,
)
from zooid.store import (
    ObjectStore,
    check_create_only,
)


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
        assert b"".join(store.stream("large")) == data.tobytes()

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
            with pytest.raises(ObjectNotFound, match=key):
                list(store.stream(key))

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
