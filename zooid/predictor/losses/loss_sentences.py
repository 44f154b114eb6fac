"""What a prediction says about losses and hand-overs, in sentences."""

from zooid.core.plans.loss_forecast import LossForecast
from zooid.core.units import format_duration

_MIN_COUNT = 0.005


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
    seconds = {term.kind: term.seconds for term in losses.time_terms}
    sentences = []
    if losses.num_losses >= _MIN_COUNT:
        lost_s = sum(seconds.get(kind, 0.0) for kind in ("slower steps", "lost members", "waiting", "redone"))
        rollbacks = f", {_count(losses.num_rollbacks)} of them with a rollback" if losses.num_rollbacks else ""
        sentences.append(
            f"About {_count(losses.num_losses)} members are lost{rollbacks}, which takes {format_duration(lost_s)}."
        )
    if losses.num_handovers >= _MIN_COUNT:
        sentences.append(
            f"About {_count(losses.num_handovers)} members hand over to a successor before their time runs out, which "
            f"takes {format_duration(seconds.get('hand-overs', 0.0))}."
        )
    return tuple(sentences)


def _count(number: float) -> str:
    """
    >>> _count(0.034), _count(2.46), _count(31.7)
    ('0.03', '2.5', '32')
    """
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.2f}"
