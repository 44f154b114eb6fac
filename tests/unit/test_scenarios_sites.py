"""What clouds and continents found, decided anew from its prices and links: Tables 1, 5 to 7 through the catalog.

Of its runs only these enter: throughput and granularity of A-8 (eight T4 in one zone), which give how fast one T4
computes, and that Hivemind moved at most 1.1 Gbit/s between peers, over one stream for each pair (§4 A, §7). Nothing is
fitted. The paper gives granularity to two digits and so averaging, too: 20 s for CV and 27 s for NLP in A-8, where
gradients at 1.1 Gbit/s take 5 and 14. The rest, 12 to 15 s in both, is not transfer; so predicted runs are faster than
theirs throughout, and slowdowns, orders and bytes are compared, not seconds.
"""

import msgspec
import pytest

from tests.unit.paper_formulas import granularity
from tests.unit.site_instances import choice_of, num_by_offer
from zooid.catalog import egress_prices, links, offer, prices_for
from zooid.core.resources.link import Link
from zooid.planner.sites import Egress, SiteChoice, SiteOffer, SiteProblem, egress_between, site_front

BATCH = 32_768
GRADIENT_BYTES = {"cv": 2 * 197.8e6, "nlp": 2 * 560.1e6}
"""ConvNextLarge and RoBERTaXLM (Table 2), in fp16."""
A8_PER_S = {"cv": 261.9, "nlp": 575.1}
"""Table 9."""
A8_GRANULARITY = {"cv": 5.19, "nlp": 1.15}
"""§7, §4 A."""
T4_PER_S = {task: A8_PER_S[task] * (1 + 1 / A8_GRANULARITY[task]) / 8 for task in A8_PER_S}
HIVEMIND_BYTES_PER_S = 1.1e9 / 8
OCEAN_BYTES_PER_S = 750e6
"""What 80 streams carried between Belgium and Iowa. Of other ways only one stream was measured; Hivemind has one for
each pair, which never comes near."""
T4 = {
    "us": "gcp.t4.spot.us-central1",
    "eu": "gcp.t4.spot.europe-west1",
    "asia": "gcp.t4.spot.asia-east1",
    "aus": "gcp.t4.spot.australia-southeast1",
}
A8, B8, C8 = {"us": 8}, {"us": 4, "eu": 4}, {"us": 2, "eu": 2, "asia": 2, "aus": 2}
US = "gcp.us-central1"


def hivemind_links() -> tuple[Link, ...]:
    """As measured, but for what Hivemind makes of them."""
    rows = []
    for row in links():
        most = HIVEMIND_BYTES_PER_S if row.from_site == row.to_site else OCEAN_BYTES_PER_S
        is_known = row.from_site == row.to_site or row.num_streams > 1
        rate = min(row.bandwidth_bytes_per_s, most) if is_known else most
        rows.append(msgspec.structs.replace(row, bandwidth_bytes_per_s=rate))
    return tuple(rows)


def continents(task: str, **changes: object) -> SiteProblem:
    """Up to 8 of the T4 of four continents, for a hundred rounds, as Hivemind would."""
    offers = [offer(name) for name in T4.values()]
    plain = SiteProblem(
        offers=tuple(
            SiteOffer(
                name=where, site=each.site, samples_per_s=T4_PER_S[task], usd_per_hour=each.usd_per_hour, max_members=8
            )
            for where, each in zip(T4, offers, strict=True)
        ),
        links=hivemind_links(),
        egress=egress_between(prices_for(offers), [each.site for each in offers]),
        batch_size=BATCH,
        gradient_bytes=GRADIENT_BYTES[task],
        num_samples=100 * BATCH,
        max_members=8,
        max_streams=1,
    )
    return msgspec.structs.replace(plain, **changes)


def granularity_of(choice: SiteChoice) -> float:
    return granularity(choice.compute_s, choice.averaging_s)


def slowdown(choice: SiteChoice, beside: SiteChoice) -> float:
    """How much fewer samples a second."""
    return 1 - beside.time_s / choice.time_s


