"""Checkpoints: their contents, which member writes which part, and how often one is written.

The manifest is written last, so that a checkpoint is either complete or invisible.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from msgspec import field

from zooid.core.jobs.loss_form import LossForm
from zooid.core.records import FileRecord, Record, require, require_at_least, require_positive
from zooid.core.runs import keys
from zooid.core.runs.batch_history import BatchPiece, check_order
from zooid.core.runs.gradient_noise import NoiseEstimate
from zooid.core.text import quoted


class CheckpointRule(Record, frozen=True, kw_only=True):
    """The interval between a run's checkpoints, besides the first and the last, and the number that is kept."""

    every_s: float | None = None
    """Time between two checkpoints."""
    every_steps: int | None = None
    """Steps between two checkpoints; excludes `every_s`. Without both, a run writes only its first and last one."""
    is_automatic: bool = False
    """Whether the interval may follow from the plan's expected rollbacks. If these are unknown, `every_s` holds."""
    between_rollbacks_s: float | None = None
    """Expected time between two rollbacks, from the plan of an automatic rule; None if it is unknown."""
    pause_s: float | None = None
    """Predicted time for which a checkpoint stops a member; None if it is unknown. Members measure it."""
    keep: int = 2

    def __post_init__(self) -> None:
        require_positive(self, "every_s", "between_rollbacks_s")
        require_at_least(1, self, "every_steps")
        require_at_least(0, self, "pause_s")
        require(
            not self.is_automatic or self.every_s is not None,
            "`is_automatic` is true without `every_s`; give the interval for plans whose rollbacks are unknown",
        )
        require(
            self.every_s is None or self.every_steps is None,
            f"`every_s` is {self.every_s} and `every_steps` is {self.every_steps}; give one of them",
        )
        require(self.keep >= 1, f"`keep` is {self.keep}; at least the newest checkpoint has to stay: give 1 or more")

    def is_due(self, num_steps: int, seconds: float) -> bool:
        """Whether the next checkpoint is due, given the steps and seconds since the last one."""
        in_steps = self.every_steps is not None and num_steps >= self.every_steps
        in_time = self.every_s is not None and num_steps >= 1 and seconds >= self.every_s
        return in_steps or in_time


DEFAULT_RULE = CheckpointRule(every_s=600.0, is_automatic=True)

SHARD_BYTES = 128 * 2**20
"""Maximum size of a shard. A shard is held in memory beside its tensors, so it must be small compared to a stage."""


class Shard(Record, frozen=True, kw_only=True):
    """One safetensors object, with the names of its tensors."""

    key: str
    names: tuple[str, ...]


class SampleFacts(Record, frozen=True, kw_only=True):
    """The facts that decide which samples each step of a run owns; they stay the same when a run is resumed."""

    num_samples: int
    batch_size: int
    grain_size: int
    epochs: int
    seed: int
    is_in_order: bool = False
    """Whether the data set is iterable, so that zooid does not shuffle its samples."""

    def __post_init__(self) -> None:
        require_at_least(1, self, "num_samples", "batch_size", "grain_size", "epochs")


_NOT_FINITE = ("nan", "inf", "-inf")
"""Texts for the numbers that JSON cannot represent."""


class Evaluation(Record, frozen=True, kw_only=True):
    """The results of one evaluation. A number that is not finite is a text, because JSON cannot represent it."""

    step: int
    """Number of steps before the evaluation."""
    numbers: dict[str, float | str]
    """The loss and the job's metrics, by name."""

    def __post_init__(self) -> None:
        for name, number in self.numbers.items():
            require(
                not isinstance(number, str) or number in _NOT_FINITE,
                f"`numbers` says {quoted(str(number))!r} for {quoted(name)!r}; give a number, or one of "
                f"{', '.join(_NOT_FINITE)}",
            )

    def value(self, name: str) -> float:
        return float(self.numbers[name])


class Ledger(Record, frozen=True, kw_only=True):
    """State of a run besides its tensors, with which a resumed run continues as if never interrupted."""

    evaluations: tuple[Evaluation, ...] = ()
    """All evaluations so far, in order."""
    best_step: int | None = None
    """Step of the best checkpoint, which is kept until a better one is written."""
    stopped: str = ""
    """Why the run ended before its last step; empty if it did not."""
    by_request: bool = False
    """Whether a person ended it with `zooid stop`, or a limit did, so that the run is not complete and can be
    resumed."""

    batches: tuple[BatchPiece, ...] = ()
    """Batch sizes and learning-rate factors after the job's own, in order. The last piece still holds."""
    noise: NoiseEstimate = NoiseEstimate()
    """The gradient noise so far, if the job's scaling policy wants to know it."""

    def __post_init__(self) -> None:
        check_order(self.batches)

    @property
    def is_complete_early(self) -> bool:
        """Whether the job itself has ended the run before its last step."""
        return bool(self.stopped) and not self.by_request


