"""Notices that this member will soon be ended, passed on to its coordinator.

A notice comes as the signal SIGUSR1, as a file that appears, or from a URL that begins to answer with status 200, as
the metadata service of a spot machine does.
"""

import logging
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zooid.core.environment import NoticeSources, notice_sources
from zooid.core.errors import StoreError
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.requests import Notice
from zooid.core.runs.spec import WorkerSpec
from zooid.store import ObjectStore
from zooid.worker.member.departure import plan_departure

logger = logging.getLogger(__name__)

_LOOK_S = 0.2
_URL_LOOK_S = 5.0
_URL_TIMEOUT_S = 2.0


@contextmanager
def passed_on(spec: WorkerSpec, store: ObjectStore) -> Iterator[None]:
    """While inside, a notice is written to the store. To be called in the main thread."""
    arrived, ended = threading.Event(), threading.Event()
    arguments = (spec, store, notice_sources(), arrived, ended)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: arrived.set())
    watcher = threading.Thread(target=_watch, args=arguments, name="zooid-notices", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, before)


def _watch(
    spec: WorkerSpec, store: ObjectStore, sources: NoticeSources, arrived: threading.Event, ended: threading.Event
) -> None:
    checks: list[tuple[str, Callable[[], bool]]] = [("the signal SIGUSR1", arrived.is_set)]
    if sources.file:
        checks.append((f"the file {sources.file}", Path(sources.file).exists))
    if sources.url:
        checks.append((sources.url, _Answers(sources.url)))
    while not ended.wait(_LOOK_S):
        source = next((name for name, has_notice in checks if has_notice()), None)
        if source is not None:
            notice = Notice(member=spec.member, source=source, left_s=sources.left_s)
            try:
                store.put(keys.notice(spec.member, spec.roster), encode_record(notice))
            except StoreError as error:
                logger.warning("the notice that this member will be ended could not be passed on: %s", error)
                continue
            plan_departure(notice, spec.roster, store, ended)
            return


class _Answers:
    """Whether a URL answers with status 200, asked every few seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._num_calls = 0

    def __call__(self) -> bool:
        self._num_calls += 1
        if (self._num_calls - 1) % round(_URL_LOOK_S / _LOOK_S):
            return False
        try:
            with urllib.request.urlopen(self._url, timeout=_URL_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError, ValueError):
            return False
