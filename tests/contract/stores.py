"""Stores of every kind, fresh for each test."""

import uuid
from collections.abc import Callable

import pytest

from lab.servers import S3Server
from zooid.store import (
    ObjectStore,
    open_store,
)

OpenStore = Callable[[str], ObjectStore]


def open_on(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A fresh folder of a bucket; the client reads the environment once, when it is opened."""
    with monkeypatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        return open_store(f"{server.bucket_url('contract')}/{uuid.uuid4().hex}")


def new_memory() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


def content(store: ObjectStore, key: str) -> bytes:
    return bytes(store.get(key))
