"""Members as jobs of a Slurm cluster, which the user's own commands submit, list and cancel."""

import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from zooid.core.errors import ZooidError
from zooid.core.runs.member_records import Exit, MemberHandle
from zooid.entry.attendant import GRACE_S
from zooid.platforms.platform import Launch
from zooid.platforms.slurm.batch_script import (
    JobSize,
    SlurmPartition,
    batch_script,
    fits_array,
    sbatch_command,
)
from zooid.platforms.slurm.cluster_commands import Cluster, ClusterCommands, SlurmRefusal
from zooid.platforms.slurm.job_rows import JobRow, parse_rows, squeue_command
from zooid.platforms.slurm.node_rows import NodeRow, parse_nodes, sinfo_command

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_KILL_S = GRACE_S + 1.5
"""Seconds from the interrupt until all processes of a job are killed. Members usually end sooner, and record it."""
_CANCEL_S = _KILL_S + 3.0
"""Seconds from the interrupt until jobs that are still there are cancelled. Slurm waits half a minute before it kills a
cancelled job, and also before it sends KILL. It sends HUP at once, which ends processes, too."""
_GONE_S = _CANCEL_S + 5.0
"""Seconds to wait for jobs. Those on a node that does not answer stay listed until Slurm gives the node up."""
_HOPELESS_S = 5.0
"""Seconds for which a job must have waited for a hopeless reason, since nodes that come and go cause it, too."""


_LONG_AGO_S = -math.inf


