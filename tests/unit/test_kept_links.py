"""Links to programs that serve elsewhere: requests and states, ends of the other side, and attempts to open again."""

import sys
import time
from collections.abc import Iterator

import pytest

from lab.waiting import wait_until
from zooid.core.runs.member_records import Exit
from zooid.platforms import kept_links, line_link
from zooid.platforms.kept_links import KeptLinks
from zooid.platforms.line_link import LineLink, Unreachable
from zooid.platforms.linked_members import LinkedMembers

SERVE = """
import json, sys, time
print("welcome", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["operation"] == "die":
        print("goodbye", flush=True)
        sys.exit("the power is gone")
    if request["operation"] == "leave":
        sys.exit(0)
    if request["operation"] == "work":
        time.sleep(request["value"])
    if request["operation"] == "hang":
        time.sleep(600)
    if request["operation"] == "babble":
        print("\\n[1, 2]\\nwelcome again", end="\\n\\n")
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


def test_what_is_no_message_is_only_told_if_nothing_else_was_said(links: KeptLinks[str]) -> None:
    link = links.get("here")
    assert link.ask("babble", value="still here") == "still here"
    with pytest.raises(Unreachable, match=r"^here cannot be reached: welcome again$"):
        link.ask("leave")


def test_a_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(
        Unreachable, match="far cannot be reached: the program no-ssh cannot be started on this machine"
    ):
        LineLink("far", ["no-ssh", "far"])


def test_nobody_waits_for_a_child_of_the_child_that_keeps_standard_error_open() -> None:
    link = LineLink("here", ["sh", "-c", "sleep 20 < /dev/null > /dev/null & exec cat"])
    began_s = time.monotonic()
    link.close()
    assert time.monotonic() - began_s < 10.0


class TestSilence:
    @pytest.fixture(autouse=True)
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(line_link, "_PING_S", 0.05)
        monkeypatch.setattr(line_link, "_SILENCE_S", 2.0)

    def test_a_link_ends_when_the_other_side_is_silent(self) -> None:
        link = open_server("here")
        link.end_in_silence()
        link.send(b'{"operation": "hang", "number": -1}\n')
        wait_until(lambda: not link.is_open, timeout_s=20.0)
        assert str(link.broken()) == "here cannot be reached: it has been silent for 2 s"
        link.close()

    def test_it_does_not_end_while_the_other_side_works_or_answers(self) -> None:
        link = open_server("here")
        link.end_in_silence()
        assert link.ask("work", value=3.0) == 3.0
        time.sleep(0.5)
        assert link.is_open
        assert link.ask("echo", value="here") == "here"
        link.close()


def test_a_failure_to_start_is_forgotten_when_the_member_is_seen_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link broke after the request had arrived."""
    monkeypatch.setattr(kept_links, "_RETRY_S", 0.2)
    place = ["nowhere"]
    living: dict[str, Exit | None] = {"m0": None}
    members: LinkedMembers[str] = LinkedMembers(lambda _: open_server(place[0]))
    members.settle("far", "run", "m0")
    members.start("far", "run", ["m0"])
    failed = members.listed("run", lambda link, run, titles: living)["m0"]
    assert str(failed) == "could not be started: nowhere cannot be reached: no route"
    place[0] = "here"
    wait_until(lambda: members.listed("run", lambda link, run, titles: living) == {"m0": None})
    living["m0"] = Exit(0)
    assert members.listed("run", lambda link, run, titles: living) == {"m0": Exit(0)}
    members.links.close()
