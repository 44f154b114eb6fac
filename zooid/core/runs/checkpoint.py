"""What a checkpoint consists of, who writes which part of it, and how often one is written.

The manifest is written last: a checkpoint is complete or invisible.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from msgspec import field

from zooid.core.jobs.loss_form import LossForm
from zooid.core.records import FileRecord, Record, require
from zooid.core.runs import keys
from zooid.core.text import quoted


class CheckpointRule(Record, frozen=True, kw_only=True):
    """How often a run writes checkpoints, beside the first and the last, and how many of them stay."""

    every_s: float | None = None
    every_steps: int | None = None
    """At most one of the two is given; with neither, a run writes its first and its last checkpoint only."""
    keep: int = 2

    def __post_init__(self) -> None:
        require(self.every_s is None or self.every_s > 0, f"`every_s` is {self.every_s}; it must be above 0")
        require(
            self.every_steps is None or self.every_steps >= 1,
            f"`every_steps` is {self.every_steps}; it must be at least 1",
        )
        require(
            self.every_s is None or self.every_steps is None,
            f"`every_s` is {self.every_s} and `every_steps` is {self.every_steps}; give one of them",
        )
        require(self.keep >= 1, f"`keep` is {self.keep}; at least the newest checkpoint has to stay: give 1 or more")

    def is_due(self, num_steps: int, seconds: float) -> bool:
        """Whether so many steps and seconds after the last checkpoint the next one is due."""
        in_steps = self.every_steps is not None and num_steps >= self.every_steps
        in_time = self.every_s is not None and num_steps >= 1 and seconds >= self.every_s
        return in_steps or in_time


DEFAULT_RULE = CheckpointRule(every_s=600.0)

SHARD_BYTES = 128 * 2**20
"""Whoever writes or reads a shard has its bytes in memory beside the tensors, so that it must be small to a stage."""


class Shard(Record, frozen=True, kw_only=True):
    """One safetensors object, with the names in it."""

    key: str
    names: tuple[str, ...]


class SampleFacts(Record, frozen=True, kw_only=True):
    """What decides which samples each step of a run owns: whoever goes on must have the same."""

    num_samples: int
    batch_size: int
    grain_size: int
    epochs: int
    seed: int
    is_in_order: bool = False
    """Whether the data set is iterable, so that samples are not shuffled here."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "batch_size", "grain_size", "epochs"):
            require(getattr(self, name) >= 1, f"`{name}` is {getattr(self, name)}; it must be at least 1")


_NOT_FINITE = ("nan", "inf", "-inf")
"""What JSON has no numbers for."""


class Evaluation(Record, frozen=True, kw_only=True):
    """What one evaluation found; a number that is not finite is a text, since JSON has no word for it."""

    step: int
    """Steps before it."""
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
    """What a run remembers beside its tensors, so that it goes on as if never interrupted."""

    evaluations: tuple[Evaluation, ...] = ()
    """All so far, in order."""
    best_step: int | None = None
    """The checkpoint that stays until a better one is written."""
    stopped: str = ""
    """Why the run ended before its last step; empty where it did not."""


class CheckpointManifest(FileRecord, frozen=True, kw_only=True, tag="checkpoint"):
    """The state after exactly `step` steps."""

    VERSION: ClassVar[int] = 3

    version: int = 3
    step: int
    model_fingerprint: str
    samples: SampleFacts
    data_shards: str = ""
    """Digest of the sizes of the data set's shards, on which the order of samples rests; empty where it has none."""
    optimizer_class: str
    """Whose state it is; another optimizer could not go on from it."""
    optimizer_settings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the job gave the optimizer, as `lr`: the different values of its groups of parameters, in words."""
    shards: tuple[Shard, ...]
    """Parameters and buffers of the model's state dict, each name in exactly one shard."""
    optimizer: tuple[Shard, ...] = ()
    """The optimizer's state, by the names of the parameters that it belongs to; a parameter may have none. Nobody has
    any before the first step."""
    constants: tuple[Shard, ...]
    """Buffers that a state dict leaves out but that a stage needs."""
    aliases: dict[str, str]
    """Names of the state dict that share another name's tensor."""
    loss_form: LossForm = LossForm()
    """What the loss is a mean or sum over, as it was found before the first step."""
    loss_scale: float = 1.0
    """By which losses of the next step are multiplied; 1 where they are not scaled."""
    num_good_steps: int = 0
    """Steps without overflow since the loss scale has last changed."""
    ledger: Ledger = Ledger()

    def __post_init__(self) -> None:
        require(self.step >= 0, f"`step` is {self.step}; it must be at least 0")
        for kind in ("shards", "optimizer"):
            names = [name for shard in getattr(self, kind) for name in shard.names]
            require(len(names) == len(set(names)), f"`{kind}` hold a name twice")
        require(self.loss_scale > 0, f"`loss_scale` is {self.loss_scale}; it must be above 0")
        require(self.num_good_steps >= 0, f"`num_good_steps` is {self.num_good_steps}; it must be at least 0")


