"""The same job under torchrun, which ends all workers when one is lost, and starts all of them again.

The workers write a checkpoint after every step, so that they lose no more than the step under way.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.recovery.jobs import BATCH_SIZE, COMPUTE_S, model_and_data
from benchmarks.recovery.timing import Resumption, resumption
from lab.footprints import FOLDER, last_applied, read_footprints
from zooid.core.errors import ZooidError

NUM_WORKERS = 4
_STEPS_BETWEEN = 5
_LIMIT_S = 90.0
_POLL_S = 0.005

_HEAD = """import os
import sys

sys.argv.append(f"rank{os.environ['RANK']}s0")  # the name of its footprints
"""
_LOOP = f"""
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path(__file__).parent / "checkpoint.pt"


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    # The agent keeps its store when it restarts workers; without a prefix they would call workers that are gone.
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(3)
    model = DistributedDataParallel(build_model())
    optimizer = build_optimizer(model.parameters())
    data = Samples()
    first_step = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_step = saved["num_steps"]
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(3)).tolist()
    own = {BATCH_SIZE} // size
    for step in range(first_step, len(data) // {BATCH_SIZE}):
        begin = step * {BATCH_SIZE} + rank * own
        samples = [data[index] for index in order[begin : begin + own]]
        inputs, targets = (torch.stack(parts) for parts in zip(*samples))
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            state = {{"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "num_steps": step + 1}}
            torch.save(state, CHECKPOINT.with_suffix(".new"))
            os.replace(CHECKPOINT.with_suffix(".new"), CHECKPOINT)
            note_applied(step + 1, None)  # a step is committed when it cannot be lost any more


main()
"""


def restarts(folder: Path, ranks: Sequence[int]) -> list[Resumption]:
    """Kill these workers one after the other in one job; how it has gone on after each."""
    num_steps = (len(ranks) + 1) * _STEPS_BETWEEN
    worker = folder / "worker.py"
    folder.mkdir()
    (folder / FOLDER).mkdir()
    worker.write_text(_HEAD + model_and_data(NUM_WORKERS, num_steps) + _LOOP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    command += [f"--nproc-per-node={NUM_WORKERS}", f"--max-restarts={len(ranks)}", "--monitor-interval=0.1"]
    log = folder / "torchrun.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(worker)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
    try:
        found = []
        for number, rank in enumerate(ranks, start=1):
            applied_s = _wait_for(number * _STEPS_BETWEEN, folder, process, log)
            time.sleep(max(0.0, applied_s + COMPUTE_S / 2 - time.monotonic()))
            fault_s = time.monotonic()
            os.kill(_worker_pid(folder, rank), signal.SIGKILL)
            _wait_for(number * _STEPS_BETWEEN + 1, folder, process, log)
            resumed = resumption(read_footprints(folder), fault_s)
            assert resumed is not None
            found.append(resumed)
        return found
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # the agent ends its workers
        process.wait()


def _wait_for(num_steps: int, folder: Path, process: "subprocess.Popen[bytes]", log: Path) -> float:
    """Until so many steps are committed; when that was."""
    deadline_s = time.monotonic() + _LIMIT_S
    while (applied := last_applied(folder))[0] < num_steps:
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise ZooidError(f"torchrun does not come to step {num_steps}:\n{log.read_text()[-3000:]}")
        time.sleep(_POLL_S)
    return applied[1]


def _worker_pid(folder: Path, rank: int) -> int:
    """The newest process of this rank."""
    files = sorted((folder / FOLDER).glob(f"rank{rank}s0-*"), key=lambda file: file.stat().st_mtime)
    return int(files[-1].name.rpartition("-")[2])
