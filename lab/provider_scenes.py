"""Providers on which the suites of platforms and of rented runs are run: endpoints of the laboratory, by name."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from lab.endpoints.azure_scenes import azure_container_scene, azure_job_scene
from lab.endpoints.cloud_run_scene import cloud_run_scene
from lab.endpoints.function_scene import function_scene
from lab.endpoints.kubernetes_scene import kubernetes_scene
from lab.endpoints.microvm_scene import microvm_scene
from lab.endpoints.sky_scene import sky_scene
from lab.platform_scenes import Scene

PROVIDER_SCENES: dict[str, Callable[[], AbstractContextManager[Scene]]] = {
    "aws_lambda": function_scene,
    "aws_microvm": microvm_scene,
    "azure_container": azure_container_scene,
    "azure_job": azure_job_scene,
    "cloud_run": cloud_run_scene,
    "kubernetes": kubernetes_scene,
    "skypilot": sky_scene,
}
