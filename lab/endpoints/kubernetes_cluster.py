"""A cluster behind an endpoint: its Job controller, scheduler and kubelets, which run containers in sandboxes."""

import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.endpoints.kubernetes_nodes import Node, confines_of, obstacle, placed, size_in, stamp
from lab.sandboxes.sandbox import Sandbox, SandboxHost
from zooid.platforms.kubernetes.quotas import quantity

_POLL_S = 0.02
_SYNC_S = 0.1
"""How often a kubelet, the scheduler or the Job controller looks again at what it could not do."""


@dataclass(frozen=True)
class ClusterSettings:
    """What the cluster is like, and how fast. Times are shorter than those of real clusters."""

    images: Mapping[str, Mapping[str, str]]
    """Images that can be pulled, and their variables."""
    secrets: Mapping[str, Mapping[str, str]]
    """Secrets of the namespace."""
    pull_s: float = 0.1
    silent_node_s: float = 2.0
    """Seconds after which a node that does not answer is tainted; 40 by default in real clusters, and the toleration of
    its pods comes on top."""
    removed_node_s: float = 2.0
    """Seconds after which such a node is removed from the cluster, and its pods with it."""
    kills_groups: bool = False
    """Whether all of a container ends when one of its processes exceeds the memory, as with cgroups of version 2."""


@dataclass
class Bill:
    """How long a container existed, by the clock of its node."""

    run: str
    title: str
    size: Mapping[str, str]
    began_s: float
    ended_s: float | None = None


