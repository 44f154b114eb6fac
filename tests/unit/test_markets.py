"""Offers by name, each with what is known about it; what is not known is estimated and marked, or left out and said."""

from pathlib import Path

import pytest
from msgspec import structs

from tests.unit.profiles import layer, link, profile
from zooid import catalog
from zooid.cli import options
from zooid.coordinator.plans.markets import ASSUMED_STARTUP_S, market_for, markets_for, offers_named
from zooid.core.errors import InputError, PlanError
from zooid.core.plans.plan import Limits
from zooid.core.plans.profile import Profile
from zooid.core.records import encode_record
from zooid.core.resources.link import STORE_SITE
from zooid.planner import search, why_not

MEASURED = profile(
    [layer(0.01, out_bytes=1e5, parameter_bytes=4_000_000) for _ in range(4)],
    (link(1e8, 0.001, from_site="local"), link(1e8, 0.001, from_site=STORE_SITE, to_site="local")),
)


class TestNames:
    def test_the_beginning_of_a_name_means_all_that_begin_so(self) -> None:
        names = [offer.name for offer in offers_named(["aws.lambda"])]
        assert "aws.lambda.1769" in names
        assert "aws.lambda.10240" in names
        assert all(name.startswith("aws.lambda.") for name in names)

    def test_this_machine_and_the_catalog_go_together_and_nothing_is_there_twice(self) -> None:
        offers = offers_named(["local", "aws.lambda.1769", "aws.lambda", "local:aws.lambda.1769"])
        names = [offer.name for offer in offers]
        assert names[:2] == ["local", "aws.lambda.1769"]
        assert names[-1] == "local:aws.lambda.1769"
        assert len(set(names)) == len(names)

    def test_all_means_every_offer_that_can_still_be_rented(self) -> None:
        named = {offer.name for offer in offers_named(["all"])}
        assert named == {offer.name for offer in catalog.offers() if not offer.is_retired}

    def test_an_unknown_name_is_refused_with_those_near_it(self) -> None:
        with pytest.raises(InputError, match=r"no offer is named 'aws.lamda'; give local, .* aws.lambda.512"):
            offers_named(["aws.lamda"])
        with pytest.raises(InputError, match=r"no offer is named 'oracle'; .* aws, azure, gcp"):
            offers_named(["oracle"])
        with pytest.raises(InputError, match="no offer is given"):
            offers_named([])


