"""Options of a group: read from a URL, and refused before anything starts where they make no sense."""

from typing import Any, get_args

import pytest
from torch import distributed as dist

from zooid.comm import Options
from zooid.core.errors import InputError
from zooid.core.plans.codec_sizes import CODECS
from zooid.core.plans.plan import AllReduceName, OwnTransportName

URL = "s3://bucket/run-7"


def test_what_a_url_says_is_what_is_meant() -> None:
    query = {
        "transport": "tcp",
        "all_reduce": "ring",
        "codec": "int8",
        "num_streams": "4",
        "address": "10.0.0.7",
    }
    wanted = Options(transport="tcp", all_reduce="ring", codec="int8", num_streams=4, address="10.0.0.7")
    assert Options.from_query(query, URL) == wanted


def test_without_options_nothing_is_lost_and_nothing_but_the_store_is_needed() -> None:
    options = Options.from_query({}, URL)
    assert options == Options()
    assert (options.transport, options.all_reduce, options.codec) == ("store", "auto", "none")


@pytest.mark.parametrize(
    ("name", "values"),
    [("transport", get_args(OwnTransportName)), ("all_reduce", get_args(AllReduceName)), ("codec", CODECS)],
)
def test_every_name_is_taken_and_others_are_refused_with_a_list(name: str, values: tuple[str, ...]) -> None:
    for value in values:
        assert getattr(Options.from_query({name: value}, URL), name) == value
    with pytest.raises(InputError, match=f"`{name}` is 'smoke'; it must be one of {', '.join(values)}"):
        Options.from_query({name: "smoke"}, URL)


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    why = f"'{URL}' has the option 'tranport'; there are address, all_reduce, codec, listen, num_streams, transport"
    with pytest.raises(InputError, match=why):
        Options.from_query({"tranport": "tcp"}, URL)


@pytest.mark.parametrize("given", ["many", "-1", "2.5", ""])
def test_a_number_of_streams_is_a_number(given: str) -> None:
    with pytest.raises(InputError, match=f"`num_streams` in '{URL}' is '{given}'; it must be a number"):
        Options.from_query({"num_streams": given}, URL)


@pytest.mark.parametrize("num_streams", [0, -3, 65])
def test_there_are_limits_to_streams(num_streams: int) -> None:
    with pytest.raises(InputError, match=f"`num_streams` is {num_streams}; it must be from 1 to 64"):
        Options(num_streams=num_streams)


def meet(url: str, **others: Any) -> None:
    """As init_process_group does."""
    next(dist.rendezvous(url, **others))  # type: ignore[attr-defined]  # exported, but not in its __all__


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("rank=0&world_size=2&smoke=1", "has the option 'smoke'; there are"),
        ("rank=0&world_size=2&codec=zip", "`codec` is 'zip'; it must be one of none, fp16, bf16, int8"),
        ("rank=2&world_size=2", "rank 2 is not in a world of 2; ranks begin at 0"),
        ("rank=-1&world_size=2", "rank -1 is not in a world of 2"),
        ("world_size=2", "give init_process_group a rank, or set RANK, as torchrun does"),
        ("rank=1", "give init_process_group a world_size, or set WORLD_SIZE, as torchrun does"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_before_anything_is_sent(
    query: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InputError, match=why):
        meet(f"{URL}?{query}")


def test_the_options_of_a_file_are_checked_too(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="`all_reduce` is 'quick'; it must be one of auto, exchange"):
        meet(f"file://{tmp_path}/meeting?all_reduce=quick", rank=0, world_size=1)
    assert not (tmp_path / "meeting").exists()


def test_options_of_another_backend_are_refused(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"pg_options is a _Options; the backend takes zooid\.comm\.Options"):
        dist.init_process_group(
            "zooid",
            init_method=f"file://{tmp_path}/meeting",
            rank=0,
            world_size=1,
            pg_options=dist.ProcessGroupGloo._Options(),  # type: ignore[attr-defined]  # the stub lacks it
        )
    assert not dist.is_initialized()
