"""What a checkpoint consists of. The manifest is written last: a checkpoint is complete or invisible."""

from zooid.core.records import FileRecord, Record, require


class Shard(Record, frozen=True, kw_only=True):
    """One safetensors object, with the names in it."""

    key: str
    names: tuple[str, ...]


class CheckpointManifest(FileRecord, frozen=True, kw_only=True, tag="checkpoint"):
    """The state after exactly `step` steps."""

    step: int
    model_fingerprint: str
    shards: tuple[Shard, ...]
    """Parameters and buffers of the model's state dict, each name in exactly one shard."""
    constants: tuple[Shard, ...]
    """Buffers that a state dict leaves out but that a stage needs."""
    aliases: dict[str, str]
    """Names of the state dict that share another name's tensor."""

    def __post_init__(self) -> None:
        names = [name for shard in self.shards for name in shard.names]
        require(len(names) == len(set(names)), "`shards` hold a name twice")
