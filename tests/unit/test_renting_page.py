"""The tables of accounts on the page about renting are ones that zooid reads."""

import re
from pathlib import Path

import pytest

from zooid.catalog.provider_accounts import accounts
from zooid.core.resources.offer import RENTED_PLATFORMS

PAGE = (Path(__file__).parents[2] / "docs" / "renting.md").read_text()
TABLES = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_can_be_read(tmp_path: Path, table: str) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(table)
    named = re.findall(r"^\[(\w+)\]$", table, re.MULTILINE)
    read = accounts(file)
    assert [name for name in named if name in RENTED_PLATFORMS and not read[name].options] == []


def test_azure_and_cloud_run_have_a_table() -> None:
    assert {"azure_container", "azure_job", "cloud_run"} <= set(re.findall(r"^\[(\w+)\]$", PAGE, re.MULTILINE))
