"""What the members of a run have measured, as a reader of its folder finds it."""

import contextlib
from dataclasses import dataclass

from msgspec import structs

from zooid.core.errors import InputError, ObjectNotFound
from zooid.core.plans.plan import Plan
from zooid.core.runs import keys
from zooid.core.runs.roster import Roster
from zooid.core.runs.step_measurements import FIRST_WRITE_STEPS, StepMeasurements
from zooid.store.claims import no_run
from zooid.store.planned_changes import read_plan_of
from zooid.store.rosters import read_roster
from zooid.store.store_protocol import ObjectStore
from zooid.store.stored_records import read_record, read_worker_spec


@dataclass(frozen=True)
class RunMeasurements:
    """The measurements of all members that compute under one roster, and the plan that they followed."""

    url: str
    """URL of the run's folder."""
    plan: Plan
    """The plan with the replicas and shares of the roster."""
    members: tuple[StepMeasurements, ...]


def read_measurements(store: ObjectStore) -> RunMeasurements:
    """Read the measurements under the newest roster whose members have all written theirs.

    A newest roster of few steps only counts if no earlier one has more. All members of a roster follow one plan, so
    measurements from before and after a change of stages are never mixed.
    """
    if not store.list(keys.ROSTERS):
        raise no_run(store)
    labels = [label for folder in store.list_folders(keys.MEASUREMENTS) if (label := keys.roster_in(folder))]
    of_few_steps: RunMeasurements | None = None
    for number, change in sorted(labels, reverse=True):
        try:
            roster = read_roster(store, number, change)
            plan = _as_run(store, read_plan_of(store, number, roster.plan), roster)
            members = tuple(
                read_record(store, keys.measurements(member.name, number, change), StepMeasurements)
                for member in roster.members
            )
        except ObjectNotFound:  # a member was lost before it had written, or its roster was replaced soon
            continue
        if plan is None:
            continue
        found = RunMeasurements(store.url, plan, members)
        if min(member.num_steps for member in members) >= FIRST_WRITE_STEPS:
            return found
        of_few_steps = of_few_steps or found
    if of_few_steps is not None:
        return of_few_steps
    raise InputError(
        f"{store.url} has no measurements of all members of a roster: members write them after 20 full steps, and when "
        "they end; give another run, or train for longer"
    )


def _as_run(store: ObjectStore, plan: Plan, roster: Roster) -> Plan | None:
    """Return the plan with the replicas of a roster, which may have lost some.

    None if its replicas mix offers, or if its shares were made for another batch size.
    """
    if roster.num_stages != len(plan.stages) or sum(roster.shares) != -(-plan.batch_size // plan.grain_size):
        return None
    offers: tuple[str, ...] = ()
    if plan.replica_offers:
        rows = [
            {_offer_of(store, plan, roster, member) for member in roster.pipeline(replica)}
            for replica in range(roster.num_replicas)
        ]
        if any(len(row) > 1 or "" in row for row in rows):
            return None
        offers = tuple(row.pop() for row in rows)
    return structs.replace(
        plan,
        num_replicas=roster.num_replicas,
        shares=roster.shares,
        replica_offers=offers,
        insured=plan.insured and (roster.num_replicas > 1 or bool(roster.copies)),
    )


def _offer_of(store: ObjectStore, plan: Plan, roster: Roster, member: str) -> str:
    """Return the name of a member's offer; empty if it is not known.

    Its spec has it. Specs of earlier claims are gone, and then only the names of the claim's own plan tell it.
    """
    with contextlib.suppress(ObjectNotFound):
        if offer := read_worker_spec(store, member, roster.number).offer:
            return offer
    planned = dict(zip(_planned_names(plan), plan.member_offers, strict=True))
    seat = _seat_of(member)
    return planned[seat].name if seat in planned and not roster.plan else ""


def _seat_of(name: str) -> str:
    """Return the name of the seat that a member was started for; successors carry a number behind it."""
    return name.partition("-")[0]


def _planned_names(plan: Plan) -> list[str]:
    """Names of the members of the plan's first roster, replica by replica."""
    return [f"r{replica}s{stage}" for replica in range(plan.num_replicas) for stage in range(len(plan.stages))]
