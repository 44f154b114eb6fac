"""The papers' own arithmetic: their examples, tables and figures follow from their equations and the catalog's prices.

Where a printed figure does not follow from the paper's own numbers, its test says so, and how far it is off.
"""

import pytest

from benchmarks.baselines.simulated import three_phase_s
from tests.unit.paper_formulas import best_speedup, granularity, samples_per_s, traffic_usd, usd_per_million_samples
from zooid.catalog import egress_prices, links, offer
from zooid.core.resources.link import STORE_SITE
from zooid.predictor.equations import (
    averaging_s,
    pipelined_s,
    speedup_of_members,
)

# FuncPipe


def test_funcpipe_3_3_synchronizes_280_mb_in_8_seconds_instead_of_11() -> None:
    function = offer("aws.lambda.10240")
    assert function.bandwidth_bytes_per_s == 70e6
    lambda_ml_s = three_phase_s(280e6, 8, 70e6)
    funcpipe_s = pipelined_s(280e6, 8, 70e6)
    assert lambda_ml_s == pytest.approx(11)
    assert funcpipe_s == pytest.approx(8)
    assert 1 - funcpipe_s / lambda_ml_s == pytest.approx(0.27, abs=0.005)


def test_funcpipe_3_3_latency_is_much_smaller_than_the_transfer() -> None:
    link = next(row for row in links() if (row.from_site, row.to_site) == ("aws.us-east-1.lambda", STORE_SITE))
    rate, latency_s = link.bandwidth_bytes_per_s, link.rtt_s
    for all_reduce in (three_phase_s, pipelined_s):
        assert all_reduce(280e6, 8, rate, latency_s) == pytest.approx(float(all_reduce(280e6, 8, rate)), rel=0.06)


def test_funcpipe_5_5_pipelining_saves_up_to_a_third_of_the_transfer() -> None:
    saved = 1 - pipelined_s(1e9, [2, 8, 10**9], 70e6) / three_phase_s(1e9, [2, 8, 10**9], 70e6)
    assert saved[0] == pytest.approx(0), "with two members nothing is gained"
    assert saved[-1] == pytest.approx(1 / 3)


def test_funcpipe_figure_1_lambda_ml_communicates_for_35_seconds() -> None:
    """AmoebaNet-D36, 900 MB, 8 functions, 70 MB/s, 40 ms; computing takes 6.0 s, a ratio of 0.17."""
    communication_s = three_phase_s(900e6, 8, 70e6, 0.04)
    assert communication_s == pytest.approx(35.5, abs=0.05)
    assert granularity(6.0, float(communication_s)) == pytest.approx(0.17, abs=0.005)


# Hydrozoa

AZURE, SAGEMAKER = "azure.vm.nc6", "aws.sagemaker.p2.xlarge"
GPU_CONTAINER_USD_PER_GB = 0.00425
"""Table 3; the catalog holds whole workers, this one with 6 GB."""


def worker_usd_per_hour(memory_gb: int) -> float:
    worker = offer("azure.aci.k80")
    return worker.usd_per_hour + (memory_gb - worker.memory_bytes / 1e9) * GPU_CONTAINER_USD_PER_GB


def test_hydrozoa_5_3_a_worker_costs_51_cents_an_hour() -> None:
    """A K80 at $0.36, 4 vCPUs at $0.03165 and 6 GB at $0.00425 (Table 3)."""
    assert worker_usd_per_hour(0) == pytest.approx(0.36 + 4 * 0.03165)
    assert worker_usd_per_hour(6) == pytest.approx(0.512, abs=0.0005)
    assert offer(SAGEMAKER).usd_per_hour == 1.125


@pytest.mark.parametrize(
    ("model", "memory_gb", "against_azure", "against_sagemaker"),
    [
        ("ResNet-34", 6, 1.76, 2.19),
        ("ResNet-152", 10, 1.70, 2.15),
        ("VGG19", 15, 1.63, 2.04),
        ("BERT-12", 15, 1.64, 2.05),
    ],
)
def test_hydrozoa_table_4_cost_reductions(
    model: str, memory_gb: int, against_azure: float, against_sagemaker: float
) -> None:
    """Prices of one member each, since all clusters have 16. The paper gives memory for ResNet-34 only; that of the
    others is the whole number of GB that fits best. Within 0.5 %, but for ResNet-152 against SageMaker: 2.13, where
    2.15 is printed (its two columns differ by 1.26 for the same worker, prices by 1.25)."""
    own = worker_usd_per_hour(memory_gb)
    assert offer(AZURE).usd_per_hour / own == pytest.approx(against_azure, rel=0.005)
    tolerance = 0.012 if model == "ResNet-152" else 0.005
    assert offer(SAGEMAKER).usd_per_hour / own == pytest.approx(against_sagemaker, rel=tolerance)


