"""Checkpoints are complete or invisible, hold every tensor once, are read into any layout, and go when they are old."""

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import nn

import zooid
from lab.faults import Faults, FaultyStore, Rates
from zooid.core.abort import Abort
from zooid.core.errors import CheckpointError, CommAborted, RecordError, StoreError, StoreUnavailable, Superseded
from zooid.core.records import decode_record, encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import (
    SHARD_BYTES,
    CheckpointManifest,
    CheckpointRule,
    Division,
    Ledger,
    SampleFacts,
    cut_shards,
    part_of,
)
from zooid.store import Data, ObjectStore, open_store
from zooid.store.checkpoint_index import complete_steps, last_step, prune, read_manifest, sweep_incomplete
from zooid.worker.checkpoints.contents import read_optimizer_tensors, read_tensors
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors, optimizer_tensors
from zooid.worker.checkpoints.safetensors_file import pack
from zooid.worker.checkpoints.writer import CheckpointWriter, replace_ledger, write_manifest
from zooid.worker.state.loss_scaling import LossScale

STAGES = (("first.weight", "first.bias", "mean"), ("last.weight", "last.bias"))
STEP = 40


class Model(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.last = nn.Linear(8, 2)

    def forward(self, values: torch.Tensor) -> Any:
        return self.last(torch.relu(self.first(values)) - self.mean)


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def trained() -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.01)
    steps(model, optimizer, 3)
    return model, optimizer


