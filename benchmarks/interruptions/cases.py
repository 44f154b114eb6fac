"""Random runs with losses and limited lifetimes, and what the predictor expects of them."""

import random
from dataclasses import dataclass

from zooid.core.plans.loss_forecast import LOSS_KINDS, UNLOST_KINDS
from zooid.core.resources.offer import Offer
from zooid.predictor import bill_usd, run_cost, total_usd
from zooid.predictor.losses.availability import SeatRisk
from zooid.predictor.losses.loss_bill import loss_terms, paid_seats
from zooid.predictor.losses.run_losses import CheckpointTiming, RiskyRun, RunRisk, risky_run
from zooid.schedule.checkpoint_interval import best_interval_s

FUNCTION_LIFETIME_S = 900.0


@dataclass(frozen=True)
class Case:
    """A run, and the offers of its members: the first replica's stages come first."""

    name: str
    risk: RunRisk
    offers: tuple[Offer, ...]

    @property
    def offers_by_seat(self) -> list[Offer]:
        """The offers in the order of the risk's seats: by stage, and then by replica."""
        num_stages = len(self.risk.stages)
        return [offer for stage in range(num_stages) for offer in self.offers[stage::num_stages]]


@dataclass(frozen=True)
class Expected:
    """What the predictor expects of a case."""

    run: RiskyRun
    members_usd: float
    """Price of the members' time and starts."""


def expected(case: Case) -> Expected:
    """Predict a case."""
    risk, run = case.risk, risky_run(case.risk)
    unlost_s, lost_s = run.seconds(*UNLOST_KINDS), run.seconds(*LOSS_KINDS)
    terms = run_cost(case.offers, unlost_s, risk.startup_s) + loss_terms(
        paid_seats(case.offers, risk, run), unlost_s, run.seconds("hand-overs"), lost_s, risk.step_s
    )
    return Expected(run, total_usd(terms))


def billed_usd(case: Case, lives_s: tuple[tuple[float, ...], ...]) -> float:
    """Price of the members that ran on each seat for these times."""
    return sum(
        bill_usd(offer, life_s) for offer, own in zip(case.offers_by_seat, lives_s, strict=True) for life_s in own
    )


def random_case(numbers: random.Random) -> Case:
    """Draw a layout, offers with rates and lifetimes, the times of steps, and a checkpoint rule."""
    num_replicas, num_stages = numbers.choice([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (4, 2), (8, 1)])
    has_copies = num_replicas == 1 and numbers.random() < 0.4
    survives_losses = has_copies or numbers.random() < 0.8
    num_holders = 2 if has_copies else num_replicas
    step_s = numbers.uniform(0.5, 10.0)
    startup_s = numbers.uniform(5.0, 120.0)
    lifetime_s = numbers.choice([None, None, FUNCTION_LIFETIME_S])
    row = tuple(_offer(numbers, stage, startup_s, lifetime_s) for stage in range(num_stages))
    stages = tuple(
        tuple(
            SeatRisk(
                losses_per_s=offer.losses_per_s or 0.0,
                startup_s=startup_s,
                lifetime_s=lifetime_s,
                work=1 / num_replicas if replica < num_replicas else 0.0,
            )
            for replica in range(num_holders)
        )
        for offer in row
    )
    pause_s = numbers.uniform(0.05, 1.0)
    between_s = 1 / sum(seats[0].losses_per_s for seats in stages)
    risk = RunRisk(
        stages=stages,
        num_replicas=num_replicas,
        survives_losses=survives_losses,
        startup_s=startup_s,
        num_steps=numbers.randint(500, 2500),
        step_s=step_s,
        slowdown=numbers.uniform(0.8, 1.0) * num_replicas / (num_replicas - 1) if num_replicas > 2 else num_replicas,
        loss_pause_s=numbers.uniform(0.1, 4.0),
        change_pause_s=0.25 * step_s,
        checkpoints=CheckpointTiming(
            interval_s=numbers.choice([best_interval_s(pause_s, between_s), 60.0, 600.0]),
            pause_s=pause_s,
            write_s=numbers.uniform(0.0, 20.0),
            read_s=numbers.uniform(0.0, 30.0),
        ),
    )
    name = f"{num_replicas}x{num_stages}{' with copies' if has_copies else '' if survives_losses else ', ends'}"
    return Case(name, risk, row * num_holders)


def _offer(numbers: random.Random, stage: int, startup_s: float, lifetime_s: float | None) -> Offer:
    return Offer(
        name=f"made.{stage}",
        platform="made",
        kind="vm",
        market="spot",
        region="anywhere",
        site="here",
        vcpus=1.0,
        memory_bytes=10**9,
        usd_per_hour=numbers.uniform(0.1, 3.0),
        usd_per_start=numbers.choice([0.0, 2e-7, 0.001]),
        billing_grain_s=numbers.choice([0.001, 1.0, 60.0]),
        billing_minimum_s=numbers.choice([0.0, 60.0]),
        lifetime_s=lifetime_s,
        interruptions_per_hour=10 ** numbers.uniform(-1.3, 0.3),
        startup_s=startup_s,
        source="drawn at random",
        date="2025-01",
    )
