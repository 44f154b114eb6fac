"""The file of machines, as the documents show it."""

import re
from pathlib import Path

import pytest

from zooid.catalog import machines_file
from zooid.catalog.machines_file import offer_of_place, own_places
from zooid.core.errors import InputError
from zooid.core.resources.offer import OWN_PLATFORMS

PAGE = (Path(__file__).parents[2] / "docs" / "platforms.md").read_text()
EXAMPLES = {
    "its own description": (machines_file.__doc__ or "").partition("\n\n")[2],
    "the page": "\n".join(re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_can_be_read(tmp_path: Path, example: str) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(EXAMPLES[example])
    places = own_places(file)
    assert {"ssh", "slurm", "ray"} <= {place.platform for place in places.values()} <= set(OWN_PLATFORMS)
    for place in places.values():
        offer = offer_of_place(place, {"vcpus": 2.0, "memory": 2**30})
        assert (offer.platform, offer.is_elsewhere, offer.kind) == (place.platform, True, "owned")


def test_members_of_a_machine_share_it_and_those_of_a_cluster_have_their_own_size(tmp_path: Path) -> None:
    file = tmp_path / "machines.toml"
    size = 'vcpus = 8\nmemory = "16 GB"\nmembers = 4\nusd_per_hour = 1.0\n'
    file.write_text(f"[ssh.a]\n{size}[slurm.b]\n{size}[ray.c]\n{size}[kubernetes.d]\n{size}")
    found = [offer_of_place(place) for place in own_places(file).values()]
    assert [(offer.vcpus, offer.usd_per_hour, offer.max_members) for offer in found] == [
        (2.0, 0.25, 4),
        (8.0, 1.0, 4),
        (8.0, 1.0, 4),
        (8.0, 1.0, 4),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[aws.a]\n", "has 'aws'; give tables of ssh, slurm, ray, kubernetes, such as"),
        ("[ray.a]\nhost = 'b'\n", "has 'host'; it may have address, python, resources, vcpus"),
        ("[ray.a]\nvcpus = 'many'\n", "is 'many'; it must be a number"),
        ("[ray\n", "cannot be read"),
        ('[ssh."gpu 1"]\nhost = "gpu1"\n', r"\[ssh.gpu 1\] in .* has a name that cannot be used; give one of letters"),
        ('[ssh."gpu1+gpu2"]\n', "has a name that cannot be used"),
        ('[slurm."-o"]\n', "has a name that cannot be used"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        own_places(file)
