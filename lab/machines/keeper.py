"""The process that owns a set of machines: starts them, joins them by a switch, and ends them.

A program of its own, so that everything ends even when the calling process is killed: it watches that process, the
machines watch it, and the network lives in its network namespace. Reads one JSON object from its arguments, prints one
when all machines are up, and ends when its input ends or says anything. `machine.py` starts it.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_REMOVAL_TIMEOUT_S = 10.0
_POLL_S = 0.01
_NETWORKS = tuple(f"10.78.{number}" for number in range(256))
FIRST_MACHINE = 10
"""Last number of the first machine's address; the calling process's is 1."""
SWITCH = "switch"
"""Name of the bridge in the keeper's network namespace."""
UPLINK = "outside"
_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--cgroup")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy, of version 1 or 2."""

    type: str
    options: str
    """What to give to mount, so that another mount shows the same hierarchy."""
    mount: str
    own: Path
    """The folder of this process's cgroup."""


def hierarchies() -> list[Hierarchy]:
    """All cgroup hierarchies that are mounted here."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own_paths = {controllers: path for _, controllers, path in lines}
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, kind_and_options = line.partition(" - ")
        mount_root, mount = place.split()[3:5]
        kind, _, given = kind_and_options.split(" ")
        if kind == "cgroup2":
            controllers, options = "", "rw"
        elif kind == "cgroup":
            controllers = next(each for each in own_paths if each and set(each.split(",")) <= set(given.split(",")))
            options = f"none,{controllers}" if controllers.startswith("name=") else controllers
        else:
            continue
        below = os.path.relpath(own_paths[controllers], mount_root)
        found.append(Hierarchy(kind, options, mount, Path(mount) / below))
    return found


@contextmanager
def cgroups(name: str, mounted: list[Hierarchy]) -> Iterator[list[Path]]:
    """Make a cgroup in every hierarchy; remove them, and those that were made inside, at the end."""
    folders = [hierarchy.own / name for hierarchy in mounted]
    try:
        for folder in folders:
            folder.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one of version 1, which then takes no process
                if (folder / file).exists() and (folder.parent / file).exists():
                    (folder / file).write_text((folder.parent / file).read_text())
        yield folders
    finally:
        for folder in folders:
            remove_cgroup(folder)


def remove_cgroup(folder: Path) -> None:
    deadline_s = time.monotonic() + _REMOVAL_TIMEOUT_S
    while folder.exists():
        for current, _, _ in os.walk(folder, topdown=False):
            try:
                os.rmdir(current)
            except OSError:  # its last process is still ending
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)


def run_ip(*arguments: str, prefix: tuple[str, ...] = ()) -> None:
    answer = subprocess.run([*prefix, "ip", *arguments], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)} failed: {answer.stderr.strip()}")


def open_switch(caller_pid: int) -> str:
    """Make the switch and the calling process's link to it; return the first three numbers of the network chosen.

    The caller's device is named after the network, so two sets of machines cannot take the same one.
    """
    enter = ("nsenter", "--target", str(caller_pid), "--net")
    known = subprocess.run([*enter, "ip", "route", "show", "table", "all"], capture_output=True, text=True, check=True)
    run_ip("link", "set", "lo", "up")
    run_ip("link", "add", SWITCH, "type", "bridge")
    run_ip("link", "set", SWITCH, "up")
    for network in _NETWORKS:
        device = "zooid" + network.replace(".", "-")
        if f"{network}." in known.stdout:
            continue
        other_end = ("peer", "name", UPLINK, "netns", str(os.getpid()))
        try:
            run_ip("link", "add", device, "type", "veth", *other_end, prefix=enter)
        except OSError as error:
            if "File exists" in str(error):
                continue
            raise
        run_ip("link", "set", UPLINK, "master", SWITCH, "up")
        run_ip("address", "add", f"{network}.1/24", "dev", device, prefix=enter)
        run_ip("link", "set", device, "up", prefix=enter)
        return network
    raise OSError(f"all networks from {_NETWORKS[0]} to {_NETWORKS[-1]} are taken")


@contextmanager
def booted(environment: dict[str, str], folders: list[Path], port: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start one machine and plug it in; yields the process id of its init, and a process that lives as long."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for folder in folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    boot = str(Path(__file__).with_name("boot.sh"))
    process = subprocess.Popen(
        ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--propagation", "private", "sh", boot],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=prepare,
    )
    init_pid = None
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise OSError(f"the machine {environment['NAME']} did not boot")
        init_pid = int(said)
        run_ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(init_pid))
        run_ip("link", "set", port, "master", SWITCH, "up")
        process.stdin.write("plugged in\n")
        process.stdin.close()
        yield init_pid, process
    finally:
        if init_pid is None:
            process.kill()
        elif process.poll() is None:
            os.kill(init_pid, signal.SIGKILL)  # all that runs there goes with it, and its parent reaps it
        process.wait()


def wait_for_the_end(caller: int) -> None:
    """Wait until the calling process says so, closes its end of the pipe, or dies."""
    poll = select.poll()
    for descriptor in (caller, sys.stdin.fileno()):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    poll.poll()


def main(request: dict[str, Any]) -> None:
    folder = Path(request["folder"])
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        caller = os.pidfd_open(request["caller_pid"])
        network = open_switch(request["caller_pid"])
        stack.callback(run_ip, "link", "delete", UPLINK)  # the caller's end goes with it
        (folder / "root").mkdir()
        print(
            json.dumps({"caller_ip": f"{network}.1", "machines": start_machines(request, network, stack)}), flush=True
        )
        wait_for_the_end(caller)


def start_machines(request: dict[str, Any], network: str, stack: ExitStack) -> dict[str, dict[str, Any]]:
    """Boot all machines side by side, and say where they are."""
    mounted = hierarchies()
    addresses = {name: f"{network}.{number}" for number, name in enumerate(request["names"], start=FIRST_MACHINE)}
    hosts = ["127.0.0.1 localhost", f"{network}.1 {request['caller_name']}"]
    hosts += [f"{address} {name}" for name, address in addresses.items()]
    common = {
        **request["root"],
        "CGROUPS": "\n".join(f"{each.type} {each.options} {each.mount}" for each in mounted),
        "HOSTS": "\n".join(hosts),
    }
    places: dict[str, dict[str, Any]] = {}
    booting = []
    for number, (name, address) in enumerate(addresses.items()):
        folders = stack.enter_context(cgroups(f"{request['mark']}-{name}", mounted))
        port = f"port{number}"
        init_pid, process = stack.enter_context(booted({**common, "NAME": name, "ADDRESS": address}, folders, port))
        booting.append(process)
        files = [str(each / "cgroup.procs") for each in folders]
        places[name] = {"ip": address, "init_pid": init_pid, "port": port, "cgroup_files": files}
    for name, process in zip(places, booting, strict=True):
        assert process.stdout is not None
        if process.stdout.readline() != "up\n":
            raise OSError(f"the machine {name} did not boot")
    return places


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
