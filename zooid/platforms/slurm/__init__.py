"""Members as jobs of a Slurm cluster."""

from zooid.platforms.slurm.batch_script import SlurmPartition
from zooid.platforms.slurm.cluster_commands import Cluster
from zooid.platforms.slurm.node_rows import asked_sizes
from zooid.platforms.slurm.slurm_jobs import SlurmPlatform

__all__ = ["Cluster", "SlurmPartition", "SlurmPlatform", "asked_sizes"]