# §4: zones and continents


@pytest.mark.parametrize("task", ["cv", "nlp"])
def test_eight_in_one_zone_are_the_fastest(task: str) -> None:
    """§4: "local compute is the best choice for maximum throughput"; with measured links as with Hivemind's rates."""
    for problem in (continents(task), continents(task, links=links(), max_streams=64)):
        front = site_front(problem)
        assert [each.num_members for each in front.choices[0].counts] == [8]
        assert front.proof.status == "optimal"
        assert front.choices[0].time_s == pytest.approx(choice_of(problem, A8).time_s, rel=1e-3), "zones hardly differ"


@pytest.mark.parametrize(
    ("task", "where", "published", "tolerance"),
    [("cv", B8, 0.02, 0.01), ("cv", C8, 0.07, 0.01), ("nlp", B8, 0.22, 0.06), ("nlp", C8, 0.41, 0.05)],
)
def test_how_much_slower_oceans_make_it(task: str, where: dict[str, int], published: float, tolerance: float) -> None:
    """§4 B, C against A-8. "They can average locally first and only later transmit across": by site. Predicted: 2.7 and
    7.8 % for CV, 16 and 37 % for NLP."""
    problem = continents(task)
    here, far = choice_of(problem, A8), choice_of(problem, where)
    assert slowdown(far, here) == pytest.approx(published, abs=tolerance)


def test_nlp_suffers_more_because_of_its_granularity() -> None:
    """Figures 7 to 9: 1.15 in A-8 and 0.4 in C-8 for NLP, 5.19 and 3.33 for CV. Predicted ones are about twice that,
    since only transfers are averaging here, and in the same order. NLP's falls by the published 2.9. CV's falls as much
    here, where 1.6 is published: three quarters of its averaging in A-8 was not transfer, and did not grow."""
    here, far = ({task: granularity_of(choice_of(continents(task), where)) for task in T4_PER_S} for where in (A8, C8))
    assert far["nlp"] < 1 < here["nlp"] < far["cv"] < here["cv"]
    assert here["nlp"] / far["nlp"] == pytest.approx(1.15 / 0.4, rel=0.02)
    assert here["cv"] / far["cv"] > 5.19 / 3.33


def test_one_more_on_another_continent_brings_cv_most_and_nlp_little_of_one_at_home() -> None:
    """§4 C: "local hardware should be preferred whenever possible"; for NLP "the small granularity removes the
    additional gain"."""
    part = {}
    for task in T4_PER_S:
        problem = continents(task)
        now, near, far = (choice_of(problem, counts) for counts in (A8, {"us": 9}, {"us": 8, "aus": 1}))
        part[task] = (far.time_s - now.time_s) / (near.time_s - now.time_s)
        assert near.time_s < now.time_s
        assert far.usd - now.usd > 5 * (near.usd - now.usd) > 0
    assert part["cv"] > 0.5
    assert part["nlp"] < 0.3


def test_many_streams_take_most_of_the_penalty_away() -> None:
    """§7: one stream is what limits, not the ocean. B-8 of NLP loses 16 % with one for each pair, and 1 % with the few
    that fill the way."""
    slow, fast = choice_of(continents("nlp"), B8), choice_of(continents("nlp", max_streams=64), B8)
    here = choice_of(continents("nlp"), A8)
    assert fast.averaging_s < 0.7 * slow.averaging_s
    assert slowdown(fast, here) < 0.05
    (streams,) = {link.num_streams for link in fast.links if link.from_site != link.to_site}
    assert 26.25e6 * streams >= 0.98 * OCEAN_BYTES_PER_S > 26.25e6 * (streams - 1) * 0.99


def test_the_averaging_that_the_paper_saw_is_its_slowest() -> None:
    """§4 C: "the averaging was done over the US node", the best connected; by site all ways work at once."""
    problem = continents("nlp")
    options = {site: choice_of(problem, C8, "hub", site) for site in problem.sites}
    assert min(options, key=lambda site: options[site].time_s) == US
    assert choice_of(problem, C8).time_s < options[US].time_s


