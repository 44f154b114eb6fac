"""The header of the state that a member sends to a process that joins."""

from zooid.core.records import FileRecord, Record, require, require_at_least, require_positive
from zooid.core.runs.checkpoint import Ledger
from zooid.core.text import quoted

_MAX_DIMENSIONS = 64
_MAX_SIZE = 2**48


class TensorHeader(Record, frozen=True, kw_only=True):
    """Name, dtype and shape of one tensor."""

    name: str
    dtype: str
    """The name of the dtype in torch, such as float32."""
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        is_sane = len(self.shape) <= _MAX_DIMENSIONS and all(0 <= size < _MAX_SIZE for size in self.shape)
        require(is_sane, f"`shape` is {quoted(str(self.shape))}; sizes must be below {_MAX_SIZE}")


class StateHeader(FileRecord, frozen=True, kw_only=True, tag="state_header"):
    """The state besides tensors, and the tensors that follow it in this order."""

    step: int
    """Number of steps that the state contains."""
    loss_scale: float
    num_good_steps: int
    """Number of steps without overflow since the last change of the loss scale."""
    ledger: Ledger
    model: tuple[TensorHeader, ...]
    """Parameters and buffers."""
    optimizer: tuple[TensorHeader, ...]
    """Entries of the optimizer's state."""

    def __post_init__(self) -> None:
        require_at_least(0, self, "step", "num_good_steps")
        require_positive(self, "loss_scale")
