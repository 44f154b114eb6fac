"""Members in a namespace of a cluster: their Jobs are created, listed and deleted."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from zooid.core.errors import InputError
from zooid.core.resources.offer import Offer
from zooid.core.runs.member_records import Exit
from zooid.core.text import quoted
from zooid.platforms.kubernetes.cluster_clients import TITLE_LABEL, ClusterClient
from zooid.platforms.kubernetes.job_manifests import job_manifest, size_of
from zooid.platforms.kubernetes.namespaces import Namespace
from zooid.platforms.kubernetes.pod_states import (
    Obstacle,
    exit_of_pod,
    obstacle_of_pod,
    title_of_pod,
)
from zooid.platforms.kubernetes.quotas import allowance
from zooid.platforms.provider import MemberOrder, resource_name

logger = logging.getLogger(__name__)

_FORCED_GRACE_S = 1
"""Seconds from SIGTERM to SIGKILL for members that have already been asked to end. With 0, a cluster would forget pods
that still run."""
_GONE_S = 40.0
"""Seconds to wait until pods are gone. Those on a node that does not answer stay until the cluster gives it up."""
_POLL_S = 0.25
_PODLESS_S = 10.0
"""Seconds after which the cluster is asked why a Job has no pod."""
_FORBIDDEN_S = 60.0
"""Seconds for which a pod may be forbidden, as by a quota that other members are just leaving."""
_WARNED_S = 15.0
"""Seconds after which a member's obstacle is told."""


class KubernetesJobs:
    """The provider of members in one namespace."""

    def __init__(self, client: ClusterClient, namespace_of: Callable[[str], Namespace], patience: float = 1.0) -> None:
        """`namespace_of` returns the table of an offer. `patience` shortens all waiting for hopeless members."""
        self._client = client
        self._namespace_of = namespace_of
        self._patience = patience
        self._lifetimes_s: dict[tuple[str, str], float] = {}
        """Time limits of members, by run and title."""
        self._since_s: dict[tuple[str, str], tuple[float, float]] = {}
        """When a member was first seen without a pod, or with an obstacle, by the monotonic clock."""
        self._warned: set[tuple[str, str]] = set()
        self._created: set[tuple[str, str]] = set()
        """Members whose Job or pod has existed. Lists are complete, so such a member that is missing there is gone."""

    def check(self, orders: Collection[MemberOrder]) -> None:
        by_offer: dict[str, list[MemberOrder]] = {}
        for order in orders:
            by_offer.setdefault(order.offer.name, []).append(order)
        for offer, alike in by_offer.items():
            named = self._namespace_of(offer)
            manifest = job_manifest(alike[0], named)
            allowed = allowance(self._client.quotas(), size_of(alike[0].offer), in_use=False)
            if allowed is not None and allowed.num_members < len(alike):
                raise InputError(
                    f"{len(alike)} members on {offer} are beyond a quota of the namespace, which has room for "
                    f"{allowed.num_members}: {quoted(allowed.words)}; start fewer or smaller members, or have it raised"
                )
            self._client.create_job(manifest, only_checks=True)

    def start(self, order: MemberOrder) -> None:
        key = order.run, order.title
        if order.lifetime_s is not None:
            self._lifetimes_s[key] = order.lifetime_s
        self._since_s.pop(key, None)
        self._client.create_job(job_manifest(order, self._namespace_of(order.offer.name)))
        self._created.add(key)

    def states(self, run: str, titles: Collection[str]) -> Mapping[str, Exit | None]:
        created = {title for title in titles if (run, title) in self._created}
        pods = {title_of_pod(pod, TITLE_LABEL): pod for pod in self._client.pods(run)}
        found: dict[str, Exit | None] = {}
        for title in pods.keys() & set(titles):
            pod = pods[title]
            found[title] = exit_of_pod(pod, self._lifetimes_s.get((run, title)))
            if found[title] is None:
                found[title] = self._hopelessness(run, title, obstacle_of_pod(pod))
        podless = set(titles) - pods.keys()
        if podless:
            jobs = {title_of_pod(job, TITLE_LABEL): job for job in self._client.jobs(run)}
            found |= {title: Exit(None) for title in podless & created}
            found |= {title: self._podless(run, title, jobs[title]) for title in podless & jobs.keys()}
        self._created |= {(run, title) for title in found}
        return found

    def _podless(self, run: str, title: str, job: dict[str, Any]) -> Exit | None:
        """Return what is known about a member whose Job has no pod: it is about to get one, or has lost it."""
        status = job.get("status") or {}
        for condition in status.get("conditions") or []:
            if condition.get("status") != "True":
                continue
            if condition.get("type") == "Complete":
                return Exit(None)
            if condition.get("type") == "Failed":
                said = quoted(str(condition.get("message") or condition.get("reason") or ""))
                return Exit(None, reason=f"is lost: its pod was evicted or deleted ({said})")
        waited_s = self._waited_s(run, title, _FORBIDDEN_S)
        if status.get("active") or waited_s < _PODLESS_S * self._patience:
            return None
        name = resource_name(run, title)
        events = [event for event in self._client.events_of_job(name) if event.get("reason") == "FailedCreate"]
        words = f"the cluster makes no pod for its job; ask it why with: kubectl describe job {name}"
        if events:
            words = f"the cluster refuses its pod: {quoted(str(events[-1].get('message') or ''))}"
        return self._hopelessness(run, title, Obstacle(words, _FORBIDDEN_S))

    def _waited_s(self, run: str, title: str, patience_s: float) -> float:
        """Return how long a member has had an obstacle of this patience. Another kind of obstacle starts anew."""
        now_s = time.monotonic()
        since_s, last_patience_s = self._since_s.get((run, title), (now_s, patience_s))
        if patience_s != last_patience_s:
            since_s = now_s
        self._since_s[run, title] = since_s, patience_s
        return now_s - since_s

    def _hopelessness(self, run: str, title: str, obstacle: Obstacle | None) -> Exit | None:
        """Return the end of a member that has had an obstacle for too long. Its Job is removed, so it stays ended."""
        key = run, title
        if obstacle is None:
            self._since_s.pop(key, None)
            self._warned.discard(key)
            return None
        waited_s = self._waited_s(run, title, obstacle.patience_s)
        if waited_s >= obstacle.patience_s * self._patience:
            self._client.delete(run, [title], _FORCED_GRACE_S)
            return Exit(None, ran_s=0.0, reason=f"could not be started: {obstacle.words}")
        if waited_s >= _WARNED_S * self._patience and key not in self._warned:
            self._warned.add(key)
            logger.warning("%s waits: %s", title, obstacle.words)
        return None

    def end(self, run: str, titles: Collection[str]) -> Collection[str]:
        wanted = set(titles)
        self._client.delete(run, sorted(wanted), _FORCED_GRACE_S)
        deadline_s = time.monotonic() + _GONE_S
        while left := {title_of_pod(pod, TITLE_LABEL) for pod in self._client.pods(run)} & wanted:
            if time.monotonic() > deadline_s:
                break
            time.sleep(_POLL_S)
        return left

    def num_free(self, offer: Offer) -> int | None:
        allowed = allowance(self._client.quotas(), size_of(offer), in_use=True)
        return None if allowed is None else allowed.num_members

    def close(self) -> None:
        self._client.close()
