"""The laboratory's ssh servers: commands run there, exit statuses come back, and a dead host is noticed."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.machines.machine import Machine
from lab.machines.ssh import PROGRAMS, ssh_servers
from tests.integration.laboratory import machines_or_skip

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Machine, ...]]:
    with machines_or_skip(3, *PROGRAMS) as made:
        yield made


@pytest.fixture(scope="module")
def client_config(hosts: tuple[Machine, ...]) -> Iterator[Path]:
    with ssh_servers(hosts) as file:
        yield file


def ssh(config: Path, host: Machine, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    line = ["ssh", "-F", str(config), "-o", "BatchMode=yes", *options, host.name, command]
    return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20)


def test_a_command_runs_there_and_its_exit_status_comes_back(hosts: tuple[Machine, ...], client_config: Path) -> None:
    for status, host in enumerate(hosts):
        answer = ssh(client_config, host, f"hostname; exit {status}")
        assert (answer.stdout, answer.returncode) == (f"{host.name}\n", status)


def test_only_the_known_key_of_a_host_is_accepted(hosts: tuple[Machine, ...], client_config: Path) -> None:
    answer = ssh(client_config, hosts[0], "true", "-o", "UserKnownHostsFile=/dev/null")
    assert answer.returncode == 255
    assert "Host key verification failed" in answer.stderr


def test_what_outlives_its_session_is_listed_and_the_server_is_not(
    hosts: tuple[Machine, ...], client_config: Path
) -> None:
    assert ssh(client_config, hosts[1], "nohup sleep 60 < /dev/null > /dev/null 2>&1 &").returncode == 0
    assert [process.command for process in hosts[1].processes()] == ["sleep 60"]
    assert hosts[0].processes() == []
    assert "sshd" in [process.program for process in hosts[0].all_processes()]


def test_a_dead_host_ends_a_session_in_the_time_that_the_client_allows(
    hosts: tuple[Machine, ...], client_config: Path
) -> None:
    patience = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=1"]
    command = ["ssh", "-F", str(client_config), *patience, hosts[2].name, "echo begun; sleep 60"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == b"begun\n"
        hosts[2].power_off()
        assert session.wait(timeout=20) == 255
    assert ssh(client_config, hosts[2], "true", "-o", "ConnectTimeout=1").returncode == 255