class TestMarket:
    def test_what_was_not_measured_is_an_estimate_and_says_so(self) -> None:
        market, notes = market_for(offers_named(["aws.lambda.1769", "aws.lambda.3072"]), {"local": MEASURED})
        assert all(market.world.profile_of(offer).is_estimate for offer in market.offers)
        assert all(offer.startup_s == ASSUMED_STARTUP_S["function"] for offer in market.offers)
        assert notes == ["The start-up time of a function is unknown; 10 s are assumed."]
        found = search(market, Limits(max_members=2))
        assert found.pick.prediction.estimated_from == MEASURED.device.name
        assert {term.kind for term in found.pick.prediction.cost_terms if term.usd > 0} >= {"compute", "starts"}

    def test_a_profile_of_the_offer_counts(self) -> None:
        market, _ = market_for(offers_named(["aws.lambda.1769"]), {"local": MEASURED, "aws.lambda.1769": MEASURED})
        assert not market.world.profile_of(market.offers[0]).is_estimate

    def test_an_offer_without_links_is_left_out_and_said(self) -> None:
        offers = offers_named(["aws.lambda.1769", "azure.vm.nc6"])
        market, _ = market_for(offers, {"local": MEASURED})
        assert [offer.name for offer in market.offers] == ["aws.lambda.1769"]
        assert [each.offers for each in market.left_out] == [("azure.vm.nc6",)]
        assert market.left_out[0].reason.startswith("no link of azure.eastus is known, neither to the store nor")
        with pytest.raises(PlanError, match=r"azure\.vm\.nc6 is left out"):
            market_for(offers[1:], {"local": MEASURED})

    def test_a_retired_offer_is_planned_with_only_if_its_whole_name_is_given(self) -> None:
        retired = {offer.name for offer in catalog.offers() if offer.is_retired}
        assert retired == {"azure.aci.k80", "azure.aci.v100"}
        meant = {offer.name for offer in offers_named(["azure.aci"])}
        assert meant
        assert not meant & retired
        assert [offer.name for offer in offers_named(["azure.aci.k80"])] == ["azure.aci.k80"]

    def test_offers_left_out_for_one_reason_are_one_line(self) -> None:
        market, _ = market_for(offers_named(["aws.lambda.1769", "azure.aci", "azure.vm.nc6"]), {"local": MEASURED})
        found = search(market, Limits(max_members=1))
        [line] = [sentence for sentence in found.reasons if "left out" in sentence]
        assert line.startswith(
            "azure.aci.cpu.1x1, azure.aci.cpu.2x1, azure.aci.cpu.3x1 and 2 more are left out: no link"
        )
        assert "--links" in line

    def test_an_offer_that_was_left_out_is_explained_like_any_other(self) -> None:
        market, _ = market_for(offers_named(["aws.lambda.1769", "azure.aci", "azure.vm.nc6"]), {"local": MEASURED})
        found = search(market, Limits(max_members=1))
        assert why_not(found, "azure.vm").startswith("azure.vm.nc6 is left out: no link of azure.eastus is known")
        assert why_not(found, "aws.lambda.1769").startswith("aws.lambda.1769 is in the pick")
        with pytest.raises(InputError, match="nothing was planned on gcp"):
            why_not(found, "gcp")

    def test_an_offer_that_the_transport_does_not_reach_is_left_out(self) -> None:
        offers = offers_named(["aws.lambda.1769", "gcp.t4.spot.us-central1"])
        market, _ = market_for(offers, {"local": MEASURED}, store_at="owned", transport="tcp")
        assert [offer.name for offer in market.offers] == ["gcp.t4.spot.us-central1"]
        assert market.left_out[0].reason.startswith("no link of aws.us-east-1.lambda is known between members; measure")

    def test_an_offer_whose_traffic_has_no_price_is_left_out(self) -> None:
        """Both sites of the store's way are looked at, since either may be the one that is charged."""
        near, far = (
            structs.replace(each, name=f"{provider}.{each.name}")
            for each, provider in zip(
                offers_named(["aws.lambda.1769", "aws.lambda.3072"]), ("aws", "nobody"), strict=True
            )
        )
        far = structs.replace(far, site="nobody.anywhere")
        links = [link(1e8, from_site=far.site), link(1e8, from_site=STORE_SITE, to_site=far.site)]
        market, _ = market_for([near, far], {"local": MEASURED}, links=links, store_at="aws.us-east-1")
        assert [offer.name for offer in market.offers] == [near.name]
        assert market.left_out[0].offers == (far.name,)
        assert market.left_out[0].reason.startswith("no price is known for traffic from nobody")

    def test_links_that_are_given_count_more_than_those_of_the_catalog(self) -> None:
        slow = [
            link(1e6, 0.1, from_site="aws.us-east-1.lambda"),
            link(1e6, 0.1, from_site=STORE_SITE, to_site="aws.us-east-1.lambda"),
        ]
        market, _ = market_for(offers_named(["aws.lambda.1769"]), {"local": MEASURED}, links=slow)
        assert market.world.links["aws.us-east-1.lambda", STORE_SITE].bytes_per_s == 1e6

    def test_where_the_store_is_has_to_be_said_where_members_are_in_several_places(self) -> None:
        offers = offers_named(["gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"])
        with pytest.raises(InputError, match=r"rented at gcp.europe-west1, gcp.us-central1.* give it with --store-at"):
            market_for(offers, {"local": MEASURED})
        market, _ = market_for(offers, {"local": MEASURED}, store_at="owned")
        assert market.world.prices.storage.usd_per_put == 0

    def test_members_at_several_sites_are_connected_and_pay_for_what_leaves(self) -> None:
        offers = offers_named(["gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"])
        quotas = {offer.name: 1 for offer in offers}
        market, _ = market_for(offers, {"local": MEASURED}, store_at="owned", quotas=quotas)
        found = search(market, Limits(max_members=2, num_replicas=2, transport="tcp"), "fastest")
        assert sorted(found.pick.replica_offers) == sorted(quotas)
        egress = next(term.usd for term in found.pick.prediction.cost_terms if term.kind == "egress")
        assert egress > 0

    def test_each_location_of_the_store_has_a_market(self) -> None:
        """Offers that are linked to those of a location are in its market, but plans on them alone are in their own."""
        names = ["aws.lambda.1769", "gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1", "azure.vm.nc6"]
        markets, notes, _ = markets_for(offers_named(names), {"local": MEASURED})
        by_location = {market.world.prices.store_at: market for market in markets}
        assert by_location.keys() == {"aws.us-east-1", "gcp.us-central1", "gcp.europe-west1"}
        europe = by_location["gcp.europe-west1"]
        assert {offer.name for offer in europe.offers} == {"gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"}
        assert [offer.name for offer in europe.home.offers] == ["gcp.t4.spot.europe-west1"]
        assert [each.offers for market in markets for each in market.left_out] == [("azure.vm.nc6",)]
        assert "--store-at" in notes[-1]
        [market], _, _ = markets_for(offers_named(names), {"local": MEASURED}, store_at="gcp.us-central1")
        assert len(market.offers) == 3

    def test_the_best_plan_of_all_locations_is_picked(self) -> None:
        names = ["aws.lambda.1769", "gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"]
        offers = offers_named(names)
        markets, _, _ = markets_for(offers, {"local": MEASURED})
        limits = Limits(max_members=2)
        everywhere = search(markets, limits, "cheapest").pick
        costs = []
        for offer in offers:
            [market], _, _ = markets_for([offer], {"local": MEASURED})
            costs.append(search(market, limits, "cheapest").pick.prediction.run_usd)
        assert everywhere.prediction.run_usd == pytest.approx(min(costs), rel=1e-9)

    def test_two_sites_are_used_together_where_each_has_one_member(self) -> None:
        offers = offers_named(["gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1", "aws.lambda.1769"])
        quotas = {offer.name: 1 for offer in offers}
        slow = profile([layer(100.0, parameter_bytes=4_000_000) for _ in range(4)], MEASURED.links, num_samples=8000)
        markets, _, _ = markets_for(offers, {"local": slow}, quotas=quotas)
        found = search(markets, Limits(max_members=2), "fastest")
        assert set(found.pick.replica_offers) == {"gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"}

    def test_a_quota_for_an_offer_that_is_not_there_is_refused(self) -> None:
        offers = offers_named(["gcp.t4.spot.us-central1", "gcp.t4.spot.europe-west1"])
        with pytest.raises(PlanError, match="a quota is given for 'aws', but the offers are gcp"):
            markets_for(offers, {"local": MEASURED}, quotas={"aws": 2})

    def test_no_profile_is_refused(self) -> None:
        with pytest.raises(InputError, match="no profile is given; measure the job first"):
            market_for(offers_named(["local"]), {})


