"""How a member reads samples: the same batches whoever reads them, and errors that a user understands."""

import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lab.waiting import wait_until
from tests.processes import children, is_gone
from zooid.core.errors import JobError, TrainingError
from zooid.core.jobs.job import Job
from zooid.core.runs.batch_history import BatchPiece
from zooid.layers import Batch
from zooid.schedule.samples import SamplePlan
from zooid.worker.samples.sample_reader import GrainReader

PLAN = SamplePlan(num_samples=50, batch_size=16, grain_size=4, epochs=3, seed=5)
SEED = 11
JOB = Job(model=nn.Identity, loss=F.mse_loss, data=list, optimizer=torch.optim.SGD, batch_size=1, epochs=1, seed=SEED)

pytestmark = pytest.mark.timeout(60)


class Augmented:
    """Every kind of random number is drawn for every sample."""

    def __len__(self) -> int:
        return PLAN.num_samples

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        inputs = {"image": torch.rand(3) + index, "shift": random.random(), "noise": np.random.rand(2)}
        return inputs, index


class Broken(Augmented):
    """One sample cannot be read."""

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        if index == 17:
            raise OSError("image truncated\n(3 bytes not processed)")
        return super().__getitem__(index)


class Deadly(Augmented):
    """One sample ends the process that reads it."""

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        if index == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Counting(Augmented):
    """Counts the samples that any process has read."""

    def __init__(self) -> None:
        self.num_read = multiprocessing.get_context("fork").Value("i", 0)

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        with self.num_read:
            self.num_read.value += 1
        return super().__getitem__(index)


class Sharded(Augmented):
    """Notes which shards it was told to fetch."""

    shard_sizes = (10,) * 5

    def __init__(self) -> None:
        self.prefetched: list[int] = []
        self.is_closed = False

    def prefetch(self, shards: Sequence[int]) -> None:
        self.prefetched += shards

    def close(self) -> None:
        self.is_closed = True


def upcoming(step: int) -> Iterator[tuple[int, int, Sequence[int]]]:
    """A member that reads every other grain."""
    for at in range(step, PLAN.num_steps):
        for number, indices in enumerate(PLAN.grains(at)):
            if number % 2 == 0:
                yield at, number, indices.tolist()


def samples_of(step: int, grain: int) -> list[int]:
    return list(PLAN.grains(step)[grain].tolist())


@pytest.fixture
def reader() -> Iterator[Callable[..., GrainReader]]:
    opened = []

    def open_reader(data: Any, num_workers: int, seed: int = SEED) -> GrainReader:
        opened.append(GrainReader(replace(JOB, seed=seed), data, upcoming, samples_of, num_workers=num_workers))
        return opened[-1]

    yield open_reader
    for each in opened:
        each.close()


Readers = Callable[..., GrainReader]


def flat(batch: Batch) -> list[Any]:
    return [*(value.tolist() for value in batch.kwargs.values()), batch.target.tolist()]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_are_the_same_bit_for_bit_whoever_reads_them(reader: Readers, num_workers: int) -> None:
    here, ahead = reader(Augmented(), 0), reader(Augmented(), num_workers)
    seen = []
    for step, grain, indices in upcoming(0):
        batch = flat(here.read(step, grain))
        assert batch == flat(ahead.read(step, grain))
        assert batch[-1] == indices
        seen.append(batch[0])
    assert len({str(images) for images in seen}) == len(seen), "each grain draws its own numbers"