@pytest.mark.parametrize(
    ("speedup", "cheaper", "better"),
    [
        (1.03, 1.76, 1.81),
        (1.03, 2.19, 2.26),
        (1.03, 1.70, 1.75),
        (1.05, 2.15, 2.25),
        (1.98, 1.63, 3.23),
        (1.70, 2.04, 3.47),
        (2.05, 1.64, 3.36),
        (2.66, 2.05, 5.43),
    ],
)
def test_hydrozoa_table_4_throughput_per_dollar(speedup: float, cheaper: float, better: float) -> None:
    """Its third column is the product of the other two, as far as two digits tell."""
    assert speedup * cheaper == pytest.approx(better, rel=0.005)


def test_hydrozoa_table_5_cost_reductions_on_v100() -> None:
    """For BERT-12; for VGG19 against SageMaker 1.21 is printed, a worker of a little more memory."""
    own = offer("azure.aci.v100").usd_per_hour
    assert offer("azure.vm.nc6s_v3").usd_per_hour / own == pytest.approx(1.02, abs=0.005)
    assert offer("aws.sagemaker.p3.8xlarge").usd_per_hour / (4 * own) == pytest.approx(1.22, abs=0.005)


# Clouds and continents: granularity


@pytest.mark.parametrize(("of_now", "at_best"), [(1, 1.33), (10, 1.83)])
def test_clouds_8_doubling_brings_at_best_what_granularity_allows(of_now: float, at_best: float) -> None:
    assert speedup_of_members(of_now, 1, 2) == pytest.approx(at_best, abs=0.005)
    assert speedup_of_members(of_now, 1, 2) < best_speedup(of_now)


def test_clouds_3_eight_gpus_at_granularity_1_gain_a_third_from_eight_more() -> None:
    """ResNet18 on 8 A10 (Figure 6): "would, at best, increase the throughput by 33%"."""
    assert speedup_of_members(1.0, 8, 16) == pytest.approx(1.33, abs=0.005)


def test_clouds_3_the_limit_of_equation_2_is_communication_alone() -> None:
    assert samples_per_s(32_768, 0.0, 30.0) == pytest.approx(32_768 / 30)
    assert best_speedup(granularity(60.0, 30.0)) == pytest.approx(3)


@pytest.mark.parametrize(
    ("here_per_s", "here_granularity", "far_granularity", "retained", "tolerance"),
    [(261.9, 5.19, 3.33, 0.93, 0.015), (575.1, 1.15, 0.45, 0.59, 0.02)],
    ids=["CV", "NLP"],
)
def test_clouds_4_granularity_tells_what_four_continents_cost(
    here_per_s: float, here_granularity: float, far_granularity: float, retained: float, tolerance: float
) -> None:
    """A-8 and C-8, a step of 32,768 samples: computing takes as long in both. NLP's granularity in C-8 is printed as
    0.4; what was retained follows from the upper end of what that stands for, from 0.4 itself only 0.53."""
    step_s = 32_768 / here_per_s
    compute_s = step_s * here_granularity / (here_granularity + 1)
    far_per_s = samples_per_s(32_768, compute_s, compute_s / far_granularity)
    assert far_per_s / here_per_s == pytest.approx(retained, abs=tolerance)


def test_clouds_7_communication_falls_with_more_peers_while_single_streams_are_the_limit() -> None:
    """Between one RTX8000 and US peers one stream carries 60 Mbit/s (Table 7), 80 about 4 Gbit/s (Figure 15)."""
    link = next(row for row in links() if (row.from_site, row.to_site) == ("onprem.eu.rtx8000", "gcp.us-central1"))
    assert link.stream_bytes_per_s is not None
    gradients_bytes = 2 * 197.8e6  # ConvNextLarge in fp16
    times_s = averaging_s(gradients_bytes, [2, 3, 5, 9], link.stream_bytes_per_s, link.bandwidth_bytes_per_s)
    assert (times_s[1:] < times_s[:-1]).all()
    many = averaging_s(
        gradients_bytes, 2, link.stream_bytes_per_s, link.bandwidth_bytes_per_s, streams_per_pair=link.num_streams
    )
    assert many < times_s[-1], "which is what several streams for each pair give without more peers"


