"""`zooid plan`: find the best plan for a job."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from zooid import coordinator
from zooid.cli import options
from zooid.coordinator.plans.markets import offers_named
from zooid.core.errors import InputError
from zooid.core.plans.search_result import Search
from zooid.core.records import encode_record
from zooid.core.resources.link import Links
from zooid.planner import why_not as explain_why_not
from zooid.planner.market import is_named
from zooid.report import correction_tables, plan_table, say, search_page, search_table, view_for, write_page


def plan(
    job: options.JobFile,
    profile: Annotated[
        list[Path] | None, typer.Option(help="Profile of the job; repeatable.", show_default="measure the job first")
    ] = None,
    runs: options.Runs = None,
    out: Annotated[
        Path | None, typer.Option(help="File to which the plan is written.", show_default="JOB.plan.json")
    ] = None,
    layout: options.Layout = None,
    members: options.Members = None,
    deadline: options.Deadline = None,
    budget: options.Budget = None,
    goal: options.GoalOption = None,
    hour_worth: Annotated[
        str | None, typer.Option(help="Worth of an hour in dollars, which weighs time against money.")
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OFFER=N", help="At most N members on offers with this name or this beginning; repeatable."
        ),
    ] = None,
    schedule: options.Schedule = None,
    transport: options.Transport = None,
    reproducible: options.Reproducible = False,
    insured: options.Insured = False,
    links: options.LinksFile = None,
    store: options.Store = None,
    store_at: options.StoreAt = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            help="Offer on which members may run: local, local:OFFER, limited:OFFER, or the name or beginning of the "
            "name of catalog offers, or all; repeatable.",
            show_default="local",
        ),
    ] = None,
    interruptions: options.Interruptions = None,
    why_not: Annotated[
        list[str] | None, typer.Option(metavar="OFFER", help="Explain why this offer was not picked; repeatable.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the best plan for a job under the limits.

    Example: zooid plan examples/digits.py --on local:aws.lambda.1769 --deadline 10m --budget 0.05
    """
    console = Console()
    limits = options.limits_from(
        layout, members, deadline, budget, schedule, transport, reproducible=reproducible, insured=insured
    )
    chosen_goal, hour_usd = options.weighted_goal_from(goal, hour_worth)
    _check_offers(why_not or [], on or ["local"])
    measured = options.profiles_from(profile, job)
    target = out or Path(f"{job.stem}.plan.json")
    with view_for(Console(stderr=True) if as_json else console, as_json=False) as view:
        found = coordinator.search(
            job,
            measured=measured,
            runs=runs or (),
            links=options.read_optional(links, Links),
            limits=limits,
            goal=chosen_goal,
            hour_usd=hour_usd,
            quotas=options.quotas_from(quota),
            store=store,
            store_at=store_at,
            on=on or "local",
            interruptions=options.interruptions_from(interruptions),
            on_event=view.show,
        )
    options.write_file(target, found.pick)
    page = target.with_suffix(".html")
    write_page(page, search_page(found, origin=str(job)))
    if as_json:
        console.file.write(encode_record(found).decode())
        _say_why_not(Console(stderr=True), found, why_not or [])
        return
    for table in correction_tables(found.corrections):
        console.print(table)
    console.print(search_table(found))
    console.print(plan_table(found.pick))
    for sentence in found.reasons:
        say(console, sentence)
    _say_why_not(console, found, why_not or [])
    say(console, f"plan: {target}\npicture: {page}")


def _check_offers(names: list[str], on: list[str]) -> None:
    """Reject offers for --why-not that --on does not name, before anything is measured."""
    offers = [offer.name for offer in offers_named(on)]
    for name in names:
        if not any(is_named(offer, name) for offer in offers):
            raise InputError(f"--why-not is {name!r}, but --on names {', '.join(offers)}; give one of them")


def _say_why_not(console: Console, found: Search, names: list[str]) -> None:
    for name in names:
        say(console, explain_why_not(found, name))
