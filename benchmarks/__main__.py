"""Runs every benchmark, one after the other, with the same options."""

import pkgutil
import subprocess
import sys

import benchmarks

NOT_BENCHMARKS = {"architectures", "harness", "jobs", "baselines", "__main__"}


def main() -> int:
    names = sorted(
        module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name not in NOT_BENCHMARKS
    )
    status = 0
    for name in names:
        print(f"== benchmarks.{name}", file=sys.stderr, flush=True)
        status |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