def test_a_batch_of_32k_is_what_nlp_needs_in_a_zone_and_too_little_across_oceans() -> None:
    """§3: doubling it doubles the granularity; at most 64K is trainable with LAMB."""
    problem = continents("nlp")
    here, far = choice_of(problem, A8), choice_of(problem, C8)
    doubled = choice_of(msgspec.structs.replace(problem, batch_size=2 * BATCH), C8)
    assert granularity_of(far) < 1 < granularity_of(here)
    assert granularity_of(doubled) == pytest.approx(2 * granularity_of(far))
    assert granularity_of(doubled) < 4, "so that four continents stay a poor place for it"


# §5: money


def with_prices_of(problem: SiteProblem, provider: str) -> SiteProblem:
    """§5 (3): "plug in the cost for each cloud provider": Table 1 between four continents."""
    usd = {(row.source_zone, row.target_zone): row.usd_per_gb for row in egress_prices() if row.provider == provider}
    aus = next(each.site for each in problem.offers if each.name == "aus")
    prices = []
    for a in problem.sites:
        for b in problem.sites:
            zones = ("anywhere", "same_region" if a == b else "oce" if aus in (a, b) else "anywhere")
            prices.append(Egress(from_site=a, to_site=b, usd_per_gb=usd[zones]))
    spot = {"gcp": T4["us"], "aws": "aws.ec2.g4dn.2xlarge.spot", "azure": "azure.vm.nc4as_t4_v3.spot"}[provider]
    offers = [msgspec.structs.replace(each, usd_per_hour=offer(spot).usd_per_hour) for each in problem.offers]
    return msgspec.structs.replace(problem, offers=tuple(offers), egress=tuple(prices))


def external_usd(choice: SiteChoice, rounds_per_hour: float, from_site: str | None = None) -> float:
    """By the machine and hour, at the throughput that was measured."""
    links = [link for link in choice.links if link.from_site != link.to_site and from_site in (None, link.from_site)]
    members = sum(each.num_members for each in choice.counts if from_site in (None, each.site))
    return sum(link.usd for link in links) / choice.num_rounds * rounds_per_hour / members


@pytest.mark.parametrize(("provider", "published"), [("gcp", 4.329), ("azure", 1.882)])
def test_figure_11b_external_egress_of_nlp_over_four_continents(provider: str, published: float) -> None:
    """By the hour and machine, 17 % less than printed for both: by site a machine sends 0.84 GB of a round abroad,
    2s·3/4 over two machines; the printed dollars stand for 1.01 GB (62.7 an hour, of which 12/20, in 37.3 rounds)."""
    far = choice_of(with_prices_of(continents("nlp"), provider), C8)
    rounds_per_hour = 3600 * A8_PER_S["nlp"] * (1 - 0.41) / BATCH
    assert external_usd(far, rounds_per_hour) == pytest.approx(published * 0.83, rel=0.02)


def test_figure_11b_egress_is_most_of_the_cost_and_aws_the_cheapest_cloud_across_oceans() -> None:
    """§5 (3): more than 90 % of GC's cost is external egress; AWS "has the best total cost". In one zone AWS is the
    dearest of the three (§8: "GC and Azure are best at training in a single zone")."""
    zone, far = (
        {each: choice_of(with_prices_of(continents("nlp"), each), where) for each in ("gcp", "aws", "azure")}
        for where in (A8, C8)
    )
    assert far["gcp"].egress_usd > 0.9 * far["gcp"].usd
    assert min(far, key=lambda each: far[each].usd) == "aws"
    assert max(zone, key=lambda each: zone[each].usd) == "aws"


def test_the_cheapest_way_across_oceans_is_not_to_cross_them() -> None:
    """§5: "staying in the same region is preferred"; no choice on the front of time and cost has two continents."""
    for task in T4_PER_S:
        front = site_front(continents(task))
        assert front.proof.status == "optimal"
        assert all(len({each.site for each in choice.counts}) == 1 for choice in front.choices)
        assert sum(num_by_offer(front.choices[0]).values()) == 8
        assert sum(num_by_offer(front.choices[-1]).values()) == 1, "one member sends nothing"


