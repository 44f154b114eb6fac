"""Machines that are alike become one offer."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from zooid.catalog.machines_file import OwnPlace, offer_of_place
from zooid.coordinator.plans.machine_pools import machines_of, pooled
from zooid.coordinator.plans.markets import offers_named
from zooid.coordinator.plans.offer_names import offers_to_start
from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer


def a_machine(name: str, **sizes: Any) -> Offer:
    given = {"vcpus": 8.0, "memory": "64 GB", "members": 2, "site": "office", **sizes}
    return offer_of_place(OwnPlace(f"ssh.{name}", {}, given))


def test_alike_machines_are_one_offer() -> None:
    [pool] = pooled([a_machine("a"), a_machine("b", memory="63 GB"), a_machine("c")])
    assert (pool.name, pool.max_members, pool.machine_members) == ("ssh.a+b+c", 6, 2)
    assert (pool.vcpus, pool.memory_bytes) == (4.0, 63 * 10**9 // 2), "what each member has at least"
    assert machines_of(pool.name) == ["ssh.a", "ssh.b", "ssh.c"]


@pytest.mark.parametrize(
    "other",
    [{"site": "lab"}, {"memory": "48 GB"}, {"vcpus": 4.0}, {"usd_per_hour": 0.5}, {"members": 1}, {"lifetime": "1 h"}],
)
def test_others_stay_apart(other: dict[str, Any]) -> None:
    offers = [a_machine("a"), a_machine("b", **other)]
    assert pooled(offers) == offers


def test_a_machine_that_is_named_twice_counts_once() -> None:
    assert pooled([a_machine("a"), a_machine("a")]) == [a_machine("a")]


def test_clusters_are_not_joined() -> None:
    cluster = structs.replace(a_machine("a"), name="slurm.short", platform="slurm")
    assert pooled([cluster, structs.replace(cluster, name="slurm.long")])[1].name == "slurm.long"


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = 'vcpus = 8\nmemory = "64 GB"\n'
    tables = [
        *(f'[ssh.{name}]\nsite = "office"\n{sizes}' for name in "ab"),
        f"[ssh.c]\n{sizes}",
        f"[slurm.short]\nlifetime = '1 h'\n{sizes}",
    ]
    (tmp_path / "machines.toml").write_text("\n".join(tables))
    monkeypatch.setenv("ZOOID_MACHINES", str(tmp_path / "machines.toml"))


@pytest.mark.usefixtures("listed")
def test_names_and_their_beginnings_mean_pools() -> None:
    assert [offer.name for offer in offers_to_start(["ssh"])] == ["ssh.a+b", "ssh.c"]
    assert [offer.name for offer in offers_to_start(["ssh.b", "ssh.a", "slurm"])] == ["ssh.b+a", "slurm.short"]
    assert [offer.name for offer in offers_to_start(["ssh.a+b"])] == ["ssh.a+b"]
    assert [offer.name for offer in offers_named(["ssh", "local"])] == ["ssh.a+b", "ssh.c", "local"]


@pytest.mark.usefixtures("listed")
def test_a_pool_of_different_machines_is_rejected() -> None:
    with pytest.raises(InputError, match=r"different sites, sizes or prices; .*: --on ssh\.a --on ssh\.c$"):
        offers_to_start(["ssh.a+c"])


def test_a_site_has_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machines.toml").write_text('[ssh.a]\nsite = "office/floor"\n')
    monkeypatch.setenv("ZOOID_MACHINES", str(tmp_path / "machines.toml"))
    with pytest.raises(InputError, match=r"`site` of \[ssh\.a\] in .* is 'office/floor'; give a name without /"):
        offers_to_start(["ssh.a"])
