"""`python -m zooid.platforms.ray.driver ADDRESS`: serve a coordinator that has members on a Ray cluster.

It is a process of its own, because Ray handles signals, prints, and must not be forked. It reads one request a line,
and writes one answer a line, and the states of a run's members when they change. It ends with its input. Members are
detached actors, which live on; their names let any other driver find them.

A state is None while a member lives; the last words of its start once it has ended, empty if it was started; or
{"lost": WHY} if its actor is gone.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
from ray import cloudpickle, exceptions

from zooid.platforms.programs import actor_program, bootstrap_program
from zooid.platforms.ray import member_actor
from zooid.platforms.ray.ray_cluster import hopelessness

NAMESPACE = "zooid"
_AGAIN_S = 1.0
_GONE_S = 5.0
_LEAVE_S = 1.5
_PLACED_S = 30.0
"""Seconds that actors have to answer before they are killed. On a busy node, that may take long. One that still waits
for a node never answers. Ray kills the processes that an actor has started with it, which cannot clear away then."""
_POLL_S = 0.05
_LOOK_S, _HOPELESS_S = 1.0, 5.0
"""Seconds between two looks at actors that wait, and how long no node may have room for one before it is given up.
Nodes come and go."""


def main() -> None:
    cloudpickle.register_pickle_by_value(member_actor)  # nodes do not have zooid
    try:
        ray.init(sys.argv[1], namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001  # the coordinator reports it
        sys.stderr.write(f"{_last_line(error)}\n")
        sys.stderr.flush()
        os._exit(1)
    try:
        _Driver(f"Ray at {sys.argv[1]}").serve()
    finally:
        threading.Timer(_LEAVE_S, os._exit, (0,)).start()  # Ray may wait for a cluster that is gone
        ray.shutdown()
        os._exit(0)


class _Driver:
    """The members that the coordinator has asked for."""

    def __init__(self, cluster: str) -> None:
        """`cluster` is what messages call the cluster."""
        self._cluster = cluster
        self._actors: dict[tuple[str, str], Any] = {}
        """The actor of each member that is followed, by run and title."""
        self._placed: dict[tuple[str, str], Future[bool]] = {}
        """The answers of actors, which they give as soon as they are on a node."""
        self._states: dict[str, dict[str, Any]] = {}
        self._waiting: dict[tuple[str, str], dict[str, Any]] = {}
        """What members ask for that this driver has started, until they are placed, by run and title."""
        self._hopeless_since_s: dict[tuple[str, str], float] = {}
        """Since when no node can hold a member that waits, by the monotonic clock."""
        self._lock = threading.RLock()
        self._ends = ThreadPoolExecutor(1)
        """The thread that handles ends of members, because Ray's own callback thread must not call Ray."""
        self._operations: dict[str, Callable[..., Any]] = {
            "ping": lambda: None,
            "start": self._start,
            "watch": self._watch,
            "end": self._end,
            "nodes": lambda: [node["Resources"] for node in ray.nodes() if node["Alive"]],
            "free": ray.available_resources,
        }

    def serve(self) -> None:
        """Serve until the coordinator closes its end."""
        threading.Thread(target=self._look_at_waiting, daemon=True).start()
        for line in sys.stdin:
            request = json.loads(line)
            number, operation = request.pop("number"), request.pop("operation")
            try:
                answer = {"number": number, "answer": self._operations[operation](**request)}
            except ConnectionError:  # the coordinator connects anew
                raise
            except Exception as error:  # noqa: BLE001  # the coordinator reports it
                answer = {"number": number, "error": _last_line(error)}
            self._say(answer)

    def _start(self, run: str, members: dict[str, dict[str, Any]], python: str) -> None:
        """Start an actor for each title that does not live yet; each member has its order and asks for resources."""
        for title, member in members.items():
            if self._states.get(run, {}).get(title, "") is None:
                continue
            actor = ray.remote(member_actor.MemberActor).options(
                name=_name(run, title),
                lifetime="detached",
                get_if_exists=True,
                max_restarts=0,  # its start was claimed, so that a second one would do nothing
                **member["request"],
            )
            made = actor.remote(actor_program(), run, title, member["order"], bootstrap_program(), python)
            self._follow(run, title, made)
            self._waiting[run, title] = member
        self._tell(run)

    def _look_at_waiting(self) -> None:
        """Give up actors for which no node has had room for a while, if the cluster does not start nodes by itself."""
        while True:
            time.sleep(_LOOK_S)
            for run, title in list(self._waiting):
                if self._placed[run, title].done():
                    self._waiting.pop((run, title), None)
                    self._hopeless_since_s.pop((run, title), None)
            if not self._waiting:
                continue
            try:
                nodes = self._operations["nodes"]()
            except Exception:  # noqa: BLE001  # the next request tells the coordinator that the connection is lost
                continue
            for (run, title), member in list(self._waiting.items()):
                self._judge(run, title, hopelessness(self._cluster, nodes, member["needs"], member["max_members"]))

    def _judge(self, run: str, title: str, why: str) -> None:
        """Give an actor up if it has been hopeless for long enough; `why` is empty if it is not."""
        now_s = time.monotonic()
        if not why:
            self._hopeless_since_s.pop((run, title), None)
            return
        if now_s - self._hopeless_since_s.setdefault((run, title), now_s) < _HOPELESS_S:
            return
        self._waiting.pop((run, title), None)
        self._hopeless_since_s.pop((run, title), None)
        actor = self._actors.pop((run, title), None)
        if actor is not None:  # `_end` may have removed it already
            self._note(run, title, why)
            self._tell(run)
            ray.kill(actor)

    def _watch(self, run: str, titles: list[str]) -> None:
        """Follow members that another driver has started."""
        for title in titles:
            if (run, title) not in self._actors:
                try:
                    self._follow(run, title, ray.get_actor(_name(run, title)))
                except ValueError:
                    self._note(run, title, "")
        self._tell(run)

    def _end(self, run: str, titles: list[str], grace_s: float) -> None:
        """End members and their actors, and return when they are gone."""
        self._watch(run, titles)
        actors = {title: self._actors[run, title] for title in titles if (run, title) in self._actors}
        deadline_s = time.monotonic() + _PLACED_S
        reached = {title: actor for title, actor in actors.items() if self._is_placed(run, title, deadline_s)}
        ended = [actor.end.remote(grace_s) for actor in reached.values()]
        if ended:
            ray.wait(ended, num_returns=len(ended), timeout=grace_s + _GONE_S)
        for actor in actors.values():
            ray.kill(actor)
        deadline_s = time.monotonic() + _GONE_S
        while time.monotonic() < deadline_s and any(_exists(run, title) for title in actors):
            time.sleep(_POLL_S)
        for title in actors:
            self._note(run, title, "")
            self._actors.pop((run, title), None)  # `_take_end` may have removed it already
        self._tell(run)

    def _follow(self, run: str, title: str, actor: Any) -> None:
        """Note the state of a member, now and when it ends, without asking again and again."""
        self._actors[run, title] = actor
        self._placed[run, title] = actor.is_here.remote().future()
        self._note(run, title, None)
        ended: Future[str] = actor.last_words.remote().future()
        ended.add_done_callback(lambda done: self._ends.submit(self._take_end, run, title, actor, done))

    def _is_placed(self, run: str, title: str, deadline_s: float) -> bool:
        """Whether an actor answers until a moment of the monotonic clock. One that is lost does not."""
        try:
            self._placed[run, title].result(max(0.0, deadline_s - time.monotonic()))
        except Exception:  # noqa: BLE001  # it waits for a node, or is gone with one
            return False
        return not isinstance(self._states[run].get(title), dict)

    def _take_end(self, run: str, title: str, actor: Any, done: "Future[str]") -> None:
        if (run, title) not in self._actors or self._actors[run, title] is not actor:
            return
        error = done.exception()
        if isinstance(error, exceptions.ActorUnavailableError):  # it may come back; Ray decides that later
            threading.Timer(_AGAIN_S, self._follow, (run, title, actor)).start()
            return
        if isinstance(error, exceptions.ActorDiedError) and "creation task" in str(error):
            self._note(run, title, str(error))
        elif isinstance(error, exceptions.RayActorError):
            self._note(run, title, {"lost": _reason(error)})
        elif error is not None:
            os._exit(1)  # the connection is gone, and the coordinator opens another
        else:
            self._note(run, title, done.result())
            self._tell(run)
            self._actors.pop((run, title), None)  # `_end` may have removed it already
            ray.wait([actor.end.remote(0.0)], timeout=_GONE_S)
            ray.kill(actor)  # others may need its place
        self._tell(run)

    def _note(self, run: str, title: str, state: Any) -> None:
        with self._lock:
            self._states.setdefault(run, {})[title] = state

    def _tell(self, run: str) -> None:
        with self._lock:
            self._say({"run": run, "members": self._states.setdefault(run, {})})

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()


def _name(run: str, title: str) -> str:
    return f"{run}/{title}"


def _exists(run: str, title: str) -> bool:
    try:
        ray.get_actor(_name(run, title))
    except ValueError:
        return False
    return True


def _reason(error: BaseException) -> str:
    """Return the sentence in which Ray says why an actor is gone."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line.startswith("The actor")]
    return (said or [_last_line(error)])[-1]


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    main()