class CheckpointManifest(FileRecord, frozen=True, kw_only=True, tag="checkpoint"):
    """The state after exactly `step` steps."""

    VERSION: ClassVar[int] = 3

    version: int = 3
    step: int
    model_fingerprint: str
    samples: SampleFacts
    data_shards: str = ""
    """Digest of the sizes of the data set's shards, which determine the order of samples; empty if it has none."""
    optimizer_class: str
    """Class of the optimizer; another optimizer cannot use its state."""
    optimizer_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings of the optimizer, such as `lr`, with their different values over the parameter groups, as text."""
    shards: tuple[Shard, ...]
    """Parameters and buffers of the model's state dict, each name in exactly one shard."""
    optimizer: tuple[Shard, ...] = ()
    """State of the optimizer by parameter name. A parameter may have none; before the first step, none has any."""
    constants: tuple[Shard, ...]
    """Buffers that a stage needs but that are not in the state dict."""
    aliases: dict[str, str]
    """Names in the state dict that share the tensor of another name."""
    loss_form: LossForm = LossForm()
    """Form of the loss, as found before the first step."""
    loss_scale: float = 1.0
    """Factor on the losses of the next step; 1 if they are not scaled."""
    num_good_steps: int = 0
    """Number of steps without overflow since the last change of the loss scale."""
    ledger: Ledger = Ledger()

    def __post_init__(self) -> None:
        require_at_least(0, self, "step", "num_good_steps")
        for kind in ("shards", "optimizer"):
            names = [name for shard in getattr(self, kind) for name in shard.names]
            require(len(names) == len(set(names)), f"`{kind}` hold a name twice")
        require_positive(self, "loss_scale")


@dataclass(frozen=True)
class Part:
    """The shards of a checkpoint that one member writes."""

    model: tuple[Shard, ...]
    optimizer: tuple[Shard, ...]
    """Optimizer shards; empty if the member has no parameters."""


@dataclass(frozen=True, eq=False)
class Division:
    """The division of a run's checkpoints among the members of one roster.

    It follows from the layout and from the names and sizes of the tensors, so that the writer of the manifest asks
    nobody. Shards of different rosters have different keys, so that a member that was replaced without noticing cannot
    overwrite its successor's.
    """

    stages: tuple[Mapping[str, int], ...]
    """Names in the state dict that each stage keeps, with their bytes; each name is at one stage."""
    parameters: frozenset[str]
    """Names of the tensors that may have optimizer state."""
    num_replicas: int = 1
    roster: int = 0
    """Number of the roster's claim."""
    change: int = 0
    """Number of times that members have replaced the claim's first roster."""

    def part(self, step: int, stage: int, replica: int) -> Part | None:
        """Return the part of the member in this seat; None if it has none, because there are few tensors."""
        total = len(self._shards)
        numbered = [(number, names) for number, (seat, names) in enumerate(self._shards) if seat == (stage, replica)]
        if not numbered:
            return None
        roster = (self.roster, self.change)
        model = [
            Shard(key=keys.shard(step, "model", number, total, *roster), names=names) for number, names in numbered
        ]
        optimizer = [
            Shard(key=keys.shard(step, "optimizer", number, total, *roster), names=trained)
            for number, names in numbered
            if (trained := tuple(name for name in names if name in self.parameters))
        ]
        return Part(tuple(model), tuple(optimizer))

    def parts(self, step: int) -> list[Part]:
        """Return the parts of all members."""
        seats = dict.fromkeys(seat for seat, _ in self._shards)
        return [part for seat in seats if (part := self.part(step, *seat)) is not None]

    @cached_property
    def _shards(self) -> list[tuple[tuple[int, int], tuple[str, ...]]]:
        """The seat (stage, replica) that writes each shard, and the names in the shard."""
        return [
            ((stage, replica), names)
            for stage, sizes in enumerate(self.stages)
            for replica in range(self.num_replicas)
            for names in cut_shards(sizes, part_of(sizes, self.num_replicas, replica))
        ]


def cut_shards(sizes: Mapping[str, int], names: Iterable[str], max_bytes: int = SHARD_BYTES) -> list[tuple[str, ...]]:
    """Group names into shards of at most `max_bytes`, in order; a larger tensor gets a shard of its own.

    >>> cut_shards({"a": 5, "b": 4, "c": 3, "d": 9}, "abcd", 8)
    [('a',), ('b', 'c'), ('d',)]
    """
    shards: list[tuple[str, ...]] = []
    num_bytes = 0
    for name in names:
        if shards and num_bytes + sizes[name] <= max_bytes:
            shards[-1] += (name,)
            num_bytes += sizes[name]
        else:
            shards.append((name,))
            num_bytes = sizes[name]
    return shards


def part_of(sizes: Mapping[str, int], num_replicas: int, replica: int) -> tuple[str, ...]:
    """Return the names that one replica of a stage writes, sorted; all replicas have the same tensors.

    Greedily gives the largest remaining tensor to the replica with the fewest bytes, within 4/3 of the optimum.

    >>> part_of({"a": 5, "b": 4, "c": 3}, 2, 0), part_of({"a": 5, "b": 4, "c": 3}, 2, 1)
    (('a',), ('b', 'c'))
    """
    loads = [0] * num_replicas
    names = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writer = loads.index(min(loads))
        loads[writer] += sizes[name]
        if writer == replica:
            names.append(name)
    return tuple(sorted(names))
