"""The laboratory's ssh servers: commands run there, exit statuses come back, and a dead host is noticed.

Agents are started there whatever the user's configuration and the profile on the machine say.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.machines.machine import Machine
from lab.machines.ssh import PROGRAMS, ssh_servers
from lab.waiting import wait_until
from tests.integration.laboratory import machines_or_skip
from zooid.platforms import line_link
from zooid.platforms.line_link import Unreachable
from zooid.platforms.ssh import SshMachine
from zooid.platforms.ssh.agent_link import open_agent

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
    # the shell returns before its child has become `nohup`, and that before it has become `sleep`
    wait_until(lambda: [process.command for process in hosts[1].processes()] == ["sleep 60"])
    assert hosts[0].processes() == []
    assert "sshd" in [process.program for process in hosts[0].all_processes()]


DISTURBING = """
Host *
  RemoteCommand exit 1
  RequestTTY force
  PermitLocalCommand yes
  LocalCommand echo welcome
  RemoteForward 127.0.0.1:22 127.0.0.1:22
  ExitOnForwardFailure yes
"""
SHARED = """
Host *
  ControlMaster auto
  ControlPath {folder}/%n
  ControlPersist yes
"""


def test_an_agent_is_started_whatever_the_user_has_configured(
    hosts: tuple[Machine, ...], client_config: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(client_config.read_text() + DISTURBING)
    hosts[0].run(["ln", "-s", hosts[0].python, "/root/my python"])
    hosts[0].write("/root/.ssh/rc", "printf 'welcome to this machine'")
    link = open_agent(SshMachine(hosts[0].name, "~/my python", str(config)))
    assert link.ask("facts")["host"] == hosts[0].name
    link.close()
    hosts[0].run(["rm", "/root/my python", "/root/.ssh/rc"])


def test_an_agent_that_cannot_be_started_is_told_with_the_reason(
    hosts: tuple[Machine, ...], client_config: Path
) -> None:
    with pytest.raises(Unreachable, match=rf"^{hosts[0].name} cannot be reached: .*/nowhere/python: No such file"):
        open_agent(SshMachine(hosts[0].name, "/nowhere/python", str(client_config)))


def test_a_dead_host_is_noticed_on_a_connection_that_others_have_opened(
    hosts: tuple[Machine, ...], client_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_link, "_PING_S", 0.2)
    monkeypatch.setattr(line_link, "_SILENCE_S", 2.0)
    config = tmp_path / "config"
    config.write_text(client_config.read_text() + SHARED.format(folder=tmp_path))
    assert ssh(config, hosts[0], "true").returncode == 0
    link = open_agent(SshMachine(hosts[0].name, hosts[0].python, str(config)))
    assert (tmp_path / hosts[0].name).exists()
    hosts[0].unplug()
    wait_until(lambda: not link.is_open, timeout_s=20.0)
    assert str(link.broken()) == f"{hosts[0].name} cannot be reached: it has been silent for 2 s"
    link.close()
    hosts[0].plug_in()
    subprocess.run(["ssh", "-F", str(config), "-O", "exit", hosts[0].name], capture_output=True, check=True)
    wait_until(lambda: hosts[0].processes() == [])


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