CLOUDS = {
    "gcp": "gcp.t4.spot.us-west1",
    "aws": "aws.ec2.g4dn.2xlarge.spot",
    "azure": "azure.vm.nc4as_t4_v3.spot",
}
D_PER_S = {"cv": 140.4, "nlp": 4 * 0.45 * A8_PER_S["nlp"] / 2.75}
"""Four T4: A-4 of CV; of NLP 0.45 for each of one T4's, of which A-8 has 2.75. D-1 to D-3 are within 2 % of it (§5)."""


def clouds(task: str, **changes: object) -> SiteProblem:
    """§5: Table 6, and Table 1's price between regions of the US for what goes to another cloud. The price lists of
    today, and so the catalog, have that as traffic to the internet, 0.087 to 0.12 a GB, which the paper left out."""
    rented = {name: offer(each) for name, each in CLOUDS.items()}
    usd = {(row.provider, row.source_zone, row.target_zone): row.usd_per_gb for row in egress_prices()}
    plain = SiteProblem(
        offers=tuple(
            SiteOffer(
                name=name, site=each.site, samples_per_s=T4_PER_S[task], usd_per_hour=each.usd_per_hour, max_members=4
            )
            for name, each in rented.items()
        ),
        links=hivemind_links(),
        egress=tuple(
            Egress(
                from_site=rented[a].site,
                to_site=rented[b].site,
                usd_per_gb=usd[(a, "anywhere", "same_region") if a == b else (a, "us", "us")],
            )
            for a in CLOUDS
            for b in CLOUDS
        ),
        batch_size=BATCH,
        gradient_bytes=GRADIENT_BYTES[task],
        num_samples=100 * BATCH,
        max_members=4,
        max_streams=1,
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    ("task", "other", "where", "published", "tolerance"),
    [
        ("nlp", "azure", "azure", 0.763, 0.22),
        ("nlp", "azure", "gcp", 2.2 * 0.18, 0.18),
        ("cv", "azure", "azure", 0.115, 0.07),
    ],
)
def test_figure_11a_external_egress_between_clouds(
    task: str, other: str, where: str, published: float, tolerance: float
) -> None:
    """N-to-N among four, a third inside: 2s·3/4 from each in a round. Printed dollars stand for 1.38 GB instead of 1.68
    with NLP, for 0.56 instead of 0.59 with CV."""
    choice = choice_of(clouds(task), {"gcp": 2, other: 2}, "everyone")
    own = external_usd(choice, 3600 * D_PER_S[task] / BATCH, offer(CLOUDS[where]).site)
    assert own == pytest.approx(published, rel=tolerance)
    assert own > published, "never less than what they paid"


def test_figure_11a_egress_outweighs_the_machine_for_nlp_and_not_for_cv() -> None:
    """§5 (2): for NLP on Azure even more than on demand, 0.489; for CV it "almost matches" the spot price."""
    azure = offer(CLOUDS["azure"])
    hourly = {
        task: external_usd(
            choice_of(clouds(task), {"gcp": 2, "azure": 2}, "everyone"), 3600 * D_PER_S[task] / BATCH, azure.site
        )
        for task in T4_PER_S
    }
    assert hourly["nlp"] > offer("azure.vm.nc4as_t4_v3").usd_per_hour > azure.usd_per_hour > hourly["cv"]


def test_clouds_near_one_another_cost_little_time() -> None:
    """§5 (1): D-2 and D-3 as fast as D-1 but for 1 to 2 %. Predicted for AWS: nothing; for Azure, 0.45 Gbit/s away, NLP
    loses 2 % where everyone averages with everyone, as the paper says of four peers."""
    for task in T4_PER_S:
        problem = clouds(task)
        here = choice_of(problem, {"gcp": 4}, "everyone")
        for other in ("aws", "azure"):
            mixed = choice_of(problem, {"gcp": 2, other: 2}, "everyone")
            assert slowdown(mixed, here) == pytest.approx(0, abs=0.03)


