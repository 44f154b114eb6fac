"""Servers that the contract suites run against: one of each for the whole session."""

from collections.abc import Iterator

import pytest

from benchmarks.lab.servers import S3Server, moto_s3, rclone_s3


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[S3Server]:
    with rclone_s3() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with moto_s3() as server:
        yield server
