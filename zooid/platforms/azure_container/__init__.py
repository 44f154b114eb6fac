"""Members in containers of Azure: container groups, and jobs of Container Apps."""

from zooid.platforms.azure_container.azure_platforms import group_platform, job_platform

__all__ = ["group_platform", "job_platform"]