@dataclass(frozen=True)
class Part:
    """What one member writes of a checkpoint."""

    model: tuple[Shard, ...]
    optimizer: tuple[Shard, ...]
    """Empty where it has no parameters."""


@dataclass(frozen=True, eq=False)
class Division:
    """Who writes what of a run's checkpoints under one roster.

    It follows from the layout and the tensors' names and sizes alone, so that whoever writes the manifest has to ask
    nobody. Shards of different rosters have different keys: a member that has been replaced without noticing cannot
    write over its successor's.
    """

    stages: tuple[Mapping[str, int], ...]
    """Names of the state dict that each stage keeps, with their bytes; each name at one stage."""
    parameters: frozenset[str]
    """Those that an optimizer may have state for."""
    num_replicas: int = 1
    roster: int = 0
    """Number of the roster's claim."""
    change: int = 0
    """How often members have replaced the claim's first roster."""

    def part(self, step: int, stage: int, replica: int) -> Part | None:
        """What the member in this seat writes; None where there are fewer tensors than members."""
        total = len(self._shards)
        own = [(number, names) for number, (seat, names) in enumerate(self._shards) if seat == (stage, replica)]
        if not own:
            return None
        writers = (self.roster, self.change)
        model = [Shard(key=keys.shard(step, "model", number, total, *writers), names=names) for number, names in own]
        optimizer = [
            Shard(key=keys.shard(step, "optimizer", number, total, *writers), names=trained)
            for number, names in own
            if (trained := tuple(name for name in names if name in self.parameters))
        ]
        return Part(tuple(model), tuple(optimizer))

    def parts(self, step: int) -> list[Part]:
        """Those of all members."""
        seats = dict.fromkeys(seat for seat, _ in self._shards)
        return [part for seat in seats if (part := self.part(step, *seat)) is not None]

    @cached_property
    def _shards(self) -> list[tuple[tuple[int, int], tuple[str, ...]]]:
        """Names of each shard, with the stage and the replica that writes it."""
        return [
            ((stage, replica), names)
            for stage, sizes in enumerate(self.stages)
            for replica in range(self.num_replicas)
            for names in cut_shards(sizes, part_of(sizes, self.num_replicas, replica))
        ]


def cut_shards(sizes: Mapping[str, int], names: Iterable[str], most_bytes: int = SHARD_BYTES) -> list[tuple[str, ...]]:
    """The names in turn, as shards of at most so many bytes; a tensor that is larger has a shard of its own.

    >>> cut_shards({"a": 5, "b": 4, "c": 3, "d": 9}, "abcd", 8)
    [('a',), ('b', 'c'), ('d',)]
    """
    shards: list[tuple[str, ...]] = []
    num_bytes = 0
    for name in names:
        if shards and num_bytes + sizes[name] <= most_bytes:
            shards[-1] += (name,)
            num_bytes += sizes[name]
        else:
            shards.append((name,))
            num_bytes = sizes[name]
    return shards


def part_of(sizes: Mapping[str, int], num_replicas: int, replica: int) -> tuple[str, ...]:
    """The names that one of a stage's replicas writes, sorted; all have the same tensors, so that any may.

    The largest tensor goes first, always to whoever has least so far (at most 4/3 of the best division).

    >>> part_of({"a": 5, "b": 4, "c": 3}, 2, 0), part_of({"a": 5, "b": 4, "c": 3}, 2, 1)
    (('a',), ('b', 'c'))
    """
    loads = [0] * num_replicas
    own = []
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writer = loads.index(min(loads))
        loads[writer] += sizes[name]
        if writer == replica:
            own.append(name)
    return tuple(sorted(own))
