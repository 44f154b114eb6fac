"""Members on machines that SkyPilot rents, each of them a cluster of one machine with one task."""

import logging
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from zooid.catalog.provider_accounts import Account
from zooid.catalog.sky_machines import SkyMachine
from zooid.core.errors import InputError, RecordError, StoreError, ZooidError
from zooid.core.resources.offer import Offer
from zooid.core.runs import keys
from zooid.core.runs.member_records import Exit
from zooid.platforms.provider import MemberOrder, resource_name
from zooid.platforms.run_stores import RunStores
from zooid.platforms.skypilot import sky_arguments
from zooid.platforms.skypilot.sky_command import SkyCommand, SkyFailed
from zooid.platforms.skypilot.sky_rows import (
    RequestRow,
    cluster_rows,
    cost_rows,
    job_rows,
    request_id,
    request_rows,
)
from zooid.platforms.skypilot.sky_tasks import sky_task, task_text
from zooid.store.member_starts import find_start
from zooid.store.stored_records import find_end

logger = logging.getLogger(__name__)

_STOPPED = "STOPPED"
_STARTED = ("UP", "AUTOSTOPPING")
"""States of a cluster whose machine has been given its task, or is about to get it."""


@dataclass
class _Cluster:
    """The cluster of a member."""

    name: str
    request: str = ""
    """Id of the request that launches it; empty if it is not known."""
    is_started: bool = False
    """True if this process has launched the cluster."""
    was_listed: bool = False
    was_up: bool = False
    is_ending: bool = False
    """True once this process has asked SkyPilot to tear the cluster down."""
    reason: str = ""
    """Why it was torn down, if not because its member has ended."""
    exit: Exit | None = None


