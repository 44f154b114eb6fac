"""Requests to Kubernetes through its official client, which is imported only here and only when it is needed.

Answers are read as plain JSON: a cluster may be newer or older than the client, whose models are strict.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zooid.core.errors import InputError, ZooidError
from zooid.core.text import quoted
from zooid.platforms.kubernetes.namespaces import Namespace

_TIMEOUT_S = (5, 30)
"""Time-outs of connecting and of reading, for every request."""
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""In a pod, the namespace of that pod."""
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
_MAX_TITLES = 50
"""Number of members that one request selects. Each adds its title to the URL."""
RUN_LABEL, TITLE_LABEL = "zooid/run", "zooid/title"


class ClusterRefusal(ZooidError):
    """The cluster has refused a request."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status

    @property
    def is_forbidden(self) -> bool:
        return self.status == _FORBIDDEN


class ClusterClient:
    """Requests in one namespace of a cluster. All methods may be called from several threads."""

    def __init__(self, sdk: Any, configuration: Any, namespace: str) -> None:
        self._sdk = sdk
        self._api = sdk.client.ApiClient(configuration)
        self._batch = sdk.client.BatchV1Api(self._api)
        self._core = sdk.client.CoreV1Api(self._api)
        self._host = str(configuration.host).rstrip("/")
        self._namespace = namespace

    @property
    def where(self) -> str:
        """The cluster and the namespace, as handles of members name them."""
        return f"{self._namespace} at {self._host}"

    def create_job(self, manifest: dict[str, Any], *, only_checks: bool = False) -> None:
        """Create a Job, unless it exists; or only let the cluster check it."""
        dry_run = {"dry_run": "All"} if only_checks else {}
        try:
            self._ask(self._batch.create_namespaced_job, manifest, field_validation="Strict", **dry_run)
        except ClusterRefusal as refusal:
            if refusal.status != _CONFLICT:
                raise

    def jobs(self, run: str) -> list[dict[str, Any]]:
        return self._items(self._batch.list_namespaced_job, label_selector=f"{RUN_LABEL}={run}")

    def pods(self, run: str) -> list[dict[str, Any]]:
        return self._items(self._core.list_namespaced_pod, label_selector=f"{RUN_LABEL}={run}")

    def quotas(self) -> list[dict[str, Any]]:
        """Return the quotas of the namespace; none if they may not be read."""
        return self._permitted_items(self._core.list_namespaced_resource_quota)

    def events_of_job(self, job: str) -> list[dict[str, Any]]:
        """Return what the cluster says about a Job that gets no pod; nothing if that may not be read."""
        selector = f"involvedObject.kind=Job,involvedObject.name={job}"
        return self._permitted_items(self._core.list_namespaced_event, field_selector=selector)

    def delete(self, run: str, titles: Sequence[str], grace_s: int) -> None:
        """Delete the Jobs and pods of members. Their processes get SIGTERM, and SIGKILL after `grace_s` seconds."""
        for first in range(0, len(titles), _MAX_TITLES):
            selected = ",".join(sorted(titles[first : first + _MAX_TITLES]))
            selector = f"{RUN_LABEL}={run},{TITLE_LABEL} in ({selected})"
            # the Jobs go first, since a Job makes another pod for one that it finds deleted
            self._ask(
                self._batch.delete_collection_namespaced_job, label_selector=selector, propagation_policy="Background"
            )
            self._ask(
                self._core.delete_collection_namespaced_pod, label_selector=selector, grace_period_seconds=grace_s
            )

    def close(self) -> None:
        self._api.close()

    def _permitted_items(self, request: Callable[..., Any], **options: Any) -> list[dict[str, Any]]:
        try:
            return self._items(request, **options)
        except ClusterRefusal as refusal:
            if refusal.is_forbidden:
                return []
            raise

    def _items(self, request: Callable[..., Any], **options: Any) -> list[dict[str, Any]]:
        return list(self._ask(request, **options).get("items") or [])

    def _ask(self, request: Callable[..., Any], *given: Any, **options: Any) -> dict[str, Any]:
        with self._failures_in_words():
            answer = request(self._namespace, *given, **options, _preload_content=False, _request_timeout=_TIMEOUT_S)
            decoded = json.loads(answer.data)
            return decoded if isinstance(decoded, dict) else {}

    @contextmanager
    def _failures_in_words(self) -> Iterator[None]:
        try:
            yield
        except self._sdk.client.ApiException as error:
            status = int(error.status or 0)
            raise ClusterRefusal(f"the cluster {self._host} says: {_words(error)}{_advice(status)}", status) from error
        except (importlib.import_module("urllib3").exceptions.HTTPError, OSError) as error:
            raise ZooidError(
                f"the cluster {self._host} cannot be reached: {quoted(str(error))}; check your network, and that "
                "kubectl works with the same context"
            ) from error
        except ValueError as error:
            raise ZooidError(f"the cluster {self._host} has answered what is no JSON: {quoted(str(error))}") from error


class ClusterClients:
    """Clients of the namespaces that the file of machines lists, each made when it is first needed."""

    def __init__(self, namespaces: Callable[[], dict[str, Namespace]]) -> None:
        self._namespaces = namespaces
        self._made: dict[str, ClusterClient] = {}

    def namespace_of(self, offer: str) -> Namespace:
        """Return the table of an offer."""
        listed = self._namespaces()
        if offer not in listed:
            raise InputError(f"no cluster is named {offer!r}; write a table [{offer}] into the file of machines")
        return listed[offer]

    def of(self, offer: str) -> ClusterClient:
        """Return the client for members of an offer."""
        if offer not in self._made:
            self._made[offer] = opened_client(self.namespace_of(offer))
        return self._made[offer]

    def at(self, where: str) -> ClusterClient:
        """Return the client of a place that a handle names. Only places that the file lists are connected to."""
        reasons = []
        for offer in self._namespaces():
            try:
                if self.of(offer).where == where:
                    return self.of(offer)
            except InputError as error:  # another cluster, perhaps, whose login has expired
                reasons.append(str(error))
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise InputError(f"the file of machines has no table [kubernetes.NAME] of the namespace {quoted(where)}{why}")


def opened_client(named: Namespace) -> ClusterClient:
    """Return a client with the login that kubectl uses. Nothing is asked of the cluster."""
    sdk = _imported_sdk()
    configuration = sdk.client.Configuration()
    file, context = os.path.expanduser(named.config) or None, named.context or None
    table = f"[{named.name}] in the file of machines"
    is_in_pod = not file and not context and _OWN_NAMESPACE.exists()
    try:
        if is_in_pod:
            sdk.config.load_incluster_config(configuration)
            default = _OWN_NAMESPACE.read_text().strip()
        else:
            sdk.config.load_kube_config(file, context, configuration, persist_config=False)
            default = _namespace_of_context(sdk, file, context)
    except (sdk.config.ConfigException, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"the kubeconfig {file or 'that kubectl uses'} cannot be used: {quoted(str(error))}; give `config` and "
            f"`context` in {table}, and check them with: kubectl config get-contexts"
        ) from error
    return ClusterClient(sdk, configuration, named.namespace or default or "default")


def _namespace_of_context(sdk: Any, file: str | None, context: str | None) -> str:
    contexts, current = sdk.config.list_kube_config_contexts(file)
    chosen = current if context is None else next(each for each in contexts if each["name"] == context)
    return str(chosen["context"].get("namespace") or "")


def _imported_sdk() -> Any:
    try:
        importlib.import_module("kubernetes.client")
        importlib.import_module("kubernetes.config")
    except ImportError as error:
        raise InputError(
            f"members on Kubernetes need its client, which cannot be imported ({error}): pip install "
            "'zooid[kubernetes]'"
        ) from error
    return importlib.import_module("kubernetes")


def _words(error: Any) -> str:
    """Return what the API server says: the message of its Status, or else the reason of the response."""
    try:
        message = json.loads(error.body or "")["message"]
    except (ValueError, TypeError, KeyError):
        message = error.reason or "nothing"
    return quoted(str(message))


def _advice(status: int) -> str:
    if status == 401:
        return "; log in again, as for kubectl"
    if status == _FORBIDDEN:
        return "; docs/kubernetes-role.yaml has the role that zooid needs"
    return ""
