"""How long it takes to read price lists of others, and how many of their rows are kept.

`--prices FOLDER` reads real files of SkyPilot, too; without it, only made-up rows in the layout of AWS, where every
twentieth row is broken. 60,000 rows should take 5 s at most.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, run_benchmark
from zooid.catalog.importers.skypilot_files import find_skypilot_files, read_skypilot_file

NUM_ROWS, NUM_ROWS_QUICK = 60_000, 6_000
BROKEN_EVERY = 20
HEADER = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone"
GPU_INFO = "\"{'Gpus': [{'Name': 'T4', 'Manufacturer': 'NVIDIA', 'Count': 1.0, 'MemoryInfo': {'SizeInMiB': 16384}}]}\""


def made_up_rows(num_rows: int) -> Iterator[str]:
    """Return rows of machines with and without a GPU; some have a price that is no number."""
    for number in range(num_rows):
        price = "soon" if number % BROKEN_EVERY == 0 else f"{0.5 + number % 97 / 100:.4f}"
        gpu = ("T4", "1.0", GPU_INFO) if number % 3 == 0 else ("", "", "")
        machine, place = f"m{number // 6}.large", number % 6
        yield f"{machine},{gpu[0]},{gpu[1]},8.0,32.0,{gpu[2]},{price},0.21,region-{place},zone-{place}"


def measure_file(file: Path) -> Row:
    """Read a file, and make offers of its rows."""
    begin_s = time.perf_counter()
    imported = read_skypilot_file(file)
    read_s = time.perf_counter() - begin_s
    num_offers = sum(1 for _ in imported.prices.offers())
    return {
        "file": file.parent.name,
        "rows": imported.num_rows,
        "kept": imported.num_kept,
        "named": len(imported.rows_left_out),
        "offers": num_offers,
        "wall_s": round(read_s, 3),
        "with_offers_s": round(time.perf_counter() - begin_s, 3),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--prices", type=Path)
    given, others = parser.parse_known_args()
    real: tuple[Path, ...] = () if given.prices is None else find_skypilot_files(given.prices)

    def measure(quick: bool) -> Iterator[Row]:
        num_rows = NUM_ROWS_QUICK if quick else NUM_ROWS
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{num_rows} made-up rows" / "vms.csv"
            file.parent.mkdir()
            file.write_text("\n".join((HEADER, *made_up_rows(num_rows))))
            yield measure_file(file)
        for file in real:
            yield measure_file(file)

    run_benchmark("price lists", measure, lambda _: 1 + len(real), arguments=others)


if __name__ == "__main__":
    main()