class SlurmPlatform:
    """Starts members as jobs. All members of the same size are one array, which takes one call of `sbatch`."""

    name = "slurm"
    look_s = 1.0
    """Slurm looks for jobs to start about once a second, and asking it more often would burden its controller."""

    def __init__(self, partition_of: Callable[[str], SlurmPartition]) -> None:
        """`partition_of` returns the partition of an offer, by the offer's name."""
        self._partition_of = partition_of
        self._partitions: dict[str, SlurmPartition] = {}
        self._commands: dict[Cluster, ClusterCommands] = {}
        self._names: dict[Cluster, str] = {}
        self._used: dict[str, set[Cluster]] = {}
        """Clusters of each run."""
        self._rows: dict[tuple[Cluster, str], tuple[float, dict[str, JobRow]]] = {}
        """What a cluster has listed of a run, and when, by the monotonic clock."""
        self._submitted: dict[tuple[Cluster, str], set[str]] = {}
        """Titles that were submitted since the last listing."""
        self._watched: dict[tuple[Cluster, str], set[str]] = {}
        """Titles that another process has submitted."""
        self._failed: dict[str, dict[str, Exit]] = {}
        self._hopeless_since_s: dict[str, float] = {}
        """When a job was first seen to wait for a hopeless reason, by its number."""
        self._nodes: dict[tuple[Cluster, str], tuple[float, list[NodeRow]]] = {}
        self._is_silent = False

    def create(self, launches: Sequence[Launch]) -> None:
        by_run: dict[tuple[str, Cluster], list[Launch]] = {}
        for launch in launches:
            cluster = self._partition(launch.offer).cluster
            by_run.setdefault((launch.ticket.run, cluster), []).append(launch)
        for (run, cluster), wanted in by_run.items():
            self._used.setdefault(run, set()).add(cluster)
            listed = self._listed(cluster, run, max_age_s=0.0)
            arrays: dict[tuple[object, ...], list[Launch]] = {}
            for launch in wanted:
                row = listed.get(launch.ticket.title)
                if row is None or not row.is_living:
                    partition = self._partition(launch.offer)
                    key = (partition, launch.ticket.roster, JobSize.of(partition, launch.ticket))
                    arrays.setdefault(key, []).append(launch)
            for array in arrays.values():
                self._submit(array)

    def _submit(self, launches: Sequence[Launch]) -> None:
        """Submit members as one array, or as several if Slurm does not take one of this size."""
        if len(launches) > 1 and not fits_array(launches):
            self._submit_halves(launches)
            return
        partition, run = self._partition(launches[0].offer), launches[0].ticket.run
        titles = [launch.ticket.title for launch in launches]
        failed = self._failed.setdefault(run, {})
        for title in titles:
            failed.pop(title, None)
        try:
            self._give(partition.cluster, sbatch_command(launches, partition), batch_script(launches, partition))
            self._submitted.setdefault((partition.cluster, run), set()).update(titles)
            self._rows[partition.cluster, run] = (_LONG_AGO_S, self._rows[partition.cluster, run][1])
        except SlurmRefusal as error:
            if len(launches) > 1 and "array" in str(error):
                self._submit_halves(launches)
                return
            failed.update(dict.fromkeys(titles, Exit(None, reason=f"could not be started: {error}")))
        except ZooidError as error:
            failed.update(dict.fromkeys(titles, Exit(None, reason=f"could not be started: {error}")))

    def _submit_halves(self, launches: Sequence[Launch]) -> None:
        middle = len(launches) // 2
        self._submit(launches[:middle])
        self._submit(launches[middle:])

    def members(self, run: str) -> Mapping[str, Exit | None]:
        found: dict[str, Exit | None] = dict(self._failed.get(run, {}))
        for cluster in self._used.get(run, ()):
            for title, row in self._listed(cluster, run, self.look_s).items():
                if row.is_living:
                    found[title] = self._hopelessness(row)
                elif (end := row.end) is not None:
                    found[title] = end
            found |= dict.fromkeys(self._submitted.get((cluster, run), ()))
        return found

    def delete(self, run: str, titles: Collection[str]) -> Collection[str]:
        """End members. One that runs ends its own processes and records that, before its job is cancelled."""
        left: set[str] = set()
        for cluster in self._used.get(run, ()):
            try:
                self._end(cluster, run, set(titles))
            except ZooidError as error:
                unended = self._known_living(cluster, run) & set(titles)
                logger.warning("%s could not be ended: %s", ", ".join(sorted(unended)) or "members", error)
                left |= unended
        return left

    def _known_living(self, cluster: Cluster, run: str) -> set[str]:
        """Return the titles that may run on a cluster, as far as is known without asking it."""
        _, rows = self._rows.get((cluster, run), (_LONG_AGO_S, {}))
        listed = {title for title, row in rows.items() if row.is_living}
        unlisted = self._submitted.get((cluster, run), set()) | self._watched.get((cluster, run), set())
        return listed | (unlisted - rows.keys())

    def _end(self, cluster: Cluster, run: str, titles: set[str]) -> None:
        """Interrupt jobs, kill what is left after a while, cancel what is left then, and wait until all are gone."""
        began_s = time.monotonic()
        moments_s = [0.0, _KILL_S, _CANCEL_S]
        while left := [row for title, row in self._ask(cluster, run).items() if title in titles and row.is_living]:
            passed_s = time.monotonic() - began_s
            if passed_s > _GONE_S:
                jobs = ", ".join(f"{row.job} on {row.node or 'no node'}" for row in left)
                logger.warning("Slurm has not ended these jobs yet; it will when their nodes respond: %s", jobs)
                return
            if moments_s and passed_s >= moments_s[0]:
                begun = [row for row in left if row.has_begun]
                if moments_s[0] == 0.0:
                    self._cancel(cluster, begun, "--batch", "--signal=INT")
                elif moments_s[0] == _KILL_S:
                    self._cancel(cluster, begun, "--full", "--signal=HUP")
                # to signal a job that waits would take until it runs
                self._cancel(cluster, [row for row in left if row not in begun or moments_s[0] == _CANCEL_S])
                moments_s.pop(0)
            time.sleep(_POLL_S)

    def _cancel(self, cluster: Cluster, rows: Sequence[JobRow], *options: str) -> None:
        """Cancel or signal jobs with one call. Some may have ended meanwhile, about which Slurm complains."""
        if rows:
            try:
                self._give(cluster, ["scancel", *options, *sorted(row.job for row in rows)])
            except SlurmRefusal as error:
                logger.info("scancel: %s", error)

    def has_room(self, num_members: int, offer: str) -> bool:
        """Whether nodes are free for so many members. Their jobs may still wait because of the user's limits."""
        partition = self._partition(offer)
        size = JobSize.of(partition)
        waiting = sum(row.is_waiting for _, rows in self._rows.values() for row in rows.values())
        waiting += sum(len(titles) for titles in self._submitted.values())
        try:
            nodes = self._free_nodes(partition)
        except ZooidError as error:
            logger.warning("free nodes are not known: %s", error)
            return False
        return sum(node.num_members(size.num_cpus, size.memory_mib) for node in nodes) >= num_members + waiting

    def place(self, launch: Launch) -> dict[str, str]:
        partition = self._partition(launch.offer)
        return {**partition.cluster._asdict(), "cluster": self._name(partition.cluster)}

    def watch(self, handle: MemberHandle, title: str) -> bool:
        if handle.place.keys() != {*Cluster._fields, "cluster"}:
            return False
        cluster = Cluster(handle.place["login"], handle.place["config"])
        if not cluster.login and shutil.which("squeue") is None:
            return False
        if handle.place["cluster"] != self._name(cluster):
            return False
        self._used.setdefault(handle.run, set()).add(cluster)
        self._watched.setdefault((cluster, handle.run), set()).add(title)
        return True

    def release(self) -> None:
        """Close all connections; members live on."""
        for commands in self._commands.values():
            commands.close()

    def _partition(self, offer: str) -> SlurmPartition:
        if offer not in self._partitions:
            self._partitions[offer] = self._partition_of(offer)
        return self._partitions[offer]

    def _give(self, cluster: Cluster, command: Sequence[str], text: str = "") -> str:
        return self._commands.setdefault(cluster, ClusterCommands(cluster)).give(command, text)

    def _listed(self, cluster: Cluster, run: str, max_age_s: float) -> Mapping[str, JobRow]:
        """Return the jobs of a run, at most so old; older ones if Slurm does not answer, because jobs live on."""
        at_s, rows = self._rows.get((cluster, run), (_LONG_AGO_S, {}))
        if time.monotonic() - at_s < max_age_s:
            return rows
        try:
            rows = self._ask(cluster, run)
            self._is_silent = False
        except ZooidError as error:
            if not self._is_silent:
                logger.warning("jobs cannot be listed: %s", error)
            self._is_silent = True
            self._rows[cluster, run] = (time.monotonic(), rows)
        return rows

    def _ask(self, cluster: Cluster, run: str) -> dict[str, JobRow]:
        rows = parse_rows(self._give(cluster, squeue_command(run)))
        self._rows[cluster, run] = (time.monotonic(), rows)
        self._submitted.pop((cluster, run), None)
        return rows

    def _hopelessness(self, row: JobRow) -> Exit | None:
        """Return the end of a member that Slurm will never start; None as long as it may."""
        if not row.is_hopeless:
            self._hopeless_since_s.pop(row.job, None)
            return None
        since_s = self._hopeless_since_s.setdefault(row.job, time.monotonic())
        return row.hopelessness if time.monotonic() - since_s >= _HOPELESS_S else None

    def _free_nodes(self, partition: SlurmPartition) -> list[NodeRow]:
        key = (partition.cluster, partition.partition)
        at_s, nodes = self._nodes.get(key, (_LONG_AGO_S, []))
        if time.monotonic() - at_s >= self.look_s:
            nodes = parse_nodes(self._give(partition.cluster, sinfo_command(partition.partition)))
            self._nodes[key] = (time.monotonic(), nodes)
        return nodes

    def _name(self, cluster: Cluster) -> str:
        """Return the name that a cluster has given itself; empty if Slurm does not answer."""
        if cluster not in self._names:
            try:
                lines = self._give(cluster, ["scontrol", "show", "config"]).splitlines()
            except ZooidError:
                return ""
            values = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
            self._names[cluster] = values.get("ClusterName", "")
        return self._names[cluster]