# Clouds and continents: money


def egress_usd_per_gb(provider: str, source_zone: str, target_zone: str) -> float:
    wanted = (provider, source_zone, target_zone)
    return next(row.usd_per_gb for row in egress_prices() if (row.provider, row.source_zone, row.target_zone) == wanted)


SPOT = {
    "gcp": "gcp.t4.spot.us-west1",
    "aws": "aws.ec2.g4dn.2xlarge.spot",
    "azure": "azure.vm.nc4as_t4_v3.spot",
}
SPOT_USD = {provider: offer(name).usd_per_hour for provider, name in SPOT.items()}
INSIDE = {provider: egress_usd_per_gb(provider, "anywhere", "same_region") for provider in SPOT}
US = {provider: egress_usd_per_gb(provider, "us", "us") for provider in SPOT}
CONTINENTS = {provider: egress_usd_per_gb(provider, "anywhere", "anywhere") for provider in SPOT}
OCEANIA = {provider: egress_usd_per_gb(provider, "anywhere", "oce") for provider in SPOT}
LOADING_USD = {"cv": 0.144, "nlp": 0.083}
"""By the hour and machine, §5 (2)."""
D_SHARES = (1 / 3, 2 / 3)
"""Of a machine's traffic in D-2 and D-3: to its partner in the same cloud, to the two in the other one."""
C_SHARES = (8 / 20, 6 / 20, 6 / 20)
"""In C-8: inside a site, between continents, to and from Australia."""
D_GB = {task: usd / (D_SHARES[1] * US["azure"]) for task, usd in (("nlp", 0.763), ("cv", 0.115))}
"""What a machine sends in an hour, which the paper does not print, from what it prints for Azure's external egress."""
C_NLP_GB = 4.329 / (C_SHARES[1] * CONTINENTS["gcp"] + C_SHARES[2] * OCEANIA["gcp"])
"""As well, from the external egress of GC."""


def d_traffic_usd(task: str, provider: str) -> float:
    return float(traffic_usd(D_GB[task], D_SHARES, [INSIDE[provider], US[provider]]))


def c_traffic_usd(provider: str) -> float:
    return float(traffic_usd(C_NLP_GB, C_SHARES, [INSIDE[provider], CONTINENTS[provider], OCEANIA[provider]]))


@pytest.mark.parametrize(
    ("provider", "usd", "tolerance"), [("gcp", 0.835, 0.001), ("aws", 1.05, 0.001), ("azure", 0.973, 0.008)]
)
def test_clouds_figure_11a_an_hour_of_nlp_in_two_clouds(provider: str, usd: float, tolerance: float) -> None:
    """By the machine: spot price, loading, traffic. Azure's parts sum to 0.980, 0.007 more than is printed."""
    own = SPOT_USD[provider] + LOADING_USD["nlp"] + d_traffic_usd("nlp", provider)
    assert own == pytest.approx(usd, abs=tolerance)


def test_clouds_figure_11a_external_egress_of_nlp_outweighs_the_machine() -> None:
    """5.7 times the spot price on Azure, and more than on demand; on GC 2.12 times, where 2.2 is printed."""
    external = {provider: D_SHARES[1] * D_GB["nlp"] * US[provider] for provider in SPOT}
    assert external["azure"] / SPOT_USD["azure"] == pytest.approx(5.7, abs=0.05)
    assert external["azure"] > offer("azure.vm.nc4as_t4_v3").usd_per_hour
    assert external["gcp"] / SPOT_USD["gcp"] == pytest.approx(2.2, rel=0.04)


@pytest.mark.parametrize(("provider", "usd"), [("gcp", 0.762), ("aws", 1.192)])
def test_clouds_figure_11a_an_hour_of_cv_in_two_clouds(provider: str, usd: float) -> None:
    """Unlike those of NLP, these are prices of two machines, and leave out the traffic between them."""
    external = D_SHARES[1] * D_GB["cv"] * US[provider]
    assert 2 * (SPOT_USD[provider] + LOADING_USD["cv"] + external) == pytest.approx(usd, abs=0.0015)


