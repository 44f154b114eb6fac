"""The table of a profile says what was measured, and fits a screen however deep the model is."""

import io
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from tests.unit.profiles import gpu, layer, link, profile
from zooid.core.plans.profile import Profile, Spread, TiedParameter
from zooid.core.units import format_bytes
from zooid.predictor import stage_memory_bytes
from zooid.report import offers_table, profile_table
from zooid.report.profile.rows import MAX_ROWS, grouped

MB = 10**6


def printed(made: Profile) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(profile_table(made))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"│ {name} ")]
    return [cell.strip() for cell in line.strip("│").split("│")]


def of_layers(names: list[str], **changed: Any) -> Profile:
    one = layer(0.3, out_bytes=2 * MB, parameter_bytes=5 * MB)
    return profile([structs.replace(one, name=name) for name in names], **changed)


def blocks(count: int) -> list[str]:
    inner = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    return ["wte", *(f"h.{block}.{part}" for block in range(count) for part in inner), "ln_f", "head"]


def test_rows_are_those_of_the_largest_grain() -> None:
    text = printed(of_layers(["first", "last"], job="digits"))
    assert "digits on cpu, grains of 4 samples" in text
    assert cells(text, "first") == ["first", "400ms", "800ms", "5 MB", "40 B", "8 MB"]
    assert cells(text, "last") == ["last", "400ms", "800ms", "5 MB", "40 B", "–"]
    assert cells(text, "all") == ["all", "800ms", "1.6s", "10 MB", "80 B", "–"]


def test_the_caption_has_knee_spread_links_and_ties() -> None:
    tied = (TiedParameter(name="first.weight", num_bytes=4 * MB, layers=(0, 1)),)
    spread = Spread(of_steps=0.0123, of_runs=0.034)
    made = of_layers(["first", "last"], knee=2, largest_grain=4, spread=spread, tied=tied, links=(link(20e6, 0.003),))
    text = printed(made)
    assert "measured on cpu, 1 thread of 2 cores, 2025-01-01" in text
    assert "batch 8, largest grain 4, knee 2" in text
    assert "spread 1.2 % between steps, 3.4 % between runs" in text
    assert "here → store 20 MB/s, 3ms a request" in text
    assert "first.weight (4 MB) is tied: layers 0 and 1" in text
    assert cells(text, "all")[3] == "6 MB"


def test_the_caption_has_copies_where_there_are_any() -> None:
    assert "pinned copies 55 GB/s to the device, 52 GB/s to the host" in printed(of_layers(["only"], device=gpu()))
    assert "copies" not in printed(of_layers(["only"]))


def test_offers_stand_side_by_side() -> None:
    fast = of_layers(["first", "last"], job="digits", knee=2, runtime_bytes=30 * MB)
    slow = profile([layer(1.0)], job="digits", knee=1, largest_grain=4, estimated_from="aarch64")
    console = Console(width=80, file=io.StringIO())
    console.print(offers_table({"aws.lambda.1024": fast, "local": slow}))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "digits on 2 offers" in text
    memory = format_bytes(stage_memory_bytes(fast, 0, 2, grain_size=2, grains_kept=1))
    assert cells(text, "aws.lambda.1024") == ["aws.lambda.1024", "600ms", "2", "1.2s", memory, "8", "10"]
    assert cells(text, "ESTIMATE: local")[1:4] == ["1s", "1", "1s"]


def test_an_estimate_is_marked() -> None:
    text = printed(of_layers(["only"], estimated_from="aarch64"))
    assert "ESTIMATE: made on cpu" in text
    assert "estimated for cpu, 1 thread of 2 cores from aarch64" in text
    assert "ESTIMATE" not in printed(of_layers(["only"]))


def test_names_are_not_read_as_markup() -> None:
    text = printed(of_layers(["[bold]"], job="[red]"))
    assert cells(text, "[bold]")[0] == "[bold]"
    assert "[red] on cpu" in text


def test_many_layers_are_put_together_by_block() -> None:
    text = printed(of_layers(blocks(12)))
    assert cells(text, "h.3") == ["h.3", "19 to 24", "2.4s", "4.8s", "30 MB", "240 B", "8 MB"]
    assert cells(text, "wte")[1] == "0"
    assert cells(text, "all")[1] == "0 to 74"
    assert "75 layers, grouped by the beginnings of their names" in text


class TestGrouping:
    def test_few_layers_stay_by_themselves(self) -> None:
        names = [f"layer.{number}" for number in range(MAX_ROWS)]
        assert [group.name for group in grouped(names)] == names

    def test_more_blocks_than_rows_are_put_together_in_runs(self) -> None:
        groups = grouped(blocks(60))
        assert [group.name for group in groups[:3]] == ["wte", "h.0 … 1", "h.2 … 3"]
        assert [group.name for group in groups[-2:]] == ["ln_f", "head"]
        assert groups[1].num_layers == 12

    def test_layers_that_begin_in_one_module_are_told_apart_by_their_numbers(self) -> None:
        groups = grouped([f"net#{number}" for number in range(1, 101)])
        assert groups[0].name == "net#1 … #3"

    @pytest.mark.parametrize("num_layers", [41, 79, 80, 81, 200, 1000])
    @pytest.mark.parametrize("name", ["{0}", "deep.er.{0}.weight", "a.{1}.b.{0}.c", "x{0}", "a.b.c.d.{0}"])
    def test_groups_fit_a_screen_and_hold_every_layer_once(self, num_layers: int, name: str) -> None:
        groups = grouped([name.format(number, number // 3) for number in range(num_layers)])
        assert 10 <= len(groups) <= MAX_ROWS
        assert len({group.name for group in groups}) == len(groups)
        ends = [0, *(group.end_layer for group in groups)]
        assert ends[:-1] == [group.first_layer for group in groups]
        assert ends[-1] == num_layers

    def test_names_that_are_all_the_same_fit_too(self) -> None:
        assert len(grouped(["model"] * 100)) <= MAX_ROWS
