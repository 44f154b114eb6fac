"""Pages show every layer with right numbers, whatever it is called, and load nothing from elsewhere."""

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.unit.profiles import device, gpu, layer, link, profile
from zooid.core.errors import InputError
from zooid.core.files import replaced_whole
from zooid.core.plans.profile import Bytes, LayerProfile, Profile, Spread, TiedParameter
from zooid.report import profile_page, write_page

MB = 10**6
_WITHOUT_END = ("meta", "input")


class Page(HTMLParser):
    """A page as a browser reads it: the elements in order, each as its tag, its attributes and the text in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._texts: list[str] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _WITHOUT_END:
            self._open.append(len(self.elements))
        self.elements.append((tag, dict(attrs)))
        self._texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for number in self._open:
            self._texts[number] += data

    def texts(self, wanted: str) -> list[str]:
        """Of all elements with this tag; of the inner ones, too."""
        pairs = zip(self.elements, self._texts, strict=True)
        return [" ".join(text.split()) for (tag, _), text in pairs if tag == wanted]

    @property
    def picture(self) -> dict[str, Any]:
        [number] = [number for number, (_, attributes) in enumerate(self.elements) if attributes.get("id") == "data"]
        picture: dict[str, Any] = json.loads(self._texts[number])
        return picture


def read(made: Profile) -> Page:
    return Page(profile_page(made))


def a_layer(name: str, **changed: Any) -> LayerProfile:
    """0.1 s forward and 0.2 s backward for each sample; 2 MB a sample to the next layer."""
    return structs.replace(layer(0.3, out_bytes=2 * MB, parameter_bytes=5 * MB), name=name, **changed)


def rows(card: dict[str, Any]) -> dict[str, str]:
    return dict(card["rows"])


@pytest.mark.parametrize("num_layers", [1, 3, 200])
def test_every_layer_has_a_row_and_a_card(num_layers: int) -> None:
    names = [f"encoder.layer.{number}.attention.output.dense" for number in range(num_layers)]
    picture = read(profile([a_layer(name) for name in names])).picture
    assert [name.rpartition("layer")[2] for name in picture["names"]] == [name.rpartition("layer")[2] for name in names]
    assert len(picture["grains"]) == 3
    for grain in picture["grains"]:
        assert [card["name"] for card in grain["cards"]] == names
        assert all(len(trace["x"]) == num_layers for trace in grain["traces"])


def test_numbers_are_those_of_the_profile_at_each_grain_size() -> None:
    layers = [
        a_layer("first", activations=Bytes(per_sample=3 * MB, fixed=MB), crowded_points=layer(0.6).points),
        a_layer("last", boundary=Bytes(), buffer_bytes=1234),
    ]
    page = read(profile(layers))
    assert page.texts("label")[:3] == ["1", "2", "4"]
    *_, grain = page.picture["grains"]
    forward, backward, own, tied, kept, cut = grain["traces"]
    assert forward["x"] == pytest.approx([0.4, 0.4])
    assert backward["x"] == pytest.approx([0.8, 0.8])
    assert backward["base"] == forward["x"]
    assert backward["text"] == ["1.2s", "1.2s"]
    assert (own["x"], tied["x"]) == ([5 * MB, 5 * MB], [0, 0])
    assert (kept["x"], kept["text"]) == ([13 * MB, 40], ["13 MB", "40 B"])
    assert (cut["x"], cut["text"]) == ([8 * MB, 0], ["8 MB", "–"])
    assert grain["sums"] == {
        "forward": "800ms",
        "backward": "1.6s",
        "parameters": "10 MB",
        "kept": "13 MB",
        "cut": "8 MB",
    }
    first, last = grain["cards"]
    assert rows(first)["forward"] == "400ms"
    assert rows(first)["forward, all cores busy"] == "800ms"
    assert rows(first)["activations kept"] == "13 MB (13,000,000 B)"
    assert rows(first)["to the next layer"] == "8 MB (8,000,000 B)"
    assert rows(last)["buffers"] == "1.234 kB (1,234 B)"
    assert rows(last)["to the next layer"] == "–"
    assert "forward, all cores busy" not in rows(last)


def test_axes_reach_beyond_the_longest_bar_and_have_round_ticks() -> None:
    smallest = read(profile([a_layer("only")])).picture["grains"][0]
    time, parameters, *_ = smallest["axes"]
    assert time["labels"] == ["0ms", "200ms"]
    assert time["range"][1] > 0.3
    assert parameters["labels"] == ["0 B", "5 MB"]


def test_the_header_says_what_was_measured_where_and_when() -> None:
    made = profile(
        [a_layer("only")],
        job="digits",
        date="2026-11-02",
        batch_size=256,
        knee=16,
        largest_grain=128,
        spread=Spread(of_steps=0.0123, of_runs=0.034),
        links=(link(20e6, 0.003),),
    )
    page = read(made)
    header = page.texts("header")[0]
    assert page.texts("h1") == ["digits"]
    for words in (
        "measured on cpu, 1 thread of 2 cores, 2026-11-02",
        "256 samples",
        "16 samples",
        "128 samples",
        "1.2 % between steps",
        "3.4 % between runs",
        "here → store",
        "20 MB/s",
        "3ms a request",
    ):
        assert words in header
    assert "ESTIMATE" not in header


def test_the_header_has_the_rates_of_copies_where_there_are_any() -> None:
    header = read(profile([a_layer("only")], device=gpu())).texts("header")[0]
    assert "pinned copies55 GB/s to the device52 GB/s to the host" in header.replace(" pinned", "pinned")
    assert "copies" not in read(profile([a_layer("only")])).texts("header")[0]


def test_an_estimate_is_marked_in_the_header_and_in_every_title() -> None:
    page = read(profile([a_layer("only")], estimated_from="aarch64", device=device()))
    titles = page.texts("title") + page.texts("h1") + page.texts("h2")
    assert len(titles) == 6
    assert all("ESTIMATE" in title for title in titles)
    assert "estimated for cpu, 1 thread of 2 cores from aarch64" in page.texts("header")[0]


def test_tied_parameters_are_listed_and_hatched() -> None:
    layers = [a_layer("embed"), a_layer("block"), a_layer("head")]
    tie = TiedParameter(name="embed.weight", num_bytes=4 * MB, layers=(0, 2))
    page = read(profile(layers, tied=(tie,)))
    assert page.texts("li") == ["embed.weight 4 MB (4,000,000 B), layers 0 and 2"]
    grain = page.picture["grains"][0]
    own, tied = grain["traces"][2:4]
    assert own["x"] == [MB, 5 * MB, MB]
    assert (tied["base"], tied["x"]) == (own["x"], [4 * MB, 0, 4 * MB])
    assert tied["marker"]["pattern"]["shape"] == "/"
    assert grain["sums"]["parameters"] == "11 MB"
    assert "tied: embed.weight" in rows(grain["cards"][2])
    assert "tied: embed.weight" not in rows(grain["cards"][1])


def test_names_are_text_whatever_they_contain() -> None:
    script = "</script><script>alert('$job')</script>"
    plain = read(profile([a_layer("first"), a_layer("second")], tied=(tied_by("name"),)))
    odd = read(profile([a_layer("<b>"), a_layer(script)], job=f"<i>{script}", tied=(tied_by("<u>&"),)))
    assert [tag for tag, _ in odd.elements] == [tag for tag, _ in plain.elements]
    assert odd.texts("h1") == [f"<i>{script}"]
    assert odd.texts("code") == ["<u>&"]
    assert [card["name"] for card in odd.picture["grains"][0]["cards"]] == ["<b>", script]
    assert odd.picture["names"][0] == "&lt;b&gt;"


def tied_by(name: str) -> TiedParameter:
    return TiedParameter(name=name, num_bytes=MB, layers=(0, 1))


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = read(profile([a_layer("only")]))
    loading = {"src", "srcset", "href", "data", "action", "poster"}
    assert not [element for element in page.elements if loading & element[1].keys()]
    assert not [tag for tag, _ in page.elements if tag in ("link", "iframe", "img", "object", "embed")]
    assert all(word not in style for style in page.texts("style") for word in ("url(", "@import"))
    [policy] = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_plotly_and_torch_are_not_loaded_before_they_are_used() -> None:
    loaded = "sys.exit(' '.join({'plotly', 'torch'} & set(sys.modules)) or 0)"
    check = f"import sys, zooid.cli.main; zooid.cli.main.register(()); {loaded}"
    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


class TestWriting:
    def test_a_page_replaces_the_one_before(self, tmp_path: Path) -> None:
        target = tmp_path / "page.html"
        for text in ("before", "λ after"):
            write_page(target, text)
        assert target.read_text(encoding="utf-8") == "λ after"
        assert list(tmp_path.iterdir()) == [target]

    def test_what_fails_leaves_the_file_as_it_was(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        first.write_text("before")

        def fail() -> None:
            with replaced_whole(first) as one, replaced_whole(second) as two:
                one.write_text("after")
                two.write_text("half")
                raise RuntimeError("on the way")

        with pytest.raises(RuntimeError, match="on the way"):
            fail()
        assert first.read_text() == "before"
        assert list(tmp_path.iterdir()) == [first]

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"nowhere/page\.html cannot be written: No such file"):
            write_page(tmp_path / "nowhere" / "page.html", "text")