def steps(model: Model, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    for number in range(num_steps):
        optimizer.zero_grad()
        model(torch.full((4, 3), float(number + 1))).square().mean().backward()
        optimizer.step()


def a_manifest(**changed: Any) -> CheckpointManifest:
    fields: dict[str, Any] = {
        "step": 0,
        "model_fingerprint": "f",
        "samples": SampleFacts(num_samples=10, batch_size=2, grain_size=1, epochs=20, seed=0),
        "optimizer_class": "AdamW",
        "shards": (),
        "constants": (),
        "aliases": {"tied": "first.weight"},
    }
    return CheckpointManifest(**fields | changed)


def a_division(model: Model, num_replicas: int = 2, roster: int = 0) -> Division:
    sizes = {name: tensor.numel() * 4 for name, tensor in model.state_dict().items()}
    return Division(
        stages=tuple({name: sizes[name] for name in names} for names in STAGES),
        parameters=frozenset(name for name, _ in model.named_parameters()),
        num_replicas=num_replicas,
        roster=roster,
    )


def named_of(model: Model) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def write_parts(store: ObjectStore, step: int, model: Model, optimizer: torch.optim.Optimizer, whose: Division) -> None:
    """As the members of all seats do, each with its stage's tensors only."""
    state = model.state_dict()
    for stage, names in enumerate(STAGES):
        own = [(name, parameter) for name, parameter in model.named_parameters() if name in names]
        entries = {
            entry: tensor
            for entry, tensor in optimizer_tensors(optimizer, model.named_parameters()).items()
            if entry.partition(":")[2] in dict(own)
        }
        for replica in range(whose.num_replicas):
            writer = CheckpointWriter(store, whose, stage, replica, Abort())
            writer.begin(step, {name: state[name] for name in names}, entries)
            assert writer.wait() == step


def write_whole(
    store: ObjectStore, step: int, model: Model, optimizer: torch.optim.Optimizer, num_replicas: int = 2
) -> CheckpointManifest:
    division = a_division(model, num_replicas)
    write_parts(store, step, model, optimizer, division)
    url = write_manifest(store, a_manifest(), division, step, LossScale(8.0, 5), Ledger())
    assert url == f"{store.url}/checkpoints/{step:08d}"
    return read_manifest(store, step)


class TestRule:
    def test_it_counts_steps_or_seconds(self) -> None:
        by_steps, by_time = CheckpointRule(every_steps=3), CheckpointRule(every_s=60.0)
        assert [by_steps.is_due(number, 1e6) for number in (2, 3, 4)] == [False, True, True]
        assert [by_time.is_due(1, seconds) for seconds in (59.0, 60.0)] == [False, True]
        assert not by_time.is_due(0, 1e6), "there is nothing new to write"
        assert not CheckpointRule().is_due(10**6, 1e6)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"every_s": 1.0, "every_steps": 1}, "give one of them"),
            ({"every_s": 0.0}, "must be above 0"),
            ({"every_steps": 0}, "must be at least 1"),
            ({"keep": 0}, "at least the newest checkpoint has to stay"),
        ],
    )
    def test_it_refuses_what_makes_no_sense(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(RecordError, match=message):
            CheckpointRule(**fields)


class TestDivision:
    @given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 100), max_size=12), st.integers(1, 5))
    def test_every_name_has_one_writer_and_none_has_too_much(self, sizes: dict[str, int], num_replicas: int) -> None:
        parts = [part_of(sizes, num_replicas, replica) for replica in range(num_replicas)]
        assert sorted(name for part in parts for name in part) == sorted(sizes)
        loads = [sum(sizes[name] for name in part) for part in parts]
        assert max(loads) <= sum(sizes.values()) / num_replicas + max(sizes.values(), default=0)
        shuffled = dict(sorted(sizes.items(), reverse=True))
        assert [part_of(shuffled, num_replicas, replica) for replica in range(num_replicas)] == parts

    @pytest.mark.parametrize("num_replicas", [1, 2, 7])
    def test_shards_follow_from_the_layout(self, num_replicas: int) -> None:
        model = Model()
        division = a_division(model, num_replicas)
        parts = division.parts(STEP)
        assert sorted(n for part in parts for shard in part.model for n in shard.names) == sorted(model.state_dict())
        trained = [n for part in parts for shard in part.optimizer for n in shard.names]
        assert sorted(trained) == sorted(name for name, _ in model.named_parameters())
        all_keys = [shard.key for part in parts for shard in (*part.model, *part.optimizer)]
        assert len(all_keys) == len(set(all_keys))
        assert parts[0].model[0].key == f"checkpoints/00000040/model-00001-of-{len(parts):05d}.safetensors"
        seats = [division.part(STEP, stage, replica) for stage in range(2) for replica in range(num_replicas)]
        assert [part for part in seats if part is not None] == parts
        assert len(parts) == min(2, num_replicas) + min(3, num_replicas), "nobody writes an empty shard"

    def test_rosters_never_share_a_key(self) -> None:
        old, new = (a_division(Model(), roster=roster).parts(STEP) for roster in (0, 3))
        assert not {s.key for part in old for s in part.model} & {s.key for part in new for s in part.model}

    @given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 20)), st.integers(1, 20))
    def test_no_shard_is_larger_than_it_must_be(self, sizes: dict[str, int], most_bytes: int) -> None:
        shards = cut_shards(sizes, sizes, most_bytes)
        assert [name for names in shards for name in names] == list(sizes)
        assert all(len(names) == 1 or sum(sizes[name] for name in names) <= most_bytes for names in shards)

    def test_a_large_stage_is_written_in_several_shards_that_are_read_as_one(self, store: ObjectStore) -> None:
        model = Model()
        state = model.state_dict()
        huge = Division(
            stages=(dict.fromkeys(state, SHARD_BYTES),), parameters=frozenset(name for name, _ in named_of(model))
        )
        writer = CheckpointWriter(store, huge, 0, 0, Abort())
        writer.begin(STEP, state, {f"exp_avg:{name}": tensor for name, tensor in named_of(model)})
        writer.wait()
        write_manifest(store, a_manifest(aliases={}), huge, STEP, LossScale(), Ledger())
        manifest = read_manifest(store, STEP)
        assert [len(shard.names) for shard in manifest.shards] == [1] * len(state)
        assert len(manifest.optimizer) == len(named_of(model)), "a buffer has no optimizer state"
        torch.testing.assert_close(zooid.load_checkpoint(store.url), dict(state), rtol=0, atol=0)
        assert len(read_optimizer_tensors(store, manifest, state)) == len(named_of(model))