def test_clouds_figure_11a_cv_on_azure_does_not_follow() -> None:
    """0.363 is printed; the parts of one machine sum to 0.393. So "GC with Azure 42% cheaper than GC with AWS" sets one
    machine beside two: by the machine, and with all traffic, it is 22 %."""
    own = {name: SPOT_USD[name] + LOADING_USD["cv"] + d_traffic_usd("cv", name) for name in SPOT}
    assert own["azure"] == pytest.approx(0.393, abs=0.0005)
    printed = {"gcp": 0.762, "aws": 1.192, "azure": 0.363}
    assert 1 - (printed["gcp"] + printed["azure"]) / (printed["gcp"] + printed["aws"]) == pytest.approx(0.42, abs=0.005)
    assert 1 - (own["gcp"] + own["azure"]) / (own["gcp"] + own["aws"]) == pytest.approx(0.22, abs=0.005)


def test_clouds_figure_11b_external_egress_of_nlp_over_four_continents() -> None:
    """4.329 on GC and 1.882 on Azure: the same traffic at both price lists, to the last digit."""
    external = C_NLP_GB * (C_SHARES[1] * CONTINENTS["azure"] + C_SHARES[2] * OCEANIA["azure"])
    assert external == pytest.approx(1.882, abs=0.0005)


@pytest.mark.parametrize(
    ("provider", "usd", "tolerance"), [("gcp", 4.804, 0.01), ("azure", 2.101, 0.002), ("aws", 1.376, 0.08)]
)
def test_clouds_figure_11b_an_hour_of_nlp_over_four_continents(provider: str, usd: float, tolerance: float) -> None:
    """Spot price, loading, traffic. GC sums to 4.84 and Azure to 2.10; AWS to 1.48, 8 % more than is printed, which its
    prices cannot give: its external traffic at 0.02 $/GB and its internal at 0.01 are 1.00 of it."""
    own = SPOT_USD[provider] + LOADING_USD["nlp"] + c_traffic_usd(provider)
    assert own == pytest.approx(usd, rel=tolerance)


def test_clouds_figure_11b_the_dearest_traffic_makes_aws_the_cheapest_cloud() -> None:
    total = {provider: SPOT_USD[provider] + LOADING_USD["nlp"] + c_traffic_usd(provider) for provider in SPOT}
    assert min(total, key=lambda provider: total[provider]) == "aws"
    assert 4.329 / total["gcp"] == pytest.approx(0.9, abs=0.01), "nine tenths of it is egress"


def dollars(name: str, count: int, rate_per_s: float, traffic_usd_per_hour: float = 0.0) -> float:
    return float(usd_per_million_samples(count * (offer(name).usd_per_hour + traffic_usd_per_hour), rate_per_s))


INTERNAL_USD = {task: D_SHARES[0] * D_GB[task] * INSIDE["gcp"] for task in D_GB}
"""§7: "we use the internal egress costs from Figure 11a as a reference for the 8xT4 setup"."""


def test_clouds_figure_1_dollars_per_million_samples() -> None:
    dgx_2 = dollars("gcp.dgx-2.spot", 1, 413)
    eight_a10 = dollars("lambdalabs.a10", 8, 620.6)
    eight_t4 = dollars("gcp.t4.spot.us-central1", 8, 261.9, INTERNAL_USD["cv"])
    assert (dgx_2, eight_a10, eight_t4) == pytest.approx((4.24, 2.15, 1.77), abs=0.005)
    assert 1 - eight_a10 / dgx_2 == pytest.approx(0.49, abs=0.005)
    assert 1 - eight_t4 / dgx_2 == pytest.approx(0.58, abs=0.005)


def test_clouds_figure_16_nlp_is_cheapest_where_nothing_is_sent() -> None:
    """§7: 8xA10 "are 41% slower and 30% more expensive than the DGX-2"; of 8xT4 "the internal egress costs take up more
    than half"."""
    dgx_2 = dollars("gcp.dgx-2.spot", 1, 1811)
    eight_a10 = dollars("lambdalabs.a10", 8, 1059.9)
    eight_t4 = dollars("gcp.t4.spot.us-central1", 8, 575.1, INTERNAL_USD["nlp"])
    assert eight_a10 / dgx_2 == pytest.approx(1.30, abs=0.005)
    assert INTERNAL_USD["nlp"] > SPOT_USD["gcp"]
    assert dgx_2 < eight_a10 < eight_t4
