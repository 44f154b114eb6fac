"""Measurements of runs that never ran: what members would measure if the world were as simulated."""

from collections.abc import Mapping, Sequence

from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.resources.link import Link
from zooid.core.runs.step_measurements import MessageTiming, ReduceTiming, StepMeasurements, Timing, step_means
from zooid.core.runs.timeline import action_name
from zooid.predictor import World, directed_links, lay_out, simulate_step
from zooid.predictor.simulation.layout import Looks


def simulated_step_s(
    plan: Plan, profiles: Mapping[str, Profile], links: Sequence[Link], looks: Looks = "store"
) -> float:
    return simulate_step(*lay_out(plan, World(dict(profiles), directed_links(links), looks=looks))).step_s


def measured_members(
    plan: Plan, profiles: Mapping[str, Profile], links: Sequence[Link], looks: Looks = "store"
) -> list[StepMeasurements]:
    """What every member would write, each by itself."""
    schedule, layout = lay_out(plan, World(dict(profiles), directed_links(links), looks=looks))
    timeline = simulate_step(schedule, layout)
    rows = layout.of_replicas(plan.num_replicas).stages
    members = []
    for replica in range(plan.num_replicas):
        for stage in range(len(plan.stages)):
            name = f"r{replica}s{stage}"
            own = [interval for interval in timeline.intervals if interval.member == name]
            texts = [(action_name(interval.action), interval.end_s - interval.start_s) for interval in own]
            means = step_means((text.kind, text.number, seconds) for text, seconds in texts)
            update_s = rows[replica][stage].update_s
            members.append(
                StepMeasurements(
                    member=name,
                    replica=replica,
                    stage=stage,
                    num_grains=sum(text.kind == "F" for text, _ in texts),
                    num_steps=100,
                    num_sampled=50,
                    step=Timing(median_s=max(interval.end_s for interval in own)),
                    between=Timing(median_s=0.0),
                    forward=Timing(median_s=means["F"]),
                    backward=Timing(median_s=means["B"]),
                    update=Timing(median_s=update_s),
                    vote=Timing(median_s=max(0.0, means["COMMIT"] - update_s)),
                    starts_s={interval.action: interval.start_s for interval in own if interval.lane == "compute"},
                    messages=tuple(
                        MessageTiming(kind=kind, peer="r0s0", num_bytes=0, time=Timing(median_s=means[kind]))
                        for kind in ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
                        if kind in means
                    ),
                    reduces=tuple(
                        ReduceTiming(
                            number=number,
                            num_bytes=bucket.num_bytes,
                            num_ranks=plan.num_replicas,
                            time=Timing(median_s=means[f"REDUCE{number}"]),
                        )
                        for number, bucket in enumerate(rows[replica][stage].buckets)
                        if plan.num_replicas > 1
                    ),
                )
            )
    return members
