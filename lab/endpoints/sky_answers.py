"""What SkyPilot's stand-in prints as JSON, with the fields that SkyPilot 0.14.1 prints.

A test reads these answers with SkyPilot's own records.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.endpoints.sky_service import Cluster, Request

_USER = {"user_hash": "0a1b2c3d", "user_name": "laboratory"}


def cluster_answer(cluster: Cluster) -> dict[str, Any]:
    """One row of `sky status`."""
    cloud, region = cluster.task.machine.infra.split("/")
    return {
        "name": cluster.name,
        "launched_at": int(cluster.rented_s),
        "last_use": "sky launch",
        "status": cluster.status,
        "autostop": cluster.idle_minutes if cluster.status == "UP" else -1,
        "to_down": cluster.status == "UP",
        "owner": None,
        "metadata": {},
        "cluster_hash": cluster.request.id,
        "cluster_ever_up": cluster.status == "UP",
        "status_updated_at": int(time.time()),
        **_USER,
        "workspace": "default",
        "is_managed": False,
        "nodes": 1,
        "cloud": cloud.upper(),
        "region": region,
        "resources_str": f"1x({cluster.task.machine.name})",
    }


def request_answer(request: Request) -> dict[str, Any]:
    """One row of `sky api status`, which lacks what was not asked for."""
    return {
        "request_id": request.id,
        "name": "sky.launch",
        "entrypoint": "",
        "request_body": "",
        "status": request.status,
        "created_at": time.time(),
        "user_id": _USER["user_hash"],
        "return_value": "",
        "error": "",
        "pid": None,
        "schedule_type": "",
        "user_name": _USER["user_name"],
        "cluster_name": None,
    }


def job_answer(cluster: Cluster) -> dict[str, Any]:
    """One row of `sky queue`."""
    return {
        "job_id": 1,
        "job_name": cluster.task.name,
        "username": _USER["user_name"],
        "user_hash": _USER["user_hash"],
        "submitted_at": cluster.rented_s,
        "start_at": None,
        "end_at": None,
        "resources": f"1x[{cluster.task.machine.name}]",
        "status": cluster.job_status,
        "log_path": "~/sky_logs/1",
        "metadata": {},
    }


def cost_answer(cluster: Cluster) -> dict[str, Any]:
    """One row of `sky cost-report`, whose times are whole seconds."""
    ended_s = int(time.time() if cluster.ended_s is None else cluster.ended_s)
    return {
        "name": cluster.name,
        "launched_at": int(cluster.rented_s),
        "duration": ended_s - int(cluster.rented_s),
        "num_nodes": 1,
        "cluster_hash": cluster.request.id,
        "usage_intervals": [[int(cluster.rented_s), None if cluster.ended_s is None else ended_s]],
        "status": cluster.status if cluster.is_listed else "TERMINATED",
        "total_cost": cluster.usd,
    }
