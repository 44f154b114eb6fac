"""Gloo's all-reduces as they were learned beside what they take, in settings that were not learned from.

Members are in network namespaces, with 50 MB/s each way for each of them and a switch between. One sweep of
`zooid.probe_all_reduce` measures Gloo among 2 to 8 of them, by bytes and by how many all-reduces are under way. The
model is fitted to every second number of members at every second size, and asked for all else: an unseen size, an
unseen number of members, or both. `error` is predicted over measured, less 1, of medians; `covered` the share of single
repeats between the low and the high quantile, which are meant to hold eight of ten. `formula_s` is what the link's
bandwidth alone would say, 2(n−1)/n · bytes over it.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import zooid
from benchmarks.harness import Row, run_benchmark
from lab.namespaces import Member, connect_members, shape, star
from zooid.core.plans.all_reduce_samples import AllReduceSample
from zooid.platforms.local import LocalPlatform
from zooid.predictor.learned.all_reduce_model import SMALL_BYTES, fit_all_reduce

LINK_BYTES_PER_S = 50_000_000
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Grid:
    """What is measured; every second size and number of members, from the first to the last, is learned from."""

    sizes: tuple[int, ...]
    crowds: tuple[int, ...]
    at_once: tuple[int, ...]
    num_repeats: int

    def is_learned(self, setting: "Setting") -> bool:
        return setting.num_bytes in self.sizes[::2] and setting.num_members in self.crowds[::2]

    @property
    def num_unseen(self) -> int:
        num_learned = len(self.sizes[::2]) * len(self.crowds[::2])
        return (len(self.sizes) * len(self.crowds) - num_learned) * len(self.at_once)


SMALL_SIZES = (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
FULL = Grid(
    sizes=(*SMALL_SIZES, MIB * 3 // 2, 2 * MIB, 3 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 12 * MIB, 16 * MIB),
    crowds=(2, 3, 4, 5, 6, 7, 8),
    at_once=(1, 2),
    num_repeats=4,
)
QUICK = Grid(
    sizes=(*SMALL_SIZES, MIB * 3 // 2, 2 * MIB, 3 * MIB, 4 * MIB, 6 * MIB, 8 * MIB),
    crowds=(2, 3, 4),
    at_once=(1,),
    num_repeats=4,
)


class Setting(NamedTuple):
    num_members: int
    num_bytes: int
    concurrency: int


def grid(quick: bool) -> Grid:
    return QUICK if quick else FULL


def measure(quick: bool) -> Iterator[Row]:
    chosen = grid(quick)
    by_setting: defaultdict[Setting, list[AllReduceSample]] = defaultdict(list)
    for sample in sweep(chosen):
        by_setting[Setting(sample.num_members, sample.num_bytes, sample.concurrency)].append(sample)
    learned_from = [s for setting, samples in by_setting.items() if chosen.is_learned(setting) for s in samples]
    model = fit_all_reduce(learned_from, time.time())
    for setting, samples in sorted(by_setting.items()):
        if chosen.is_learned(setting):
            continue
        estimate = model.predict(setting.num_bytes, setting.num_members, setting.concurrency)
        assert not estimate.is_extrapolated, estimate.beyond
        times_s = [sample.took_s for sample in samples]
        measured_s = statistics.median(times_s)
        bus_bytes = 2 * (setting.num_members - 1) / setting.num_members * setting.num_bytes
        formula_s = bus_bytes * setting.concurrency / LINK_BYTES_PER_S
        yield {
            "n": setting.num_members,
            "num_bytes": setting.num_bytes,
            "at_once": setting.concurrency,
            "measured_s": measured_s,
            "predicted_s": estimate.median_s,
            "low_s": estimate.low_s,
            "high_s": estimate.high_s,
            "error": estimate.median_s / measured_s - 1,
            "covered": statistics.fmean(estimate.low_s <= each <= estimate.high_s for each in times_s),
            "formula_s": formula_s,
            "formula_error": formula_s / measured_s - 1,
        }


def sweep(chosen: Grid) -> tuple[AllReduceSample, ...]:
    """What members measure, each in its namespace."""
    with star(max(chosen.crowds)) as lab:
        connect_members(lab)
        shape(lab, LINK_BYTES_PER_S)
        homes = {f"m{rank}": member for rank, member in enumerate(lab.members)}
        return zooid.probe_all_reduce(
            members=len(homes),
            sizes=chosen.sizes,
            crowds=chosen.crowds,
            at_once=chosen.at_once,
            repeats=chosen.num_repeats,
            platform=LocalPlatform(lambda launch: inside(homes[launch.member])),
        ).samples


def inside(home: Member) -> Sequence[str]:
    """What puts a member into its namespace, and tells Gloo which device leads out of it."""
    return [*home.prefix, "env", f"GLOO_SOCKET_IFNAME={home.device}"]


def summarise(rows: list[Row]) -> list[Row]:
    parts = {
        "up to 1 MiB": [row for row in rows if _number(row, "num_bytes") <= SMALL_BYTES],
        "above": [row for row in rows if _number(row, "num_bytes") > SMALL_BYTES],
        "all": rows,
    }
    return [
        {
            "messages": name,
            "settings": len(part),
            "mean_error": statistics.fmean(abs(_number(row, "error")) for row in part),
            "worst_error": max(abs(_number(row, "error")) for row in part),
            "covered": statistics.fmean(_number(row, "covered") for row in part),
            "formula_mean_error": statistics.fmean(abs(_number(row, "formula_error")) for row in part),
        }
        for name, part in parts.items()
    ]


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return value


if __name__ == "__main__":
    run_benchmark("learned all-reduce", measure, lambda quick: grid(quick).num_unseen, summarise)