def test_another_seed_draws_other_numbers(reader: Readers) -> None:
    one, other = (flat(reader(Augmented(), 0, seed).read(0, 0)) for seed in (1, 2))
    assert one[-1] == other[-1]
    assert one[:-1] != other[:-1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_step_that_is_run_again_reads_the_same(reader: Readers, num_workers: int) -> None:
    again = reader(Augmented(), num_workers)
    first = {(step, grain): flat(again.read(step, grain)) for step, grain, _ in upcoming(0) if step < 3}
    for step, grain in [(1, 0), (1, 2), (1, 0), (1, 2), (2, 0), (0, 2), (1, 0)]:
        assert flat(again.read(step, grain)) == first[step, grain]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_reading_may_begin_in_the_middle_and_again_after_the_end(reader: Readers, num_workers: int) -> None:
    late = reader(Augmented(), num_workers)
    *_, (last_step, last_grain, indices) = upcoming(0)
    assert flat(late.read(last_step, last_grain))[-1] == indices
    assert flat(late.read(0, 2))[-1] == PLAN.grains(0)[2].tolist()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_random_numbers_drawn_after_reading_belong_to_the_grain(reader: Readers, num_workers: int) -> None:
    """As a loss may draw them: a step that is run again must be the same step."""
    again = reader(Augmented(), num_workers)
    drawn = []
    for _ in range(2):
        again.read(1, 0)
        drawn.append((torch.rand(1).item(), random.random(), np.random.rand()))
        torch.rand(7)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_sample_that_raises_is_named_wherever_it_is_read(reader: Readers, num_workers: int) -> None:
    """Until then, what is before it in order is read; the message is the sample's, not a traceback."""
    broken = reader(Broken(), num_workers)
    good = [*itertools.takewhile(lambda item: 17 not in item[2], upcoming(0))]
    assert [flat(broken.read(step, grain))[-1] for step, grain, _ in good] == [indices for _, _, indices in good]
    step, grain, _ = [*upcoming(0)][len(good)]
    with pytest.raises(JobError) as raised:
        broken.read(step, grain)
    text = "job.data()[17] raised OSError: image truncated\n(3 bytes not processed); correct or leave out this sample"
    assert str(raised.value) == text
    if num_workers:
        assert "image truncated" in "".join(raised.value.__notes__), "the process's own traceback"


def test_a_process_that_dies_while_it_is_waited_for_is_an_error(reader: Readers) -> None:
    deadly = reader(Deadly(), 2)
    started_s = time.monotonic()
    with pytest.raises(TrainingError, match=r"reads samples ahead \(process \d+\) was ended by SIGKILL; where the"):
        [deadly.read(step, grain) for step, grain, _ in upcoming(0)]
    assert time.monotonic() - started_s < 4, "at once, not when somebody looks"


def test_a_process_that_dies_is_an_error_of_the_next_read_and_of_nothing_else(reader: Readers) -> None:
    before, others = signal.getsignal(signal.SIGCHLD), set(children())
    ahead = reader(Augmented(), 2)
    ahead.read(0, 0)
    assert signal.getsignal(signal.SIGCHLD) is before
    victim = min(set(children()) - others)
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    for _ in range(3):
        with pytest.raises(TrainingError, match=f"process {victim}"):
            ahead.read(0, 2)


@pytest.mark.parametrize("has_died", [False, True])
def test_closing_ends_the_processes(has_died: bool) -> None:
    others = set(children())
    ahead = GrainReader(JOB, Augmented(), upcoming, samples_of, num_workers=2)
    ahead.read(0, 0)
    pids = set(children()) - others
    assert len(pids) == 2
    if has_died:
        os.kill(min(pids), signal.SIGKILL)
    ahead.close()
    assert set(children()) <= others
    ahead.close()


def test_closing_does_not_wait_for_what_a_killed_process_has_locked() -> None:
    others = set(children())
    ahead = GrainReader(JOB, Augmented(), upcoming, samples_of, num_workers=2)
    ahead.read(0, 0)
    assert ahead._processes is not None
    # As if it had been killed while it looked whether it should end.
    ahead._processes._results._workers_done_event._cond.acquire()
    victim = min(set(children()) - others)
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    ahead.close()
    assert set(children()) <= others


def test_processes_end_with_a_member_that_is_killed() -> None:
    """At once: what they have inherited would keep the member's connections open, and its peers waiting."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def member(pipe: Connection) -> None:
        GrainReader(JOB, Augmented(), upcoming, samples_of, num_workers=2).read(0, 0)
        pipe.send(children())
        signal.pause()

    process = context.Process(target=member, args=(theirs,))
    process.start()
    pids = ours.recv()
    assert len(pids) == 2
    assert not any(is_gone(pid) for pid in pids)
    process.kill()
    started_s = time.monotonic()
    process.join()
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    assert time.monotonic() - started_s < 4


def test_processes_read_two_grains_each_ahead_and_no_more(reader: Readers) -> None:
    data = Counting()
    ahead = reader(data, 2)
    ahead.read(0, 0)
    wait_until(lambda: data.num_read.value == (1 + 2 * 2) * PLAN.grain_size)
    ahead.read(0, 2)
    wait_until(lambda: data.num_read.value == (2 + 2 * 2) * PLAN.grain_size)


def test_nothing_is_read_ahead_without_processes(reader: Readers) -> None:
    data = Counting()
    reader(data, 0).read(0, 0)
    assert data.num_read.value == PLAN.grain_size


def test_a_thread_may_own_the_reader() -> None:
    """Where nobody can be told of signals."""
    read: list[Any] = []

    def work() -> None:
        ahead = GrainReader(JOB, Augmented(), upcoming, samples_of, num_workers=1)
        read.extend(flat(ahead.read(step, grain))[-1] for step, grain, _ in upcoming(0))
        ahead.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert read == [indices for _, _, indices in upcoming(0)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_shards_are_announced_before_they_are_read(reader: Readers, num_workers: int) -> None:
    data = Sharded()
    ahead = reader(data, num_workers)
    for step, grain, indices in upcoming(0):
        batch = ahead.read(step, grain)
        assert batch.target.tolist() == indices
        assert {index // 10 for index in indices} <= set(data.prefetched)
    announced = len(data.prefetched)
    ahead.read(0, 0)
    assert len(data.prefetched) > announced, "they may be gone since"
    ahead.close()
    assert data.is_closed, "so that nothing fetches any more"


def test_a_grain_of_somebody_else_is_a_mistake(reader: Readers) -> None:
    with pytest.raises(AssertionError, match="grain 1 of step 0 is not among those"):
        reader(Augmented(), 1).read(0, 1)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_what_was_read_ahead_for_other_shares_is_not_used(num_workers: int) -> None:
    """The first grain of every step stays this member's, so only the rest tells that something has changed."""
    plan, data, own = PLAN, Sharded(), [0, 1]

    def of_share(step: int) -> Iterator[tuple[int, int, Sequence[int]]]:
        for at in range(step, plan.num_steps):
            yield from (
                (at, number, plan.grains(at)[number].tolist()) for number in own if number < plan.num_grains(at)
            )

    reading = GrainReader(JOB, data, of_share, samples_of, num_workers=num_workers)
    for step, shares in enumerate([[0, 1], [0], [0], [0, 1, 2], [0, 2], [0]]):
        own[:] = shares
        for grain in shares:
            if grain < plan.num_grains(step):
                samples = samples_of(step, grain)
                assert reading.read(step, grain).target.tolist() == samples, (step, grain)
                assert {sample // 10 for sample in samples} <= set(data.prefetched)
    reading.close()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("batch_sizes", [(16, 30, 7), (30, 6, 25)])
def test_what_was_read_ahead_for_another_batch_size_is_not_used(num_workers: int, batch_sizes: list[int]) -> None:
    plan = replace(PLAN, batch_size=batch_sizes[0])

    def all_grains(step: int) -> Iterator[tuple[int, int, Sequence[int]]]:
        while step < plan.num_steps:
            yield from ((step, number, indices.tolist()) for number, indices in enumerate(plan.grains(step)))
            step += 1

    reading = GrainReader(
        JOB, Augmented(), all_grains, lambda at, grain: plan.grains(at)[grain].tolist(), num_workers=num_workers
    )
    pieces: tuple[BatchPiece, ...] = ()
    for step in range(9):
        if step in (3, 6):
            pieces += (BatchPiece(first_step=step, batch_size=batch_sizes[step // 3]),)
            plan.follow(pieces)
        for number, indices in enumerate(plan.grains(step) if step < plan.num_steps else []):
            assert reading.read(step, number).target.tolist() == indices.tolist(), (step, number)
    reading.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_for_a_gpu_are_pinned(num_workers: int) -> None:
    torch.zeros(1, device="cuda")  # processes are forked from one that uses the GPU, and must not touch it
    plain = GrainReader(JOB, Augmented(), upcoming, samples_of, num_workers=0)
    pinned = GrainReader(JOB, Augmented(), upcoming, samples_of, num_workers=num_workers, pin=True)
    for step, grain, _ in upcoming(0):
        batch = pinned.read(step, grain)
        assert all(value.is_pinned() for value in (*batch.kwargs.values(), batch.target))
        moved = batch.to("cuda")
        assert moved.target.is_cuda
        assert flat(moved) == flat(plain.read(step, grain))
    pinned.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_a_sample_that_raises_is_named_where_batches_are_pinned() -> None:
    broken = GrainReader(JOB, Broken(), upcoming, samples_of, num_workers=1, pin=True)
    with pytest.raises(JobError, match=r"job.data\(\)\[17\] raised OSError"):
        [broken.read(step, grain) for step, grain, _ in upcoming(0)]
    broken.close()