class KubernetesCluster:
    """Jobs, pods and events of one namespace, and what happens to them. All methods may be called from any thread."""

    def __init__(self, host: SandboxHost, nodes: list[Node], settings: ClusterSettings) -> None:
        self.lock = threading.RLock()
        self.nodes = nodes
        self.settings = settings
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.quotas: dict[str, dict[str, str]] = {}
        """Hard limits by the names of quotas."""
        self.bills: list[Bill] = []
        self.num_out_of_memory = 0
        """Number of containers that were ended with all their processes for lack of memory."""
        self._host = host
        self._sandboxes: dict[str, Sandbox] = {}
        self._is_open = True

    def close(self) -> None:
        """End everything."""
        with self.lock:
            self._is_open = False
            self.jobs.clear()
            self.pods.clear()
            for sandbox in self._sandboxes.values():
                sandbox.kill()

    # the Job controller

    def add_job(self, manifest: dict[str, Any]) -> None:
        """Keep a Job, and make its pod."""
        with self.lock:
            job = {**manifest, "status": {"startTime": stamp(time.time())}}
            job["metadata"] = {**job["metadata"], "uid": secrets.token_hex(8), "creationTimestamp": stamp(time.time())}
            self.jobs[job["metadata"]["name"]] = job
            threading.Thread(target=self._control, args=(job,), daemon=True).start()

    def _control(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        while self._has(job):
            with self.lock:
                exceeded = self._exceeded_quota(job)
                if exceeded is None and self._has(job):
                    pod = self._add_pod(job)
                    break
                words = f'Error creating: pods "{name}-" is forbidden: exceeded quota: {exceeded}'
                self._say("Job", name, "FailedCreate", words)
            time.sleep(_SYNC_S)
        else:
            return
        job["status"]["active"] = 1
        self._run_pod(pod)
        with self.lock:
            is_success = pod["status"].get("phase") == "Succeeded"
            job["status"].pop("active", None)
            job["status"]["succeeded" if is_success else "failed"] = 1
            condition = {"type": "Complete", "status": "True"}
            if not is_success:
                words = "Job has reached the specified backoff limit"
                condition |= {"type": "Failed", "reason": "BackoffLimitExceeded", "message": words}
            job["status"]["conditions"] = [condition]

    def _has(self, job: dict[str, Any]) -> bool:
        return self._is_open and self.jobs.get(job["metadata"]["name"]) is job

    def delete_jobs(self, jobs: list[dict[str, Any]]) -> None:
        """Remove Jobs; the garbage collector then deletes their pods."""
        with self.lock:
            for job in jobs:
                self.jobs.pop(job["metadata"]["name"], None)
                owned = [
                    pod
                    for pod in self.pods.values()
                    if pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
                ]
                self.delete_pods(owned, None)

    def _exceeded_quota(self, job: dict[str, Any]) -> str | None:
        """Return what a quota says that has no room for the pod of a Job; None if all have."""
        size = size_in(job["spec"]["template"]["spec"])
        needs = {"pods": 1.0, **{f"requests.{name}": amount for name, amount in size.items()}}
        for name, hard in self.quotas.items():
            used = self.used_of(hard)
            for resource in needs.keys() & hard.keys():
                if used[resource] + needs[resource] > quantity(hard[resource]):
                    amounts = (needs[resource], used[resource], quantity(hard[resource]))
                    words = zip(("requested", "used", "limited"), amounts, strict=True)
                    return f"{name}, " + ", ".join(f"{word}: {resource}={amount:g}" for word, amount in words)
        return None

    def used_of(self, hard: Mapping[str, str]) -> dict[str, float]:
        """Return what living pods take of the resources of a quota."""
        with self.lock:
            living = [pod for pod in self.pods.values() if pod["status"]["phase"] in ("Pending", "Running")]
            used = dict.fromkeys(hard, 0.0)
            for pod in living:
                for name, amount in (size_in(pod["spec"]) | {"": 1.0}).items():
                    resource = f"requests.{name}" if name else "pods"
                    if resource in used:
                        used[resource] += amount
            return used

    def _say(self, kind: str, name: str, reason: str, message: str) -> None:
        event = {
            "metadata": {"name": f"{name}.{secrets.token_hex(4)}"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason,
            "message": message,
            "type": "Warning",
        }
        self.events.append(event)

    # pods

    def _add_pod(self, job: dict[str, Any]) -> dict[str, Any]:
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        template = job["spec"]["template"]
        name = f"{job['metadata']['name']}-{secrets.token_hex(3)[:5]}"
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": job["metadata"]["name"]}
        pod = {
            "metadata": {
                "name": name,
                "labels": labels,
                "ownerReferences": [owner],
                "creationTimestamp": stamp(time.time()),
            },
            "spec": {**template["spec"]},
            "status": {"phase": "Pending", "conditions": []},
        }
        self.pods[name] = pod
        return pod

    def delete_pods(self, pods: list[dict[str, Any]], grace_s: int | None) -> None:
        """Delete pods. Those that run get SIGTERM, and SIGKILL after the grace period."""
        for pod in pods:
            with self.lock:
                metadata = pod["metadata"]
                own_grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
                wanted_s = own_grace_s if grace_s is None else grace_s
                earlier_s = metadata.get("deletionGracePeriodSeconds")
                if earlier_s is not None and earlier_s <= wanted_s:
                    continue
                metadata["deletionGracePeriodSeconds"] = wanted_s
                metadata.setdefault("deletionTimestamp", stamp(time.time() + wanted_s))
                sandbox = self._sandboxes.get(metadata["name"])
                if sandbox is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
                    self.pods.pop(metadata["name"], None)
                    continue
            if not self._is_on_lost_node(pod):
                self._terminate(sandbox, wanted_s)

    def _terminate(self, sandbox: Sandbox, grace_s: float) -> None:
        sandbox.signal(signal.SIGTERM)
        timer = threading.Timer(grace_s, sandbox.kill)
        timer.daemon = True
        timer.start()

    def evict(self, pod: dict[str, Any], reason: str = "EvictionByEvictionAPI") -> None:
        """Take a pod off its node, as when the node is drained or a pod of higher priority comes."""
        with self.lock:
            pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": reason})
        self.delete_pods([pod], None)

    def lose_node(self, name: str) -> None:
        """Let a node vanish. The cluster finds that out later, then gives up its pods, and at last removes it."""
        with self.lock:
            node = next(node for node in self.nodes if node.name == name)
            node.is_lost = True
            there = [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == name]
            for pod in there:
                self._sandboxes[pod["metadata"]["name"]].kill()

        def give_up() -> None:
            time.sleep(self.settings.silent_node_s)
            for pod in there:
                self.evict(pod, "DeletionByTaintManager")
            time.sleep(self.settings.removed_node_s)
            with self.lock:
                self.nodes.remove(node)
                for pod in there:
                    self.pods.pop(pod["metadata"]["name"], None)

        threading.Thread(target=give_up, daemon=True).start()

    def _is_on_lost_node(self, pod: dict[str, Any]) -> bool:
        return any(node.is_lost and node.name == pod["spec"].get("nodeName") for node in self.nodes)

    # scheduler and kubelet

    def _run_pod(self, pod: dict[str, Any]) -> None:
        """Take a pod through its life, until it has ended or is gone."""
        name = pod["metadata"]["name"]

        def exists() -> bool:
            return self._is_open and self.pods.get(name) is pod

        while exists() and not self._schedule(pod):
            time.sleep(_SYNC_S)
        pod["status"]["startTime"] = stamp(time.time())
        began_s = time.monotonic()
        time.sleep(self.settings.pull_s)
        num_tries = 0
        while (
            exists() and (waiting := obstacle(pod, self.settings.images, self.settings.secrets, num_tries)) is not None
        ):
            num_tries += 1
            image = pod["spec"]["containers"][0]["image"]
            pod["status"]["containerStatuses"] = [{"name": "member", "image": image, "state": {"waiting": waiting}}]
            time.sleep(_SYNC_S)
        with self.lock:
            if not exists():
                return
            sandbox, bill = self._start_container(pod)
        self._watch_container(pod, sandbox, bill, began_s)

    def _schedule(self, pod: dict[str, Any]) -> bool:
        """Choose the emptiest node that has room; otherwise say why there is none."""
        with self.lock:
            node, words = placed(pod, self.nodes, list(self.pods.values()))
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
            if node:
                pod["spec"]["nodeName"] = node
                condition = {"type": "PodScheduled", "status": "True"}
            others = [each for each in pod["status"]["conditions"] if each["type"] != "PodScheduled"]
            pod["status"]["conditions"] = [*others, condition]
            return bool(node)

    def _start_container(self, pod: dict[str, Any]) -> tuple[Sandbox, Bill]:
        container = pod["spec"]["containers"][0]
        command = [*container["command"], *(container.get("args") or [])]
        sandbox = self._host.start(command, confines_of(pod, self.settings.images, self.settings.secrets))
        self._sandboxes[pod["metadata"]["name"]] = sandbox
        began = {"running": {"startedAt": stamp(sandbox.started_at_s)}}
        pod["status"] |= {
            "phase": "Running",
            "podIP": sandbox.address,
            "containerStatuses": [{"name": container["name"], "image": container["image"], "state": began}],
        }
        labels = pod["metadata"]["labels"]
        bill = Bill(labels["zooid/run"], labels["zooid/title"], container["resources"]["limits"], sandbox.started_at_s)
        self.bills.append(bill)
        return sandbox, bill

    def _watch_container(self, pod: dict[str, Any], sandbox: Sandbox, bill: Bill, began_s: float) -> None:
        deadline_s = pod["spec"].get("activeDeadlineSeconds")
        is_over, is_out_of_memory = False, False
        while sandbox.status is None:
            if deadline_s is not None and not is_over and time.monotonic() - began_s >= deadline_s:
                is_over = True
                self._terminate(sandbox, pod["spec"].get("terminationGracePeriodSeconds", 30))
            if self.settings.kills_groups and sandbox.ran_out_of_memory:
                is_out_of_memory = True
                sandbox.kill()
            time.sleep(_POLL_S)
        ended_s = sandbox.ended_at_s
        assert ended_s is not None
        bill.ended_s = ended_s
        if self._is_on_lost_node(pod) or not self._is_open:
            return  # nobody tells the cluster
        with self.lock:
            status = sandbox.wait()
            code = status if status >= 0 else 128 - status
            reason = (
                "OOMKilled"
                if is_out_of_memory or (code and sandbox.ran_out_of_memory)
                else "Error"
                if code
                else "Completed"
            )
            self.num_out_of_memory += reason == "OOMKilled"
            times = {"startedAt": stamp(sandbox.started_at_s), "finishedAt": stamp(ended_s)}
            pod["status"]["containerStatuses"][0]["state"] = {
                "terminated": {"exitCode": code, "reason": reason, **times}
            }
            pod["status"]["phase"] = "Failed" if code or is_over else "Succeeded"
            if is_over:
                words = "Pod was active on the node longer than the specified deadline"
                pod["status"] |= {"reason": "DeadlineExceeded", "message": words}
            if "deletionTimestamp" in pod["metadata"]:
                self.pods.pop(pod["metadata"]["name"], None)

    def alive(self, run: str) -> list[str]:
        """Return the names of everything that a run has left."""
        with self.lock:
            left = [f"job {name}" for name, job in self.jobs.items() if job["metadata"]["labels"]["zooid/run"] == run]
            left += [f"pod {name}" for name, pod in self.pods.items() if pod["metadata"]["labels"]["zooid/run"] == run]
            return left + [
                f"container of {bill.title}" for bill in self.bills if bill.run == run and bill.ended_s is None
            ]

    def pod_of(self, run: str, title: str) -> dict[str, Any]:
        """Return the pod of a member."""
        with self.lock:
            return next(
                pod
                for pod in self.pods.values()
                if (pod["metadata"]["labels"]["zooid/run"], pod["metadata"]["labels"]["zooid/title"]) == (run, title)
            )

    def freeze(self, run: str, title: str) -> None:
        """Let everything in the container of a member hang."""
        self._sandboxes[self.pod_of(run, title)["metadata"]["name"]].freeze()

    def used_s(self, run: str) -> float:
        """Return for how long the containers of a run have existed, all together."""
        with self.lock:
            own = [bill for bill in self.bills if bill.run == run]
            assert all(bill.ended_s is not None for bill in own), "a container still runs"
            return sum((bill.ended_s or 0.0) - bill.began_s for bill in own)

    def wait_for(self, is_so: Callable[["KubernetesCluster"], bool], timeout_s: float = 30.0) -> None:
        """Wait until something is so in the cluster."""
        deadline_s = time.monotonic() + timeout_s
        while not is_so(self):
            assert time.monotonic() < deadline_s, "it did not come to pass in the cluster"
            time.sleep(_POLL_S)