class TestOptions:
    def test_quotas_are_offers_and_numbers(self) -> None:
        assert options.quotas_from(["aws.lambda=10", "local=2"]) == {"aws.lambda": 10, "local": 2}
        assert options.quotas_from(None) == {}
        for wrong in ("aws.lambda", "=3", "aws.lambda=many", "aws.lambda=-1"):
            with pytest.raises(InputError, match=r"--quota is .*; write an offer and a number"):
                options.quotas_from([wrong])

    def test_who_says_what_an_hour_is_worth_weighs(self) -> None:
        assert options.weighted_goal_from(None, "2.50") == ("weighted", 2.5)
        assert options.weighted_goal_from("fastest", None) == ("fastest", None)
        assert options.weighted_goal_from(None, None) == (None, None)
        with pytest.raises(InputError, match=r"--goal is 'best'; give balanced, fastest or cheapest"):
            options.weighted_goal_from("best", None)
        with pytest.raises(InputError, match=r"--goal is 'fastest' and --hour-worth is '2'; give one of them"):
            options.weighted_goal_from("fastest", "2")

    def test_profiles_go_by_the_names_of_their_files(self, tmp_path: Path) -> None:
        job = tmp_path / "digits.py"
        files = [tmp_path / "digits.profile.json", tmp_path / "digits.aws.lambda.1769.profile.json"]
        for file in files:
            file.write_bytes(encode_record(MEASURED))
        read = options.profiles_from(files, job)
        assert isinstance(read, dict)
        assert list(read) == ["local", "aws.lambda.1769"]
        assert isinstance(options.profiles_from(files[:1], job), Profile)
        assert options.profiles_from([], job) is None
        with pytest.raises(InputError, match="hold several profiles of one offer"):
            options.profiles_from([files[0], files[0]], job)
