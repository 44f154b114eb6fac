"""An API server of Kubernetes for one namespace: the requests of its official client, checked as a cluster would."""

import importlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes.client.models.v1_job import V1Job

from lab.endpoints.json_server import JsonAnswer, JsonRequest, json_server
from lab.endpoints.kubernetes_cluster import KubernetesCluster
from zooid.platforms.kubernetes.quotas import quantity

_PATH = re.compile(r"/(?:api/v1|apis/(?P<group>[a-z]+)/v1)/namespaces/(?P<namespace>[^/]+)/(?P<resource>[a-z]+)")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_MAX_NAME, _MAX_LABEL = 63, 63
_yaml: Any = importlib.import_module("yaml")  # comes with the client of Kubernetes, and has no types
_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_KINDS = {"jobs": "Job", "pods": "Pod", "events": "Event", "resourcequotas": "ResourceQuota"}


class ApiRefusal(Exception):
    """A request that the API server refuses, with the reason and the code of its Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


@dataclass
class KubernetesApi:
    """The API server of a cluster, to which one user has access with a token and a role."""

    cluster: KubernetesCluster
    namespace: str
    token: str
    rules: Sequence[dict[str, Any]]
    """Rules of the user's role."""
    used: set[tuple[str, str]] = field(default_factory=set)
    """Verbs that the user has needed, and the resource of each."""

    def answer(self, request: JsonRequest) -> JsonAnswer:
        try:
            return self._answer(request)
        except ApiRefusal as refusal:
            status = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": str(refusal),
                "reason": refusal.reason,
                "code": refusal.code,
            }
            return JsonAnswer(status, refusal.code)

    def _answer(self, request: JsonRequest) -> JsonAnswer:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise ApiRefusal(401, "Unauthorized", "Unauthorized")
        matched = _PATH.fullmatch(request.path)
        verb = _VERBS.get(request.method)
        if matched is None or verb is None or matched["resource"] not in _KINDS:
            raise ApiRefusal(404, "NotFound", "the server could not find the requested resource")
        group, resource = matched["group"] or "", matched["resource"]
        self._authorize(verb, group, resource, matched["namespace"])
        if verb == "list":
            items = self._selected(resource, request.query)
            listed: dict[str, Any] = {
                "kind": f"{_KINDS[resource]}List",
                "apiVersion": "batch/v1" if group else "v1",
                "metadata": {},
            }
            return JsonAnswer({**listed, "items": items})
        if verb == "deletecollection":
            return self._delete(resource, request)
        return self._create(request)

    def _authorize(self, verb: str, group: str, resource: str, namespace: str) -> None:
        self.used.add((verb, resource))
        permitted = any(
            verb in rule["verbs"] and resource in rule["resources"] and group in rule["apiGroups"]
            for rule in self.rules
        )
        if not permitted or namespace != self.namespace:
            raise ApiRefusal(
                403,
                "Forbidden",
                f'{resource}{f".{group}" if group else ""} is forbidden: User "zooid" cannot {verb} resource '
                f'"{resource}" in API group "{group}" in the namespace "{namespace}"',
            )

    def _selected(self, resource: str, query: Any) -> list[dict[str, Any]]:
        """Return copies of the objects that selectors mean."""
        cluster = self.cluster
        with cluster.lock:
            objects: list[dict[str, Any]] = []
            if resource == "jobs":
                objects = list(cluster.jobs.values())
            elif resource == "pods":
                objects = list(cluster.pods.values())
            elif resource == "events":
                objects = cluster.events
            else:
                objects = [self._quota(name, hard) for name, hard in cluster.quotas.items()]
            chosen = [each for each in objects if _matches(each, query)]
            copies: list[dict[str, Any]] = json.loads(json.dumps(chosen))
            return copies

    def _quota(self, name: str, hard: dict[str, str]) -> dict[str, Any]:
        used = {resource: f"{amount:g}" for resource, amount in self.cluster.used_of(hard).items()}
        return {"metadata": {"name": name}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}

    def _delete(self, resource: str, request: JsonRequest) -> JsonAnswer:
        cluster, query = self.cluster, request.query
        grace_s = int(query["gracePeriodSeconds"]) if "gracePeriodSeconds" in query else None
        with cluster.lock:
            if resource == "jobs":
                if query.get("propagationPolicy") != "Background":
                    raise ApiRefusal(422, "Invalid", "this endpoint knows the propagation policy Background only")
                cluster.delete_jobs([job for job in cluster.jobs.values() if _matches(job, query)])
            else:
                cluster.delete_pods([pod for pod in cluster.pods.values() if _matches(pod, query)], grace_s)
        return JsonAnswer({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200})

    def _create(self, request: JsonRequest) -> JsonAnswer:
        manifest = request.body
        try:
            V1Job.model_validate(manifest)
        except ValueError as error:
            raise ApiRefusal(400, "BadRequest", f"strict decoding error: {error}") from error
        problems = job_problems(manifest)
        name = manifest["metadata"]["name"]
        if problems:
            raise ApiRefusal(422, "Invalid", f'Job.batch "{name}" is invalid: {"; ".join(problems)}')
        with self.cluster.lock:
            if name in self.cluster.jobs:
                raise ApiRefusal(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
            if "dryRun" not in request.query:
                self.cluster.add_job(manifest)
        return JsonAnswer(manifest, 201)


def job_problems(manifest: dict[str, Any]) -> list[str]:
    """Return what the validation of Jobs has against one."""
    metadata, spec = manifest["metadata"], manifest["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    found = []
    for where, name in (("metadata.name", metadata["name"]), ("containers[0].name", container["name"])):
        if _NAME.fullmatch(name) is None or len(name) > _MAX_NAME:
            found.append(f"{where}: {name!r} must be a lower-case RFC 1123 label of at most {_MAX_NAME} characters")
    for labels in (metadata["labels"], spec["template"]["metadata"]["labels"]):
        for name, value in labels.items():
            if _LABEL_VALUE.fullmatch(value) is None or len(value) > _MAX_LABEL:
                found.append(f"labels: {name} has the invalid value {value!r}")
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        found.append("spec.template.spec.restartPolicy: supported values: OnFailure, Never")
    if not container.get("image"):
        found.append("containers[0].image: Required value")
    volumes = {volume["name"] for volume in pod.get("volumes") or []}
    found += [
        f"volumeMounts: {mount['name']} not found"
        for mount in container.get("volumeMounts") or []
        if mount["name"] not in volumes
    ]
    resources = container["resources"]
    for name, requested in resources["requests"].items():
        try:
            if quantity(requested) > quantity(resources["limits"][name]):
                found.append(f"resources.requests: {name} must be less than or equal to its limit")
        except ValueError as error:
            found.append(f"resources: {error}")
    return found


def _matches(item: dict[str, Any], query: Any) -> bool:
    """Whether an object has the labels and fields of selectors, such as `a=b,c in (d,e)`."""
    labels = item["metadata"].get("labels") or {}
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", query.get("labelSelector", "")):
        name, is_set, values = part.strip(", ").partition(" in ")
        if is_set:
            allowed = [value.strip() for value in values.strip("() ").split(",")]
        else:
            name, _, value = part.strip(", ").partition("=")
            allowed = [value]
        if labels.get(name.strip()) not in allowed:
            return False
    for part in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, wanted = part.partition("=")
        found: Any = item
        for step in path.split("."):
            found = found.get(step) or {}
        if found != wanted:
            return False
    return True


def role_rules(file: Path) -> list[dict[str, Any]]:
    """Read the rules of the role in a file of manifests."""
    manifests = [manifest for manifest in _yaml.safe_load_all(file.read_text()) if manifest]
    [role] = [manifest for manifest in manifests if manifest["kind"] == "Role"]
    return list(role["rules"])


def write_kubeconfig(file: Path, url: str, api: KubernetesApi) -> None:
    """Write the kubeconfig with which the official client reaches an endpoint."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "zooid", "user": {"token": api.token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "zooid", "namespace": api.namespace}}],
    }
    file.write_text(_yaml.safe_dump(config))


@contextmanager
def kubernetes_endpoint(api: KubernetesApi) -> Iterator[str]:
    """Serve a cluster while the block runs, and end all its containers afterwards; yields the URL."""
    with json_server(api.answer) as url:
        try:
            yield url
        finally:
            api.cluster.close()
