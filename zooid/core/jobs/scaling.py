"""Policies that change the batch size, the learning rate and the number of replicas while a run trains."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zooid.core.errors import JobError
from zooid.core.runs.batch_history import BatchPiece
from zooid.core.runs.checkpoint import Evaluation

__all__ = ["History", "Policy", "Wanted", "adabatch", "fixed", "noise_scale", "schedule"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The answer of a policy. A field that is None leaves things as they are."""

    batch_size: int | None = None
    """Number of samples in a step, over all members."""
    rate_factor: float | None = None
    """Factor on the learning rate that the job's optimizer and scheduler give. It replaces the factor before it."""
    num_replicas: int | None = None
    """Number of replicas of the model."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_replicas"):
            value = getattr(self, name)
            if value is not None and not _is_count(value):
                raise JobError(f"`{name}` of zooid.scaling.Wanted is {value!r}; give a whole number of at least 1")
        if self.rate_factor is not None and not _is_positive(self.rate_factor):
            raise JobError(
                f"`rate_factor` of zooid.scaling.Wanted is {self.rate_factor!r}; give a finite number above 0"
            )


@dataclass(frozen=True, kw_only=True)
class History:
    """What a policy knows about its run when it is asked."""

    step: int
    """The first step to which the answer applies."""
    epoch: int
    """The epoch of that step, counted from 0."""
    batches: tuple[BatchPiece, ...]
    """Batch sizes and rate factors so far. The first piece is the job's own, and the last one still holds."""
    losses: tuple[float, ...] = ()
    """Mean losses of the steps since the members started or resumed. The last step before `step` may be missing."""
    step_s: tuple[float, ...] = ()
    """Seconds that each of these steps took."""
    evaluations: tuple[Evaluation, ...] = ()
    """All evaluations of the run so far."""
    num_replicas: int = 1
    noise_scale: float | None = None
    """Gradient noise scale in samples; None if it is not measured, or not known yet."""

    @property
    def batch_size(self) -> int:
        return self.batches[-1].batch_size

    @property
    def rate_factor(self) -> float:
        return self.batches[-1].rate_factor


Decide = Callable[[History], Wanted | None]


@dataclass(frozen=True)
class Policy:
    """A function that decides about batch size, learning rate and replicas, and when it is asked."""

    decide: Decide
    every_steps: int | None = None
    """Number of steps between two questions; None asks after every epoch."""
    measures_noise: bool = False
    """Whether members measure the gradient noise scale, which needs at least two grains in a step."""
    max_batch: int | None = None
    """The largest batch size that the policy may want; None if it is not known."""
    is_foreseeable: bool = False
    """Whether the answer for a step depends only on its epoch, the batches so far and the replicas.

    The policy is then asked ahead, so that new members are ready when they are needed.
    """

    def __post_init__(self) -> None:
        _check_function("the function of a policy (job.scaling)", self.decide)
        for name in ("every_steps", "max_batch"):
            value = getattr(self, name)
            if value is not None and not _is_count(value):
                raise JobError(f"`{name}` of a scaling policy is {value!r}; give a whole number of at least 1, or None")

    def ask(self, history: History) -> Wanted:
        """Return what the policy wants. Raises JobError if it fails, or answers with something else."""
        try:
            answer: object = self.decide(history)
        except JobError:
            raise
        except Exception as error:
            raise JobError(f"job.scaling raised {type(error).__name__} before step {history.step}: {error}") from error
        if answer is None:
            return Wanted()
        if not isinstance(answer, Wanted):
            raise JobError(
                f"job.scaling returned {answer!r} before step {history.step}; return zooid.scaling.Wanted(…), or None "
                "to leave things as they are"
            )
        return answer


def policy_of(scaling: Policy | Decide | None) -> Policy | None:
    """Return the policy of a job. A plain function is asked after every epoch."""
    return Policy(scaling) if scaling is not None and not isinstance(scaling, Policy) else scaling


def fixed() -> Policy:
    """Return a policy that changes nothing."""
    return Policy(lambda history: None, is_foreseeable=True)