class MemberClusters:
    """The provider of members in one region of a cloud, through the command of SkyPilot."""

    def __init__(
        self, sky: SkyCommand, account: Account, machine_of: Callable[[str], SkyMachine], stores: RunStores
    ) -> None:
        self._sky = sky
        self._account = account
        self._machine_of = machine_of
        self._stores = stores
        self._clusters: dict[tuple[str, str], _Cluster] = {}
        """The clusters of members, each under the run and the title of its member."""
        self._checked: set[str] = set()
        """Offers whose task SkyPilot has accepted."""
        self._lock = threading.Lock()

    def check(self, orders: Collection[MemberOrder]) -> None:
        for order in orders:
            if order.offer.name not in self._checked:
                with self._task_file(order) as file:
                    answer = self._sky.answer(sky_arguments.rehearse(file))
                if answer.status != 0:
                    raise InputError(
                        f"SkyPilot refuses to rent a machine for {order.offer.name}: {answer.last_words}; ask it with "
                        "`sky check` which clouds it can use"
                    )
                self._checked.add(order.offer.name)

    def start(self, order: MemberOrder) -> None:
        self._stores.add(order.run, order.order["store"])
        cluster = self._cluster(order.run, order.title)
        with self._lock:
            if cluster.is_started:
                return
            cluster.is_started = True
        if cluster_rows(self._sky.give(sky_arguments.known([cluster.name]))):
            cluster.was_listed = True
        elif self._is_claimed(order.run, order.title):
            cluster.exit = Exit(None)  # a machine would find that nobody wants it, or that it has been there before
        else:
            with self._task_file(order) as file:
                cluster.request = request_id(self._sky.give(sky_arguments.launch(cluster.name, file)))

    @contextmanager
    def _task_file(self, order: MemberOrder) -> Iterator[str]:
        """Write the task of a member for as long as the block lasts."""
        text = task_text(sky_task(order, self._machine_of(order.offer.name), self._account))
        with tempfile.TemporaryDirectory(prefix="zooid-sky-") as folder:
            file = Path(folder, "task.yaml")
            file.write_text(text, encoding="utf-8")
            yield str(file)

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        clusters = {title: self._cluster(run, title) for title in titles}
        asked = {title: cluster for title, cluster in clusters.items() if cluster.exit is None}
        # requests come first: a launch that has succeeded by then has a cluster in the list, or had one
        requests = self._launches([cluster for cluster in asked.values() if not cluster.was_up])
        listed = self._listed([cluster.name for cluster in asked.values()], refreshes=True)
        unclaimed = []
        gone = []
        for title, cluster in asked.items():
            status, request = listed.get(cluster.name), requests.get(cluster.name)
            cluster.was_listed |= status is not None
            cluster.was_up |= status in _STARTED or (request is not None and request.has_succeeded)
            if request is not None and request.has_failed and not cluster.is_ending:
                self._fail(cluster, f"could not be started: {self._log_of(request)}", is_there=status is not None)
            elif status is None and (cluster.is_ending or cluster.was_up or (request is None and cluster.was_listed)):
                gone.append(cluster)
            elif status == _STOPPED and not cluster.is_ending:
                cluster.reason = "is lost: its machine was stopped"
                self._tear_down([cluster])
            elif status in _STARTED and not cluster.is_ending:
                if self._has_ended(run, title):
                    self._tear_down([cluster])
                elif not self._is_claimed(run, title):
                    unclaimed.append(cluster)
        self._look_at_tasks(unclaimed)
        self._settle(gone)
        is_known = {title: each.was_listed or each.request or each.exit for title, each in clusters.items()}
        return {title: each.exit for title, each in clusters.items() if is_known[title]}

    def _cluster(self, run: str, title: str) -> _Cluster:
        with self._lock:
            return self._clusters.setdefault((run, title), _Cluster(resource_name(run, title)))

    def _listed(self, names: Collection[str], *, refreshes: bool) -> dict[str, str]:
        """Return the states of those clusters that exist, by their names."""
        if not names:
            return {}
        arguments = (sky_arguments.living if refreshes else sky_arguments.known)(sorted(names))
        return {row.name: row.status for row in cluster_rows(self._sky.give(arguments)) if row.name in names}

    def _launches(self, clusters: Collection[_Cluster]) -> dict[str, RequestRow]:
        """Return the requests that launch clusters, by the clusters' names, as far as they are known."""
        found: dict[str, RequestRow] = {}
        for cluster in clusters:
            if not cluster.request:  # another process has made it
                rows = request_rows(self._sky.give(sky_arguments.requests_for(cluster.name)))
                cluster.request = next((row.request_id for row in rows if row.is_launch), "")
        ids = {cluster.request: cluster.name for cluster in clusters if cluster.request}
        if ids:
            rows = request_rows(self._sky.give(sky_arguments.requests(sorted(ids))))
            found = {ids[row.request_id]: row for row in rows if row.request_id in ids}
        return found

    def _log_of(self, request: RequestRow) -> str:
        """Return why a launch has failed: its log ends with the error, and reading it fails with the same one."""
        if request.status == "CANCELLED":
            return "the request to SkyPilot was cancelled"
        return self._sky.answer(sky_arguments.request_log(request.request_id)).last_words

    def _fail(self, cluster: _Cluster, reason: str, *, is_there: bool) -> None:
        """Give up a cluster on which no member will start. If some of it exists, tear it down, since it costs money."""
        cluster.reason = reason
        if is_there:
            self._tear_down([cluster])
        else:
            cluster.exit = Exit(None, ran_s=0.0, reason=reason)

    def _tear_down(self, clusters: Collection[_Cluster]) -> None:
        """Ask for the end of machines, without waiting for it. What fails is tried again at the next look."""
        try:
            self._sky.give(sky_arguments.down([cluster.name for cluster in clusters], waits=False))
        except SkyFailed as error:
            logger.warning("machines are not torn down yet: %s", error)
            return
        for cluster in clusters:
            cluster.is_ending = True

    def _look_at_tasks(self, clusters: Collection[_Cluster]) -> None:
        """Give up those machines whose task has ended before its member has begun."""
        if not clusters:
            return
        by_name = job_rows(self._sky.give(sky_arguments.jobs([cluster.name for cluster in clusters])))
        for cluster in clusters:
            jobs = by_name.get(cluster.name, [])
            if jobs and all(job.has_ended for job in jobs):
                job = max(jobs, key=lambda row: row.job_id)
                if job.has_failed:
                    words = self._sky.answer(sky_arguments.job_log(cluster.name, job.job_id)).last_words
                    cluster.reason = f"could not be started: its task has ended with {job.status}: {words}"
                self._tear_down([cluster])

    def _settle(self, clusters: Collection[_Cluster]) -> None:
        """Note how clusters have ended that are gone, and for how long they are billed."""
        if not clusters:
            return
        try:
            rows = cost_rows(self._sky.give(sky_arguments.costs()))
            durations: dict[str, float] | None = {row.name: row.duration for row in rows}
        except ZooidError as error:
            logger.warning("for how long machines are billed is not known: %s", error)
            durations = None
        for cluster in clusters:
            lost = "" if cluster.is_ending else "its machine is lost, as a spot machine is that its cloud takes back"
            never_rented_s = None if cluster.was_listed else 0.0
            billed_s = None if durations is None else durations.get(cluster.name, never_rented_s)
            cluster.exit = Exit(None, billed_s=billed_s, reason=cluster.reason or lost)

    def _is_claimed(self, run: str, title: str) -> bool:
        """Whether the start of a member was claimed by whoever runs it, or cancelled."""
        store, claim = self._stores.find(run), _claim(title)
        if store is None or claim is None:
            return True
        with suppress(StoreError, RecordError):
            return find_start(store, *claim) is not None
        return True

    def _has_ended(self, run: str, title: str) -> bool:
        """Whether a member has recorded its end."""
        store, claim = self._stores.find(run), _claim(title)
        with suppress(StoreError, RecordError):
            return store is not None and claim is not None and find_end(store, *claim) is not None
        return False

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        clusters = {title: self._cluster(run, title) for title in titles}
        try:
            launches = self._launches([each for each in clusters.values() if each.exit is None or each.reason])
            begun = [row.request_id for row in launches.values() if not row.has_failed and not row.has_succeeded]
            if begun:
                self._sky.give(sky_arguments.cancel(begun))
        except SkyFailed as error:  # machines that are there must go all the same
            logger.warning("launches that go on could not be cancelled: %s", error)
        names = {cluster.name: title for title, cluster in clusters.items()}
        there = self._listed(names, refreshes=False)
        for cluster in clusters.values():
            cluster.is_ending = True
        if there:
            try:
                self._sky.give(sky_arguments.down(sorted(there), waits=True))
            except SkyFailed as error:
                logger.warning("%s", error)
            there = self._listed(names, refreshes=False)
        return {names[name] for name in there}

    def num_free(self, offer: Offer) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is open: every command is a process of its own."""


def _claim(title: str) -> tuple[str, int] | None:
    """Return the member of a title, and the roster under which it was started."""
    label, _, member = title.partition(".")
    roster = keys.roster_in(label)
    return None if roster is None else (member, roster[0])
