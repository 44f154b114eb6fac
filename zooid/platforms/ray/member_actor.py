"""The actor of a member: it starts the member on the node where Ray has placed the actor, and watches it.

Ray carries this class to nodes on which zooid is not installed. So this file needs the standard library and Ray alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

_LOOK_S = 0.1
_STAY_S = 60.0
"""Seconds for which the actor of a member that has ended can still be asked. Its resources are not free before."""
_FORGOTTEN_S = 3600.0
"""Age after which the folder of a run is removed whose processes were all killed."""


class MemberActor:
    """One member, and the place that Ray has reserved for it."""

    def __init__(self, agent: str, run: str, title: str, order: dict[str, Any], program: str, python: str) -> None:
        """`agent` is the text of the functions that start, list and end members on a machine."""
        import os
        import sys

        self._run, self._title = run, title
        self._agent: dict[str, Any] = {"__name__": "zooid"}
        exec(compile(agent, "zooid", "exec"), self._agent)
        self._agent["sweep_dead"](_FORGOTTEN_S)
        order = {**order, "parent": os.getpid()}  # the member ends with its actor, however that ends
        self._agent["start_members"](run, {title: order}, program, python or sys.executable)
        threading.Thread(target=self._leave, daemon=True).start()

    async def is_here(self) -> bool:
        return True

    async def last_words(self) -> str:
        """Wait for the end of the member, and return the last words of a start that failed; empty for any other."""
        while (words := self._words()) is None:
            await asyncio.sleep(_LOOK_S)
        return words

    async def end(self, grace_s: float) -> None:
        """End the member, and return when nothing of it is left."""
        await asyncio.to_thread(self._agent["end_started"], self._run, [self._title], grace_s)

    def _words(self) -> str | None:
        states: dict[str, str | None] = self._agent["member_states"](self._run)
        return states.get(self._title, "")

    def _leave(self) -> None:
        """Give the place back some time after the member has ended, in case that nobody asks for it any more."""
        import ray

        while self._words() is None:
            time.sleep(1.0)
        time.sleep(_STAY_S)
        with contextlib.suppress(Exception):  # the cluster is ending, and the actor with it
            ray.kill(ray.get_runtime_context().current_actor)
