"""What a prediction says about losses and hand-overs, in sentences."""

from zooid.core.plans.loss_forecast import LOSS_KINDS, LossForecast, seconds_of
from zooid.core.units import format_duration

_MIN_COUNT = 0.005
"""Numbers below this would be shown as 0.00."""


def unknown_in_words(losses: LossForecast | None) -> tuple[str, ...]:
    """Say of which offers nobody knows how often their members are lost."""
    if losses is None or not losses.unknown:
        return ()
    names = " and ".join(losses.unknown)
    return (
        f"How often members on {names} are interrupted is unknown, so that such losses are not included; give a rate, "
        f"for example --interruptions {losses.unknown[0]}=0.1",
    )


def losses_in_words(losses: LossForecast | None) -> tuple[str, ...]:
    """Say how many losses and hand-overs are expected, and what time they take. Empty if there are none."""
    if losses is None or not losses.time_terms:
        return ()
    sentences = []
    if losses.num_losses >= _MIN_COUNT:
        lost_s = seconds_of(losses.time_terms, *LOSS_KINDS)
        has_rollbacks = losses.num_rollbacks >= _MIN_COUNT
        rollbacks = f", {_count(losses.num_rollbacks)} of them with a rollback" if has_rollbacks else ""
        sentences.append(
            f"About {_count(losses.num_losses)} members are lost{rollbacks}, which takes {format_duration(lost_s)}."
        )
    if losses.num_handovers >= _MIN_COUNT:
        paused = format_duration(seconds_of(losses.time_terms, "hand-overs"))
        sentences.append(
            f"About {_count(losses.num_handovers)} members hand over to a successor before their time runs out, which "
            f"takes {paused}."
        )
    return tuple(sentences)


def _count(number: float) -> str:
    """
    >>> _count(0.034), _count(2.46), _count(31.7)
    ('0.03', '2.5', '32')
    """
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"
