"""The file in which users list their own machines and clusters: where they are, their size, their site and price.

[ssh.gpu1]
host = "gpu1.example.org"            # a name that ssh knows; by default the name of the table
python = "/home/me/venv/bin/python"  # an interpreter there that has torch and obstore; by default python3
vcpus = 16                           # asked of the machine if not given, like memory and GPUs
memory = "64 GB"
gpu = "A100"
num_gpus = 4
gpu_memory = "80 GB"
members = 4                          # how many members share the machine; by default one for each GPU, or one
site = "office"                      # machines of one site are close; by default the machine is a site of its own
usd_per_hour = 1.20                  # of the whole machine; by default it costs nothing

[slurm.short]
partition = "short"                  # by default the name of the table
login = "cluster.example.org"        # where Slurm's commands work, over ssh; by default on this machine
python = "~/venv/bin/python"         # an interpreter on the nodes that has torch and obstore; by default python3
options = "--account=abc"            # further options of sbatch
vcpus = 4                            # of each member, and asked of Slurm if not given, like all of the following
memory = "16 GB"
lifetime = "2 h"                     # the time limit of each job
members = 8                          # how many members there may be
gpu = "A100"                         # each member gets one, if `num_gpus` is 1
num_gpus = 1
usd_per_hour = 0.30                  # of each member

[ray.cluster]
address = "ray://head.example.org:10001"  # by default RAY_ADDRESS, or the cluster of which this machine is a node
python = "/opt/venv/bin/python"      # an interpreter on the nodes that has torch and obstore; by default that of Ray
resources = "highmem=1"              # further resources of each member, by their names in the cluster
vcpus = 4                            # of each member, and asked of Ray if not given, like memory, GPUs and members
memory = "16 GB"
members = 8                          # how many members there may be; more than fit now if the cluster grows by itself

[kubernetes.lab]
context = "lab"                      # by default the current one of kubectl
config = "~/.kube/lab.yaml"          # by default the kubeconfig of kubectl
namespace = "training"               # by default that of the context
image = "ghcr.io/me/zooid:1"         # an image with Python and the members' packages
python = "/venv/bin/python"          # the interpreter in it; by default python3
secret = "store"                     # a Secret with variables of members, such as the credentials of their store
service_account = "member"           # by default that of the namespace
node_selector = "pool=spot"          # labels of nodes, as in `pool=spot,gpu=yes`
tolerations = "spot=true:NoSchedule" # taints that members tolerate
user = "1000"                        # the user as whom members run; by default that of the image
vcpus = 4                            # of each member, and memory, too: both are needed
memory = "16 GB"
members = 8                          # how many members there may be
"""

import datetime
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zooid.core.errors import InputError, UnitError
from zooid.core.resources.offer import RENTED_PLATFORMS, Offer
from zooid.core.text import quoted
from zooid.core.units import parse_bytes, parse_duration_s

_SIZES: dict[str, type] = {
    "vcpus": float,
    "memory": str,
    "gpu": str,
    "num_gpus": int,
    "gpu_memory": str,
    "members": int,
    "site": str,
    "usd_per_hour": float,
    "lifetime": str,
    "startup": str,
}
_STARTUP_S = {"ssh": 5.0, "slurm": 10.0, "ray": 10.0, "kubernetes": 30.0}
"""Start-up times if the file has none: round figures for members that find a place at once."""
_SIZED_BY_MEMBER = ("slurm", "ray", "kubernetes")
"""Kinds of places whose sizes and prices are those of one member; those of others are shared by their members."""
_KINDS: dict[str, tuple[str, ...]] = {
    "ssh": ("host", "python", "config"),
    "slurm": ("partition", "login", "python", "config", "options"),
    "ray": ("address", "python", "resources"),
    "kubernetes": (
        "context",
        "config",
        "namespace",
        "image",
        "python",
        "secret",
        "service_account",
        "node_selector",
        "tolerations",
        "user",
    ),
}
"""Kinds of places, and the options of each beside its size."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]*")
"""Names of tables. They become parts of keys and of `ssh.gpu1+gpu2`, the name of a pool."""


@dataclass(frozen=True)
class OwnPlace:
    """A machine or a cluster of the user's own."""

    name: str
    """Name of its offer, such as `ssh.gpu1`."""
    options: dict[str, str]
    """Where it is, as its platform understands it."""
    sizes: dict[str, Any]
    """What the file says about its size, site and price."""

    @property
    def platform(self) -> str:
        return self.name.partition(".")[0]