class TestPacking:
    def test_the_library_reads_it_back_bitwise(self) -> None:
        tensors = {
            "half": torch.arange(5, dtype=torch.float16),
            "brain": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
            "wide": torch.randn(3, 5, dtype=torch.float64).t(),
            "flags": torch.tensor([True, False, True]),
            "count": torch.tensor(7),
            "nothing": torch.empty(0, 4),
            'strange "name" ü': torch.tensor([1, 2], dtype=torch.int16),
            "parameter": nn.Parameter(torch.randn(2, 2)),
        }
        found = load(bytes(pack(tensors)))
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            assert as_bytes(found[name]) == as_bytes(tensor), name
        assert load(bytes(pack({}))) == {}


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().reshape(-1).contiguous().view(torch.uint8).tolist())


class Gate:
    """A store whose puts wait until they are let through."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.is_open = threading.Event()
        self.url = inner.url

    def put(self, key: str, data: Data) -> None:
        assert self.is_open.wait(30)
        self._inner.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TestWriter:
    def test_it_writes_what_was_there_when_it_began(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        model, optimizer = trained
        gate: Any = Gate(store)
        division = Division(stages=({name: 1 for names in STAGES for name in names},), parameters=frozenset())
        writer = CheckpointWriter(gate, division, 0, 0, Abort())
        assert writer.poll() is None
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        writer.begin(STEP, model.state_dict(), {})
        steps(model, optimizer, 2)
        assert writer.is_busy
        assert writer.poll() is None, "it does not wait"
        gate.is_open.set()
        assert writer.wait() == writer.done_step == STEP
        found = load(bytes(store.get(keys.shard(STEP, "model", 0, 1, 0))))
        assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
        assert not torch.equal(found["first.weight"], model.state_dict()["first.weight"])

    def test_an_error_of_the_store_reaches_the_caller_once(self, store: ObjectStore) -> None:
        model = Model()
        faulty = FaultyStore(store, Faults(put=Rates(error=1.0)), seed=0)
        writer = CheckpointWriter(faulty, a_division(model, 1), 1, 0, Abort())
        writer.begin(STEP, model.state_dict(), {})
        with pytest.raises(StoreError, match=r"the checkpoint of step 40 could not be written: injected: put of") as e:
            writer.wait()
        assert faulty.counts == {"put.error": 1}
        assert isinstance(e.value.__cause__, StoreUnavailable)
        assert f"zooid resume {store.url}" in str(e.value)
        assert writer.poll() is None
        assert not writer.is_busy

    def test_waiting_for_it_can_be_aborted(self, store: ObjectStore) -> None:
        gate: Any = Gate(store)
        abort = Abort()
        writer = CheckpointWriter(gate, a_division(Model(), 1), 0, 0, abort)
        writer.begin(STEP, Model().state_dict(), {})
        abort.set("the run ends")
        with pytest.raises(CommAborted, match="the run ends"):
            writer.wait()
        gate.is_open.set()

    def test_a_member_without_tensors_has_written_its_part(self, store: ObjectStore) -> None:
        writer = CheckpointWriter(store, a_division(Model(), 7), 0, 6, Abort())
        writer.begin(STEP, {}, {})
        assert writer.wait() == STEP
        assert store.is_empty()


class TestManifest:
    def test_nothing_is_visible_before_it(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        model, optimizer = trained
        write_whole(store, STEP, model, optimizer)
        division = a_division(model)
        write_parts(store, STEP + 10, model, optimizer, division)
        assert last_step(store) == STEP
        zooid.load_checkpoint(store.url)
        write_manifest(store, a_manifest(), division, STEP + 10, LossScale(), Ledger())
        assert last_step(store) == STEP + 10

    def test_it_is_not_written_before_all_parts_are(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        model, optimizer = trained
        division = a_division(model)
        write_parts(store, STEP, model, optimizer, division)
        store.delete([division.parts(STEP)[-1].model[0].key])
        with pytest.raises(
            CheckpointError, match=r"lacks checkpoints/00000040/model-00004-of-00004.safetensors, which"
        ):
            write_manifest(store, a_manifest(), division, STEP, LossScale(), Ledger())
        assert complete_steps(store) == []

    def test_a_roster_that_was_replaced_makes_nothing_visible(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        model, optimizer = trained
        old, new = a_division(model, roster=1), a_division(model, roster=4)
        write_parts(store, STEP, model, optimizer, old)
        write_parts(store, STEP, model, optimizer, new)
        for number in (1, 2, 3, 4):
            store.put(keys.claim(number), b"")
        with pytest.raises(Superseded, match=r"claims/000002.json replaces claim 1; this process ends"):
            write_manifest(store, a_manifest(), old, STEP, LossScale(), Ledger())
        with pytest.raises(Superseded, match=r"claims/000002.json replaces claim 1; this process ends"):
            replace_ledger(store, a_manifest(step=STEP), 1)
        assert complete_steps(store) == []
        write_manifest(store, a_manifest(), new, STEP, LossScale(), Ledger())
        assert all("-000004." in shard.key for shard in read_manifest(store, STEP).shards)

    def test_one_that_is_there_already_stays_and_the_own_shards_go(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        """A member that was left behind may have completed the same step just before it was fenced."""
        model, optimizer = trained
        divisions = a_division(model, roster=1), a_division(model, roster=2)
        for division in divisions:
            store.put(keys.claim(division.roster), b"")
            write_parts(store, STEP, model, optimizer, division)
        parts = divisions[0].parts(STEP)
        shards = tuple(shard for part in parts for shard in part.model)
        store.put(keys.checkpoint_manifest(STEP), encode_record(a_manifest(step=STEP, shards=shards)))
        before = bytes(store.get(keys.checkpoint_manifest(STEP)))
        write_manifest(store, a_manifest(), divisions[1], STEP, LossScale(2.0), Ledger())
        assert bytes(store.get(keys.checkpoint_manifest(STEP))) == before
        assert not [key for key in store.list(keys.checkpoint(STEP)) if "-000002." in key]
        torch.testing.assert_close(zooid.load_checkpoint(store.url)["mean"], model.mean, rtol=0, atol=0)

    def test_an_older_form_is_refused(self) -> None:
        data = encode_record(a_manifest()).replace(b'"version": 3', b'"version": 2')
        with pytest.raises(RecordError, match=r"has version 2; this zooid reads 3"):
            decode_record(data, CheckpointManifest, "manifest.json")


class TestReading:
    def test_any_layout_finds_its_own(self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]) -> None:
        """Two stages of two replicas wrote it; one stage has other names together."""
        model, optimizer = trained
        manifest = write_whole(store, STEP, model, optimizer)
        assert (manifest.loss_scale, manifest.num_good_steps) == (8.0, 5)
        state = model.state_dict()
        found = read_tensors(store, manifest, ["mean", "last.weight"])
        assert found.keys() == {"mean", "last.weight"}
        assert all(torch.equal(found[name], state[name]) for name in found)
        entries = read_optimizer_tensors(store, manifest, ["first.bias", "last.weight", "unknown"])
        assert {entry.partition(":")[2] for entry in entries} == {"first.bias", "last.weight"}
        assert {entry.partition(":")[0] for entry in entries} == {"step", "exp_avg", "exp_avg_sq"}
        with pytest.raises(CheckpointError, match=r"lacks \['unknown'\]"):
            read_tensors(store, manifest, ["unknown"])

    def test_the_plain_loop_goes_on_bitwise(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        model, optimizer = trained
        write_whole(store, STEP, model, optimizer)
        other = Model()
        state = zooid.load_checkpoint(store.url)
        assert torch.equal(state.pop("tied"), model.first.weight)
        other.load_state_dict(state, strict=True)
        own = torch.optim.AdamW(other.parameters(), lr=0.01)
        assert zooid.load_optimizer(f"{store.url}/checkpoints/00000040", own, other.named_parameters()) == STEP
        for each in ((model, optimizer), (other, own)):
            steps(*each, 3)
        assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())

    def test_another_optimizer_is_refused(
        self, store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
    ) -> None:
        model, optimizer = trained
        write_whole(store, STEP, model, optimizer)
        with pytest.raises(CheckpointError, match=r"was trained with AdamW, whose state means nothing to SGD"):
            zooid.load_optimizer(store.url, torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())

    @pytest.mark.parametrize("kind", ["model", "optimizer"])
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda data: data[:-1], "was cut short or altered"),
            (lambda data: data[:20], "was cut short or altered"),
            (lambda data: bytes(pack({"exp_avg:other": torch.ones(1)})), "does not hold the tensors that its manifest"),
            (None, "is missing, although its manifest is there"),
        ],
    )
    def test_a_damaged_shard_is_named(
        self,
        store: ObjectStore,
        trained: tuple[Model, torch.optim.Optimizer],
        kind: str,
        damage: Any,
        message: str,
    ) -> None:
        model, optimizer = trained
        manifest = write_whole(store, STEP, model, optimizer)
        shard = manifest.shards[1] if kind == "model" else manifest.optimizer[1]
        if damage is None:
            store.delete([shard.key])
        else:
            store.put(shard.key, damage(bytes(store.get(shard.key))))
        named = list(model.named_parameters())
        reads: dict[str, Any] = {
            "model": lambda: zooid.load_checkpoint(store.url),
            "optimizer": lambda: zooid.load_optimizer(store.url, optimizer, named),
        }
        with pytest.raises(CheckpointError, match=message) as caught:
            reads[kind]()
        assert shard.key in str(caught.value)
        assert "delete checkpoints/00000040 to continue from the checkpoint before it" in str(caught.value)


@pytest.fixture(params=["memory", "file"])
def five(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Five checkpoints, of which the third and a later one were never completed, and what belongs to all of them."""
    store = open_store(f"memory://{uuid.uuid4().hex}" if request.param == "memory" else tmp_path.as_uri())
    for step in (0, 10, 20, 30, 40):
        store.put(keys.shard(step, "model", 0, 1, 0), pack({"weight": torch.full((2,), float(step))}))
        if step not in (20, 40):
            store.put(keys.checkpoint_manifest(step), encode_record(a_manifest(step=step)))
    store.put(keys.CONSTANTS, b"")
    return store


