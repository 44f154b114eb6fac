"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-stage", action="store_true", help="try every stage of every specimen, in minutes, instead of a part"
    )
    parser.addoption(
        "--every-layout", action="store_true", help="try every model in every layout, in minutes, instead of a part"
    )