def own_places(file: Path) -> dict[str, OwnPlace]:
    """Read the file; a missing one lists nothing."""
    try:
        tables = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{file} cannot be read: {quoted(str(error))}; write tables such as [ssh.gpu1]") from error
    places = {}
    for kind, named in tables.items():
        if kind in RENTED_PLATFORMS:  # an account, which `provider_accounts.py` reads
            continue
        if kind not in _KINDS or not isinstance(named, dict):
            raise InputError(f"{file} has {quoted(kind)!r}; give tables of {', '.join(_KINDS)}, such as [ssh.gpu1]")
        for name, fields in named.items():
            places[f"{kind}.{name}"] = _place(file, kind, name, fields)
    return places


def _place(file: Path, kind: str, name: str, fields: Any) -> OwnPlace:
    where = f"[{kind}.{quoted(name)}] in {file}"
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{where} has a name that cannot be used; give one of letters, digits and . _ - @, such as [{kind}.gpu1]: "
            "its address may be anything"
        )
    if not isinstance(fields, dict):
        raise InputError(f"{where} is {quoted(str(fields))!r}; it must be a table")
    known: dict[str, type] = {**dict.fromkeys(_KINDS[kind], str), **_SIZES}
    for field, value in fields.items():
        if field not in known:
            raise InputError(f"{where} has {quoted(field)!r}; it may have {', '.join(known)}")
        wanted = known[field]
        is_right = isinstance(value, (int, float) if wanted is float else wanted) and not isinstance(value, bool)
        if not is_right:
            kinds = {float: "a number", int: "a whole number", str: "a text"}
            raise InputError(f"`{field}` of {where} is {quoted(str(value))!r}; it must be {kinds[wanted]}")
    if "/" in fields.get("site", ""):
        raise InputError(f"`site` of {where} is {quoted(fields['site'])!r}; give a name without /")
    return OwnPlace(
        name=f"{kind}.{name}",
        options={field: fields[field] for field in _KINDS[kind] if field in fields},
        sizes={field: fields[field] for field in _SIZES if field in fields},
    )


def offer_of_place(place: OwnPlace, found: dict[str, Any] | None = None) -> Offer:
    """Return the offer of one member of a place. `found` is what the place says about itself, if the file does not."""
    sizes = dict(place.sizes)
    for field, value in (found or {}).items():
        sizes.setdefault(field, value)
    missing = [field for field in ("vcpus", "memory") if not sizes.get(field)]
    if missing:
        raise InputError(f"the size of {place.name} is not known; give {' and '.join(missing)} in the file of machines")
    num_gpus = int(sizes.get("num_gpus") or 0)
    if place.sizes.get("members", 1) < 1:
        raise InputError(f"`members` of {place.name} is {place.sizes['members']}; give 1 or more, or leave it out")
    num_members = int(sizes.get("members") or 0)
    num_sharing = 1 if place.platform in _SIZED_BY_MEMBER else num_members or num_gpus or 1
    try:
        memory_bytes = _bytes(sizes["memory"])
        return Offer(
            name=place.name,
            platform=place.platform,
            kind="owned",
            market="owned",
            region=str(sizes.get("site", place.name)),
            site=str(sizes.get("site", place.name)),
            vcpus=float(sizes["vcpus"]) / num_sharing,
            memory_bytes=memory_bytes // num_sharing,
            gpu=str(sizes.get("gpu", "")) if num_gpus else "",
            num_gpus=1 if num_gpus else 0,
            gpu_memory_bytes=_bytes(sizes.get("gpu_memory", 0)) if num_gpus else 0,
            max_members=(num_members or None) if place.platform in _SIZED_BY_MEMBER else num_sharing,
            machine_members=num_sharing,
            usd_per_hour=float(sizes.get("usd_per_hour", 0.0)) / num_sharing,
            lifetime_s=parse_duration_s(sizes["lifetime"]) if "lifetime" in sizes else None,
            startup_s=parse_duration_s(sizes["startup"]) if "startup" in sizes else _STARTUP_S[place.platform],
            source="the file of machines",
            date=datetime.date.today().isoformat(),
        )
    except UnitError as error:
        raise InputError(f"{place.name} in the file of machines: {error}") from error


def _bytes(value: str | int) -> int:
    return value if isinstance(value, int) else parse_bytes(value)
