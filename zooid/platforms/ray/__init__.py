"""Members as actors of a Ray cluster."""

from zooid.platforms.ray.ray_actors import RayPlatform
from zooid.platforms.ray.ray_cluster import RayCluster, asked_sizes

__all__ = ["RayCluster", "RayPlatform", "asked_sizes"]