def test_by_site_costs_less_between_clouds_than_the_n_to_n_of_the_paper() -> None:
    """Each cloud sends its gradients once over, not from every machine: half of what Figure 11a charges."""
    problem = clouds("nlp")
    everyone, by_site = (choice_of(problem, {"gcp": 2, "azure": 2}, how) for how in ("everyone", "by_site"))
    assert external_usd(by_site, 1.0) == pytest.approx(external_usd(everyone, 1.0) / 2)
    assert by_site.usd < everyone.usd


# §6: one's own machine and a cloud

RTX8000_PER_S = {"cv": 194.8, "nlp": 431.8}
"""Table 9."""


def hybrid(task: str, **changes: object) -> SiteProblem:
    """Table 7: an RTX8000 in Europe and eight T4 in Belgium or Iowa."""
    rented = {where: offer(T4[where]) for where in ("eu", "us")}
    own_site = "onprem.eu.rtx8000"
    sites = {"own": own_site} | {where: each.site for where, each in rented.items()}
    prices = prices_for(list(rented.values()))
    between = {(a, b): prices.usd_per_gb(sites[a], sites[b]) for a in rented for b in rented}
    internet = next(row.usd_per_gb for row in egress_prices() if (row.provider, row.target_zone) == ("gcp", "internet"))
    plain = SiteProblem(
        offers=(
            SiteOffer(name="own", site=own_site, samples_per_s=RTX8000_PER_S[task], usd_per_hour=0, max_members=1),
            *(
                SiteOffer(
                    name=where,
                    site=each.site,
                    samples_per_s=T4_PER_S[task],
                    usd_per_hour=each.usd_per_hour,
                    max_members=8,
                )
                for where, each in rented.items()
            ),
        ),
        links=hivemind_links(),
        egress=tuple(
            Egress(
                from_site=sites[a],
                to_site=sites[b],
                usd_per_gb=0.0 if a == "own" else internet if b == "own" else between[a, b],
            )
            for a in sites
            for b in sites
        ),
        batch_size=BATCH,
        gradient_bytes=GRADIENT_BYTES[task],
        num_samples=100 * BATCH,
        max_members=9,
        max_streams=1,
    )
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize(
    ("task", "published", "tolerance"), [("cv", 283.5 / 316.8, 0.04), ("nlp", 330.6 / 556.7, 0.12)]
)
def test_the_near_cloud_is_taken_beside_one_s_own_machine(task: str, published: float, tolerance: float) -> None:
    """§6 E: E-B-8 is slower than E-A-8 (Table 9): "proximity to the on-premise hardware is essential". Predicted: 429
    of 465 samples/s for CV, 598 of 851 for NLP, where 284 of 317 and 331 of 557 are printed: there the RTX8000, too,
    computes at about half of its speed under Hivemind (Figure 2)."""
    problem = hybrid(task)
    near, far = (choice_of(problem, {"own": 1, where: 8}) for where in ("eu", "us"))
    assert near.time_s / far.time_s == pytest.approx(published, abs=tolerance)
    assert num_by_offer(site_front(problem).choices[0]) == {"own": 1, "eu": 8}


def test_one_s_own_machine_alone_is_free_and_cheapest() -> None:
    choices = site_front(hybrid("cv")).choices
    assert (num_by_offer(choices[-1]), choices[-1].usd) == ({"own": 1}, 0)
    rented = [choice for choice in choices if choice.time_s <= choices[-1].time_s / 2][-1]
    assert {each.site for each in rented.counts} <= {"onprem.eu.rtx8000", offer(T4["eu"]).site}


def test_communication_falls_with_more_peers_across_an_ocean() -> None:
    """§7 on E-B: "communication time can decrease with more peers", one stream for each."""
    problem = hybrid("cv")
    times = [choice_of(problem, {"own": 1, "us": count}).averaging_s for count in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
