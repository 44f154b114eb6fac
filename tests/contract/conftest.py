"""Stores that the contract suites run against: one server of each kind for the whole session, a fresh folder each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.faults import Faults, FaultyStore
from lab.servers import S3Server, moto_s3, rclone_s3
from tests.contract.groups import TRANSPORTS, Opener, OpenRanks
from tests.contract.stores import OpenStore, new_memory, open_on
from zooid.store import ObjectStore, open_store

FOR_BYTES = ["file", "memory", "rclone", "moto", "faulty"]
FOR_CREATE_ONLY = ["file", "memory", "moto", "faulty"]


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[S3Server]:
    with rclone_s3() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with moto_s3() as server:
        yield server


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


@pytest.fixture(params=TRANSPORTS)
def open_ranks(request: pytest.FixtureRequest, tmp_path: Path) -> OpenRanks:
    return Opener(request.param, tmp_path)