def schedule(epochs: Mapping[int, Wanted | int]) -> Policy:
    """Return a policy that changes things with the first steps of these epochs. A plain number is a batch size.

    >>> doubled = schedule({2: 64, 4: Wanted(batch_size=128, rate_factor=0.5)})
    >>> doubled.ask(History(step=70, epoch=3, batches=(BatchPiece(first_step=0, batch_size=32),))).batch_size
    64
    """
    wanted_from: dict[int, Wanted] = {}
    for epoch, wanted in epochs.items():
        if not _is_count(epoch):
            raise JobError(
                f"zooid.scaling.schedule has epoch {epoch!r}; give whole numbers of at least 1, since the job itself "
                "says how epoch 0 begins"
            )
        if not isinstance(wanted, Wanted) and not _is_count(wanted):
            raise JobError(
                f"zooid.scaling.schedule has {wanted!r} for epoch {epoch}; give a batch size or zooid.scaling.Wanted(…)"
            )
        wanted_from[epoch] = wanted if isinstance(wanted, Wanted) else Wanted(batch_size=wanted)

    def latest(history: History, field: str) -> float | None:
        values = [getattr(wanted_from[epoch], field) for epoch in sorted(wanted_from) if epoch <= history.epoch]
        return next((value for value in reversed(values) if value is not None), None)

    def decide(history: History) -> Wanted:
        return Wanted(**{field: latest(history, field) for field in ("batch_size", "rate_factor", "num_replicas")})  # type: ignore[arg-type]

    sizes = [wanted.batch_size for wanted in wanted_from.values() if wanted.batch_size is not None]
    return Policy(decide, max_batch=max(sizes, default=None), is_foreseeable=True)


def adabatch(
    *, every: int, max_batch: int, factor: int = 2, decay: float = 0.75, per_replica: int | None = None
) -> Policy:
    """Return AdaBatch as in Hydrozoa, §5.4: every few epochs, batch and replicas grow, and the learning rate decays.

    Every `every` epochs, the batch and the replicas are multiplied by `factor`, and the learning rate by `decay`. Once
    the batch would exceed `max_batch`, only the learning rate changes: it is multiplied by `decay / factor`, which has
    the same effect on training (Smith et al., 2018). With `per_replica`, there is a replica for every so many samples
    of a batch, however many replicas there were before.
    """
    _check_counts("adabatch", every=(every, 1), max_batch=(max_batch, 1), factor=(factor, 2))
    _check_counts("adabatch", per_replica=(1 if per_replica is None else per_replica, 1))
    if not _is_positive(decay):
        raise JobError(f"`decay` of zooid.scaling.adabatch is {decay!r}; give a finite number above 0")

    def decide(history: History) -> Wanted:
        batch_size, rate_factor = history.batches[0].batch_size, 1.0
        for _ in range(history.epoch // every):
            if batch_size * factor <= max_batch:
                batch_size, rate_factor = batch_size * factor, rate_factor * decay
            else:
                rate_factor *= decay / factor
        num_replicas = _replicas(history, batch_size, per_replica)
        return Wanted(batch_size=batch_size, rate_factor=rate_factor, num_replicas=num_replicas)

    return Policy(decide, max_batch=max_batch, is_foreseeable=True)


def noise_scale(
    *, max_batch: int, factor: int = 2, every_steps: int | None = None, per_replica: int | None = None
) -> Policy:
    """Return a policy whose batch and replicas follow the gradient noise scale (McCandlish et al., 2018).

    If the noise scale is at least `factor` times the batch, the batch and the replicas are multiplied by `factor`, up
    to `max_batch`. The learning rate follows their equation 2.6: it is proportional to batch / (batch + noise scale).
    With `per_replica`, there is a replica for every so many samples of a batch.
    """
    _check_counts("noise_scale", max_batch=(max_batch, 1), factor=(factor, 2))
    _check_counts("noise_scale", per_replica=(1 if per_replica is None else per_replica, 1))

    def decide(history: History) -> Wanted:
        noise, batch_size = history.noise_scale, history.batch_size * factor
        if noise is None or batch_size > min(noise, max_batch):
            return Wanted()
        damping = (history.batch_size + noise) / (batch_size + noise) if math.isfinite(noise) else 1.0
        return Wanted(
            batch_size=batch_size,
            rate_factor=history.rate_factor * factor * damping,
            num_replicas=_replicas(history, batch_size, per_replica),
        )

    return Policy(decide, every_steps=every_steps, measures_noise=True, max_batch=max_batch)


def _replicas(history: History, batch_size: int, per_replica: int | None) -> int:
    """The number of replicas for a batch; without `per_replica`, each computes as many samples as at present."""
    if per_replica is not None:
        return -(-batch_size // per_replica)
    return max(1, history.num_replicas * batch_size // history.batch_size)


def _check_counts(policy: str, **limits: tuple[object, int]) -> None:
    """Reject values that are not whole numbers, or below their limits."""
    for name, (value, least) in limits.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise JobError(f"`{name}` of zooid.scaling.{policy} is {value!r}; give a whole number of at least {least}")


def _check_function(name: str, function: object) -> None:
    if not callable(function):
        raise JobError(f"{name} is {function!r}; it must be a callable: (history) -> zooid.scaling.Wanted or None")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise JobError(f"{name} must take one argument, the history of the run: {error}") from error
    except ValueError:  # some built-in functions have no signature
        return


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
