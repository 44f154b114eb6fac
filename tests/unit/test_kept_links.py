"""Links to programs that serve elsewhere: requests and states, ends of the other side, and attempts to open again."""

import sys
import time
from collections.abc import Iterator

import pytest

from lab.waiting import wait_until
from zooid.platforms import kept_links
from zooid.platforms.kept_links import KeptLinks
from zooid.platforms.line_link import LineLink, Unreachable

SERVE = """
import json, sys
print("welcome", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["operation"] == "die":
        sys.exit("the power is gone")
    if request["operation"] == "watch":
        print(json.dumps({"run": request["run"], "members": {"m0": None}}), flush=True)
    answer = {"error": "no"} if request["operation"] == "fail" else {"answer": request.get("value")}
    print(json.dumps({"number": request["number"], **answer}), flush=True)
"""


def open_server(place: str) -> LineLink:
    if place == "nowhere":
        raise Unreachable("nowhere cannot be reached: no route")
    return LineLink(place, [sys.executable, "-S", "-c", SERVE])


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptLinks[str]]:
    monkeypatch.setattr(kept_links, "_RETRY_S", 0.2)
    monkeypatch.setattr(kept_links, "_LOST_S", 0.5)
    made: KeptLinks[str] = KeptLinks(open_server)
    yield made
    made.close()


def test_requests_are_answered_and_states_are_told(links: KeptLinks[str]) -> None:
    link = links.get("here")
    assert [link.ask("echo", value=number) for number in range(3)] == [0, 1, 2]
    assert not link.is_watching("run")
    link.ask("watch", run="run")
    assert link.is_watching("run")
    assert link.states("run") == {"m0": None}
    with pytest.raises(Unreachable, match=r"^here: no$"):
        link.ask("fail")


def test_one_link_is_kept_for_each_place(links: KeptLinks[str]) -> None:
    assert links.get("here") is links.get("here")
    assert links.get("there") is not links.get("here")


def test_a_broken_link_says_why_and_is_opened_again(links: KeptLinks[str]) -> None:
    link = links.get("here")
    with pytest.raises(Unreachable, match="here cannot be reached: the power is gone"):
        link.ask("die")
    time.sleep(0.2)
    assert links.get("here").ask("echo", value="back") == "back"
    assert not links.is_silent("here")


def test_nobody_waits_for_a_place_that_is_only_looked_at(links: KeptLinks[str]) -> None:
    began_s = time.monotonic()
    with pytest.raises(Unreachable):
        links.get_now("here")
    assert time.monotonic() - began_s < 0.1
    links.get("here")
    assert links.get_now("here").is_open


def test_members_of_a_silent_place_are_lost_after_a_while(links: KeptLinks[str]) -> None:
    with pytest.raises(Unreachable, match="no route"):
        links.get("nowhere")
    assert links.is_silent("nowhere")
    error = Unreachable("nowhere cannot be reached: no route")
    assert links.lost("nowhere", error) is None
    wait_until(lambda: links.lost("nowhere", error) is not None, timeout_s=5.0)
    assert str(links.lost("nowhere", error)) == "is lost with its machine: nowhere cannot be reached: no route"


def test_a_place_is_not_tried_too_often(links: KeptLinks[str]) -> None:
    tries = []

    def refuse(place: str) -> LineLink:
        tries.append(time.monotonic())
        raise Unreachable("no")

    refusing: KeptLinks[str] = KeptLinks(refuse)
    for _ in range(30):
        with pytest.raises(Unreachable):
            refusing.get("here")
        time.sleep(0.01)
    assert 2 <= len(tries) <= 3
