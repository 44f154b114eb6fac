"""Tar shards in a bucket: read over HTTP by members and by the processes that read ahead for them, and trained on."""

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import webdataset

import zooid
from lab.servers import moto_s3, rclone_s3
from lab.waiting import wait_until
from tests.integration.jobs import plan_by_hand, write_job
from tests.integration.recording import RecordingPlatform, still_running
from tests.integration.reference import train_composed_layers
from tests.processes import children
from tests.unit.shard_folders import READING_JOB, decode, number_of, write_shards
from zooid.core.jobs.job import load_job
from zooid.core.runs.shard import SHARDS_PER_WINDOW
from zooid.layers import check_data
from zooid.schedule.samples import SamplePlan
from zooid.store import open_store
from zooid.store.shards.cache import _locked, read_table
from zooid.worker.samples.sample_reader import GrainReader

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9
NUM_SAMPLES = 400
SERVERS = {"moto": moto_s3, "rclone": rclone_s3}


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    with SERVERS[request.param]() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server.bucket_url("shards-of-data")


def upload(folder: Path, url: str) -> str:
    store = open_store(url)
    for path in folder.glob("*.tar"):
        store.put(path.name, path.read_bytes())
    zooid.index_shards(url)
    return url


@pytest.fixture(scope="module")
def shards(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Forty shards, ten windows."""
    folder = tmp_path_factory.mktemp("written") / "train"
    write_shards(folder, NUM_SAMPLES)
    return upload(folder, f"{bucket}/train")


def cached(folder: Path) -> set[int]:
    """Numbers of the shards that are here."""
    return {int(path.stem[-4:]) for path in folder.glob("*.tar") if read_table(path)}


def cached_bytes(folder: Path) -> int:
    """While nobody takes or makes room."""
    with _locked(folder / "room.lock"):
        return sum(path.stat().st_size for path in folder.glob("*.tar"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_is_read_through_a_small_cache(num_workers: int, shards: str, tmp_path: Path) -> None:
    """By processes that were forked from one that has used the store, which its client does not survive."""
    assert open_store(shards).list("")
    others = children()
    bound = 12 * 51200
    data = zooid.shards(shards, decode, cache=tmp_path / "cache", cache_bytes=bound)
    plan = SamplePlan(
        num_samples=NUM_SAMPLES, batch_size=16, grain_size=8, epochs=1, seed=1, shard_sizes=data.shard_sizes
    )

    def upcoming(step: int) -> Iterator[tuple[int, int, Sequence[int]]]:
        for at in range(step, plan.num_steps):
            yield from ((at, number, grain.tolist()) for number, grain in enumerate(plan.grains(at)))

    reader = GrainReader(
        READING_JOB, data, upcoming, lambda at, grain: plan.grains(at)[grain].tolist(), num_workers=num_workers
    )
    seen = []
    for step, grain, indices in upcoming(0):
        batch = reader.read(step, grain)
        (values,) = batch.args
        numbers = [number_of((values[n].numpy(), int(batch.target[n]))) for n in range(batch.num_samples)]
        assert numbers == indices
        seen += numbers
        assert cached_bytes(tmp_path / "cache") <= bound
    assert sorted(seen) == list(range(NUM_SAMPLES))
    reader.close()
    assert children() == others


def test_the_next_window_is_fetched_while_one_is_read(shards: str, tmp_path: Path) -> None:
    data = zooid.shards(shards, decode, cache=tmp_path / "cache")
    plan = SamplePlan(
        num_samples=NUM_SAMPLES, batch_size=4, grain_size=4, epochs=1, seed=1, shard_sizes=data.shard_sizes
    )
    in_order = list(dict.fromkeys((plan.order(0) // 10).tolist()))
    grains = [(step, 0, plan.grains(step)[0].tolist()) for step in range(plan.num_steps)]
    reader = GrainReader(
        READING_JOB, data, lambda step: iter(grains[step:]), lambda step, _: grains[step][2], num_workers=0
    )
    reader.read(0, 0)
    wait_until(lambda: cached(tmp_path / "cache") == set(in_order[: 2 * SHARDS_PER_WINDOW]))
    for step in range(1, 8):
        reader.read(step, 0)
    assert cached(tmp_path / "cache") == set(in_order[: 2 * SHARDS_PER_WINDOW]), "and no more"
    reader.close()


def test_a_shard_is_streamed_and_never_in_memory_as_a_whole(bucket: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "large.tar", "w") as archive:
        for number in range(120):
            member = tarfile.TarInfo(f"{number:03d}.bin")
            member.size = 1_000_000
            archive.addfile(member, io.BytesIO(os.urandom(member.size)))
    url = upload(tmp_path, f"{bucket}/large")
    others = set(children())
    data = zooid.shards(url, lambda files: (files["bin"], None), cache=tmp_path / "cache")
    sample, _ = data[77]
    assert len(sample) == 1_000_000
    (fetcher,) = set(children()) - others
    status = Path(f"/proc/{fetcher}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    print(f"peak memory of the fetcher: {peak_kib / 1024:.0f} MiB for a shard of 120 MB")
    assert peak_kib * 1024 < 100_000_000
    data.close()


JOB = """
import io


def decode(files):
    return torch.from_numpy(np.load(io.BytesIO(files["image.npy"]))), int(files["cls"])

"""


def test_a_run_on_shards_is_the_run_of_one_process(tmp_path: Path) -> None:
    """Two replicas of two stages, with processes that read ahead; samples and their order are those of the shards."""
    with moto_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        bucket = server.bucket_url("trained-on-shards")
        cache = tmp_path / "cache"
        fields = {"grain_size": "14", "epochs": "2", "data_workers": "1"}
        images, labels = check_data(load_job(write_job(tmp_path / "plain.py", num_samples=150)))[:]
        (tmp_path / "written").mkdir()
        pattern = f"{tmp_path}/written/train-%04d.tar"
        with webdataset.ShardWriter(pattern, maxcount=9, verbose=0) as writer:
            for number in range(150):
                image = images[number].numpy()
                writer.write({"__key__": f"{number:06d}", "image.npy": image, "cls": int(labels[number])})
        url = upload(tmp_path / "written", f"{bucket}/train")
        fields["data"] = f"lambda: zooid.shards({url!r}, decode, cache={str(cache)!r})"
        job_file = write_job(tmp_path / "sharded.py", extra=JOB, fields=fields)
        platform = RecordingPlatform()
        plan = plan_by_hand(job_file, num_replicas=2)
        result = zooid.train(job_file, store=f"{bucket}/run", plan=plan, platform=platform)
        assert still_running(list(platform.pids.values())) == []
        reference = train_composed_layers(job_file)
        assert len(result.losses) == 2 * 4
        assert reference.loss_difference(result.losses) <= TOLERANCE
        assert reference.weight_difference(result.checkpoint) <= TOLERANCE
        assert cached(cache) == set(range(17))
        in_order = check_data(load_job(job_file)).shard_sizes
        assert in_order == (9,) * 16 + (6,)
        assert np.array_equal(check_data(load_job(job_file))[70][0].numpy(), images[70].numpy())