class TestPruning:
    def test_the_last_ones_stay(self, five: ObjectStore) -> None:
        prune(five, 2)
        assert complete_steps(five) == [10, 30]
        assert folders(five) == [10, 30, 40], "what is incomplete and old is gone, what is newer may be under way"
        prune(five, 1)
        assert complete_steps(five) == [30]
        assert keys.CONSTANTS in five.list("")
        prune(five, 5)
        assert complete_steps(five) == [30]

    def test_a_deletion_that_stops_halfway_leaves_nothing_that_counts(self, five: ObjectStore) -> None:
        class Stops:
            url = five.url
            num_deletions = 0

            def delete(self, doomed: Any) -> None:
                self.num_deletions += 1
                if self.num_deletions == 2:
                    raise StoreUnavailable("gone")
                five.delete(doomed)

            def __getattr__(self, name: str) -> Any:
                return getattr(five, name)

        stops: Any = Stops()
        with pytest.raises(StoreUnavailable):
            prune(stops, 1)
        assert folders(five)[0] == 0
        assert complete_steps(five) == [10, 30]
        prune(five, 1)
        assert folders(five) == [30, 40]

    def test_incomplete_ones_are_swept_when_nobody_writes(self, five: ObjectStore) -> None:
        assert sweep_incomplete(five) == 2
        assert folders(five) == complete_steps(five) == [0, 10, 30]
        assert sweep_incomplete(five) == 0


def folders(store: ObjectStore) -> list[int]:
    return list(keys.checkpoint_steps(store.list(keys.CHECKPOINTS)))


def test_state_of_all_stages_can_be_loaded_into_one_optimizer(
    store: ObjectStore, trained: tuple[Model, torch.optim.Optimizer]
) -> None:
    model, optimizer = trained
    manifest = write_whole(store, STEP, model, optimizer, num_replicas=3)
    named = list(model.named_parameters())
    entries = read_optimizer_tensors(store, manifest, [name for name, _ in named])
    saved = {entry: tensor.clone() for entry, tensor in entries.items()}
    fresh = torch.optim.AdamW(named, lr=0.01)
    load_optimizer_tensors(fresh, named, entries)
    found = optimizer_tensors(fresh, named)
    assert found.keys() == saved.keys() == optimizer_tensors(optimizer, named).keys()
    assert all(torch.equal(found[entry], tensor) for entry, tensor in saved.items())
