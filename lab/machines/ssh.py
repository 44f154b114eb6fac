"""OpenSSH servers on the laboratory's machines, with keys of their own.

They keep OpenSSH's defaults, as most machines do: at most 10 connections at a time may still be logging in, before
some are refused at random (MaxStartups), and one connection carries at most 10 sessions (MaxSessions).
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.machines.machine import Machine, MachineFailed

PROGRAMS = ("ssh", "sshd", "ssh-keygen")
"""What must be installed."""
PORT = 22
_SERVER_PROGRAMS = ("sshd", "sshd-session", "sshd-auth")
"""Before version 9.8, one program is all three."""
_FOLDER = "/run/ssh"
_PID_FILE = "/run/sshd.pid"
_START_TIMEOUT_S = 10.0
_POLL_S = 0.005

_SERVER_CONFIG = f"""
Port {PORT}
HostKey {_FOLDER}/host_key
AuthorizedKeysFile {_FOLDER}/authorized_keys
PidFile {_PID_FILE}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
Subsystem sftp internal-sftp
"""
_CLIENT_CONFIG = """
Host {name}
  HostName {address}
  Port {port}
  User root
  IdentityFile {identity}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  StrictHostKeyChecking yes
"""


@contextmanager
def ssh_servers(machines: Sequence[Machine]) -> Iterator[Path]:
    """Start an sshd on every machine; yields a configuration with which `ssh -F FILE NAME` logs in as root.

    It works on the calling process's side. The keys lie beside it, in the machines' temporary folder.
    """
    folder = machines[0].folder / "ssh"
    folder.mkdir()
    identity, known_hosts = folder / "identity", folder / "known_hosts"
    public_key = _make_key(identity)
    host_lines, client_config = [], ""
    for machine in machines:
        host_key = folder / f"host-{machine.name}"
        host_lines.append(f"{machine.name},{machine.address} {_make_key(host_key)}")
        client_config += _CLIENT_CONFIG.format(
            name=machine.name, address=machine.address, port=PORT, identity=identity, known_hosts=known_hosts
        )
        machine.write(f"{_FOLDER}/host_key", host_key.read_bytes(), mode=0o600)
        machine.write(f"{_FOLDER}/authorized_keys", public_key)
        machine.write(f"{_FOLDER}/sshd_config", _SERVER_CONFIG)
        machine.add_daemons(*_SERVER_PROGRAMS)
        machine.run(["sh", "-c", f"mkdir -p /run/sshd && /usr/sbin/sshd -f {_FOLDER}/sshd_config -E /var/log/sshd.log"])
    known_hosts.write_text("".join(host_lines))
    config = folder / "config"
    config.write_text(client_config)
    for machine in machines:
        _wait_until_it_answers(machine)
    try:
        yield config
    finally:
        for machine in machines:
            if machine.is_on:
                machine.run(["sh", "-c", f"kill $(cat {_PID_FILE})"], check=False)


def _make_key(path: Path) -> str:
    """Make a key pair without a passphrase; return the line that is its public part."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path.with_name(f"{path.name}.pub").read_text()


def _wait_until_it_answers(machine: Machine) -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with socket.create_connection((machine.address, PORT), timeout=_START_TIMEOUT_S) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except ConnectionError:
            pass
        if time.monotonic() > deadline_s:
            raise MachineFailed(f"sshd on {machine.name} did not start: {machine.read('/var/log/sshd.log').strip()}")
        time.sleep(_POLL_S)
