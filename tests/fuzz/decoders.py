"""The table of decoders: everything that reads bytes which a store, a socket, a file or a user hands over."""

import atexit
import gzip
import io
import itertools
import os
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch
from rich.console import Console
from safetensors.torch import save

from tests.fuzz.record_samples import records
from tests.fuzz.tcp_decoders import TCP_DECODERS
from tests.fuzz.trace_samples import CONSTANTS, trace_bytes
from tests.fuzz.trials import Decoder
from tests.unit.predicted import a_plan, a_profile, owned
from tests.unit.profiles import store_links
from tests.unit.test_events import ALL as ALL_EVENTS
from zooid.catalog.csv_rows import read_rows
from zooid.comm.c10d_store import ObjectRendezvous
from zooid.comm.calls import wire_codecs
from zooid.comm.calls.sparse import check_indices
from zooid.comm.group_options import Options
from zooid.comm.rendezvous import _Call, _Go, _Here, _Lobby, _Refused, meet
from zooid.comm.store.envelope import seal, unseal
from zooid.core.abort import Abort
from zooid.core.errors import ZooidError
from zooid.core.jobs.job_imports import parsed_file
from zooid.core.plans.codec_sizes import CodecName, wire_bytes
from zooid.core.plans.plan import Plan
from zooid.core.plans.profile import Profile
from zooid.core.plans.search_result import Search
from zooid.core.records import FileRecord, decode_one_of, decode_record, encode_record
from zooid.core.resources.link import Link, Links
from zooid.core.resources.spot_trace import decode_spot_trace
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, Shard
from zooid.core.runs.events import decode_events, encode_events
from zooid.core.runs.roster import Roster
from zooid.core.runs.shard import ShardTable, TarShard
from zooid.core.runs.spec import ProbeSpec, RehearsalSpec, WorkerSpec
from zooid.core.runs.step_measurements import StepMeasurements
from zooid.core.runs.step_parts import parts_by_member
from zooid.core.runs.timeline import Timeline
from zooid.core.text import has_credentials
from zooid.core.units import parse_bytes, parse_duration_s, parse_usd
from zooid.entry.code_entries import _MAX_TAR_BYTES, decode_code, read_entries
from zooid.layers.record import decode_constants, decode_trace, rebuild
from zooid.predictor import corrected
from zooid.profiler.probes.probe_barrier import ProbeBarrier
from zooid.profiler.probes.probe_listener import Address
from zooid.report import correction_tables, links_table, plan_table, profile_table, search_table, timeline_table
from zooid.report.progress import LineView
from zooid.schedule.samples import samples_of
from zooid.store import EventReader, ObjectStore, open_store, read_history
from zooid.store.checkpoint_index import last_step, read_manifest
from zooid.store.claims import last_claim
from zooid.store.shards import index_shards, shards
from zooid.store.shards.archive import read_sample, table_of
from zooid.store.shards.cache import damaged
from zooid.store.shards.index import INDEX_NAME, read_index
from zooid.worker.checkpoints.contents import load_checkpoint, read_optimizer_tensors
from zooid.worker.checkpoints.optimizer_state import load_optimizer_tensors

_NAME = "rosters/000001.json"
_NUM_ELEMENTS = 300
_CODECS: tuple[CodecName, ...] = ("fp16", "bf16", "int8")


def decoders() -> list[Decoder]:
    """All of them; whoever writes another one adds it here, with valid samples."""
    made = records()
    return [
        *(_record(record) for record in made),
        _any_spec(made),
        *_of_events(),
        *_of_names(),
        *_of_shards(),
        *_of_code(),
        *_of_messages(),
        *_of_checkpoints(made),
        *_of_traces(),
        *_of_texts(),
        *TCP_DECODERS,
    ]


def _record(record: FileRecord) -> Decoder:
    kind = type(record)
    use: Callable[[FileRecord], object] = _USES.get(kind, bool)
    return Decoder(
        f"record {kind.__struct_config__.tag}",
        lambda data: use(decode_record(data, kind, "file.json")),
        [encode_record(record)],
    )


def _use_roster(roster: Roster) -> None:
    for stage in range(roster.num_stages):
        roster.ranks_of_stage(stage)


def _use_plan(plan: Plan) -> None:
    assert len(plan.member_offers) == plan.num_members
    plan_table(plan)


def _use_timeline(timeline: Timeline) -> None:
    parts_by_member(timeline)
    timeline_table(timeline)


def _use_measurements(member: StepMeasurements) -> None:
    made = a_profile()
    correction_tables(corrected({"own": made}, (), a_plan(made, owned()), [member]).corrections)


def _use_manifest(manifest: CheckpointManifest) -> None:
    samples = samples_of(manifest)
    samples.epoch_of(manifest.step)
    samples.num_grains(manifest.step)
    for evaluation in manifest.ledger.evaluations:
        for name in evaluation.numbers:
            evaluation.value(name)


_USES: dict[type[FileRecord], Callable[..., object]] = {
    Roster: _use_roster,
    Plan: _use_plan,
    Timeline: _use_timeline,
    StepMeasurements: _use_measurements,
    CheckpointManifest: _use_manifest,
    Profile: profile_table,
    Links: links_table,
    Search: search_table,
}
"""What the program does with a record as soon as it has it, for kinds where that is more than passing it on."""


def _of_traces() -> list[Decoder]:
    """The model's trace, and the tensors beside it."""
    constants = decode_constants(CONSTANTS, "constants.safetensors")

    def build(data: bytes) -> None:
        trace = decode_trace(data, "trace.json")
        if trace.layers is not None:
            model = rebuild(trace.layers, constants)
            model.state_of(0, model.num_layers)
            assert model.fingerprint

    return [
        Decoder("trace, rebuilt", build, [trace_bytes()]),
        Decoder("constants of a trace", lambda data: decode_constants(data, "constants.safetensors"), [CONSTANTS]),
    ]


def _any_spec(made: list[FileRecord]) -> Decoder:
    kinds = (WorkerSpec, RehearsalSpec, ProbeSpec)
    samples = [encode_record(record) for record in made if isinstance(record, kinds)]
    return Decoder("record of several kinds", lambda data: decode_one_of(data, kinds, "spec.json"), samples)


def _of_events() -> list[Decoder]:
    whole = encode_events(ALL_EVENTS)

    def show(data: bytes) -> None:
        events = decode_events(data, "events")
        view = LineView(Console(file=io.StringIO(), width=200))
        for event in events:
            view.show(event)

    def follow(data: bytes) -> None:
        store = _new_store()
        store.put(f"{keys.events_of('r0s0')}/00000000.jsonl", data)
        assert EventReader(store).read_new() or data != whole, "a decoder that is not reached tries nothing"

    return [
        Decoder("events, shown", show, [whole, encode_events(ALL_EVENTS[:3])]),
        Decoder("events in a store", follow, [whole]),
    ]


def _of_names() -> list[Decoder]:
    """Names of objects, which anybody may have put into a run's folder."""
    listed = (
        b"claims/000001.json",
        b"rosters/000010.json",
        b"checkpoints/00000007/manifest.json",
        b"events/000000/r0s0/x",
    )

    def read(data: bytes) -> None:
        names = data.decode(errors="replace").split("\n")
        keys.numbers(names)
        keys.checkpoint_steps(names)
        keys.recorded_steps(names)

    def look(data: bytes) -> None:
        """Everything that looks for the newest of something, in a folder with a stray object."""
        store = _new_store()
        store.put(data.decode(errors="replace"), data)
        keys.numbers(store.list(keys.ROSTERS))
        EventReader(store).read_new()
        for lookup in (last_claim, last_step, read_history):
            _refused(lambda lookup=lookup: lookup(store))  # type: ignore[misc]
        _new_store()  # a long name that is still listed would be counted as memory of the next input

    return [Decoder("keys", read, [b"\n".join(listed)]), Decoder("a stray object", look, listed)]


def _of_shards() -> list[Decoder]:
    folder = _new_folder()
    whole = _tar(tarfile.GNU_FORMAT), _tar(tarfile.PAX_FORMAT), _tar(tarfile.USTAR_FORMAT)
    (folder / "a.tar").write_bytes(whole[0])
    index_shards(folder.as_uri())
    index = (folder / INDEX_NAME).read_bytes()

    def count(data: bytes) -> None:
        (folder / "counted").mkdir(exist_ok=True)
        (folder / "counted" / "a.tar").write_bytes(data)
        index_shards((folder / "counted").as_uri())

    def read(data: bytes) -> None:
        path = folder / "read.tar"
        path.write_bytes(data)
        try:
            table = table_of(path, "read.tar", with_checksums=True)
        except tarfile.TarError as error:
            raise damaged(folder.as_uri(), TarShard(key="read.tar", num_samples=1), error) from error
        _read_all(path, table)

    def open_index(data: bytes) -> None:
        (folder / INDEX_NAME).write_bytes(data)
        store = open_store(folder.as_uri())
        for shard in read_index(store, INDEX_NAME):
            assert (folder / shard.key).resolve().is_relative_to(folder)
        data_set = shards(folder.as_uri(), decode=dict)
        data_set[len(data_set) - 1]

    return [
        Decoder("tar, counted", count, whole),
        Decoder("tar, read", read, whole),
        Decoder("shard index", open_index, [index]),
    ]


def _of_code() -> list[Decoder]:
    """Archives of code, whole and decompressed."""
    whole = _tar(tarfile.GNU_FORMAT), _tar(tarfile.PAX_FORMAT)
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "down/there"
    linked = link.tobuf(tarfile.GNU_FORMAT) + whole[0]

    def stay_inside(data: bytes) -> None:
        for name, entry in read_entries(data).items():
            assert {"", ".."}.isdisjoint(name.split("/"))
            path = os.path.normpath(os.path.join("/root", os.path.dirname(name), entry.link_target or "."))
            assert path == "/root" or path.startswith("/root/")

    return [
        Decoder("code, compressed", decode_code, [gzip.compress(data) for data in whole], 2 * _MAX_TAR_BYTES),
        Decoder("code", stay_inside, [*whole, linked]),
    ]


def _tar(form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for number, name in itertools.product(range(3), ("cls", "npy", "n" * 80)):
            member = tarfile.TarInfo(f"{'d' * 30}/{number:06d}.{name}")
            member.size = 10 + number
            archive.addfile(member, io.BytesIO(b"0123456789abc"))
    return file.getvalue()


def _read_all(path: Path, table: ShardTable) -> None:
    with path.open("rb") as file:
        for sample in table.samples:
            read_sample(file.fileno(), sample)


def _of_messages() -> list[Decoder]:
    """What members exchange through the store, and how they meet there."""
    sealed = bytes(seal(_NAME, memoryview(b"0123456789" * 20), 7, 12.5))
    return [
        Decoder("envelope", lambda data: unseal(_NAME, memoryview(data)), [sealed]),
        *(_codec(codec) for codec in _CODECS),
        Decoder("sparse indices", _check_sparse, [np.arange(40, dtype="<i8").tobytes()]),
        Decoder("lobby", _meet, [b'{"latency_s": 0.01}', b'{"why": "no"}', b'{"size": 2, "nonce": "00"}']),
        Decoder("rendezvous counter", _add, [b"0123456789abcdef" + b"12"]),
        Decoder("gathering", _gather, [b'[[0, 1, [2.5, 3.5]], [1, 0, [1e9]]]', msgspec.json.encode(_ADDRESS)]),
    ]  # fmt: skip


def _codec(codec: CodecName) -> Decoder:
    encoded = wire_codecs.encode(codec, torch.linspace(-1, 1, _NUM_ELEMENTS)).numpy().tobytes()
    assert len(encoded) == wire_bytes(codec, _NUM_ELEMENTS)

    def decode(data: bytes) -> None:
        arrived = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        wire_codecs.decode(codec, arrived, _NUM_ELEMENTS, torch.float32)

    return Decoder(f"codec {codec}", decode, [encoded])


def _check_sparse(data: bytes) -> None:
    numbers = np.frombuffer(data[: len(data) // 16 * 16], "<i8").copy()
    check_indices(torch.from_numpy(numbers).reshape(2, -1), (40, 40), 0)


def _meet(data: bytes) -> None:
    """Whatever a rank may find in the lobby."""
    store = _new_store()
    lobby = _Lobby(store, 2, 0.0, Abort())
    for name, kind in (("call", _Call), ("here-1", _Here), ("go", _Go), ("refused", _Refused)):
        store.put(keys.lobby("stray", name), data)
        _refused(lambda name=name, kind=kind: lobby._read("stray", name, kind))  # type: ignore[misc]
    _refused(lambda: lobby._check_sizes("stray", {"call", "here-1", "here-x", "notes"}))
    meet(store, 1, 2, timeout_s=0.0, abort=Abort())


def _add(data: bytes) -> None:
    store = _new_store()
    store.put("meeting/kv/n/00000000", data)
    store.put("meeting/kv/n/notes.txt", data)
    ObjectRendezvous(store, "meeting", timeout_s=1.0).add("n", 1)


def _gather(data: bytes) -> None:
    """What another member says, as each of the two that gather hears it."""
    for kind in (list[tuple[int, int, list[float]]], Address):
        store = _new_store()
        for name in ("go", "000001"):
            store.put(f"probe/meeting-000000/{name}", data)
        for rank, other in ((0, 1), (1, 0)):
            said = [[other, 0, [1.0]]] if kind is not Address else _ADDRESS
            barrier = ProbeBarrier(store, "probe", ("a", "b"), rank, timeout_s=0.0, abort=Abort())
            _refused(lambda barrier=barrier, said=said, kind=kind: barrier.meet("the end", said, kind))  # type: ignore[misc]


_ADDRESS = Address(hosts=("127.0.0.1",), port=9, secret="0" * 64, network="here")


def _of_checkpoints(made: list[FileRecord]) -> list[Decoder]:
    manifest = next(record for record in made if isinstance(record, CheckpointManifest))
    tensors = save({"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)})
    state = save({"exp_avg:weight": torch.zeros(2, 3), "step(int):weight": torch.tensor(3)})
    store = open_store(f"memory://{uuid.uuid4().hex}")
    shard = manifest.shards[0]
    store.put(keys.checkpoint_manifest(manifest.step), encode_record(manifest))

    def load(data: bytes) -> None:
        store.put(shard.key, data)
        load_checkpoint(store.url)

    def load_state(data: bytes) -> None:
        own = _new_store()
        own.put("optimizer.safetensors", data)
        named = [("weight", torch.nn.Parameter(torch.zeros(2, 3)))]
        held = (Shard(key="optimizer.safetensors", names=("weight",)),)
        changed = CheckpointManifest(
            step=1, model_fingerprint="", samples=manifest.samples, optimizer_class="", shards=(), optimizer=held,
            constants=(), aliases={},
        )  # fmt: skip
        load_optimizer_tensors(
            torch.optim.SGD([named[0][1]], lr=0.1), named, read_optimizer_tensors(own, changed, ["weight"])
        )

    def read(data: bytes) -> None:
        own = _new_store()
        own.put(keys.checkpoint_manifest(manifest.step), data)
        read_manifest(own, last_step(own))

    return [
        Decoder("safetensors", load, [tensors]),
        Decoder("optimizer state", load_state, [state]),
        Decoder("manifest in a store", read, [encode_record(manifest)]),
    ]


def _of_texts() -> list[Decoder]:
    """What users, job files and price lists say."""
    folder = _new_folder()
    row = ",".join(Link.__struct_fields__) + "\n"
    for link in store_links(1e9, 0.1):
        row += ",".join(str(getattr(link, name) or "") for name in Link.__struct_fields__) + "\n"

    def parse_units(data: bytes) -> None:
        text = data.decode(errors="replace")
        for parse in (parse_bytes, parse_duration_s, parse_usd):
            _refused(lambda parse=parse: parse(text))  # type: ignore[misc]

    def open_url(data: bytes) -> None:
        url = data.decode(errors="replace")
        if url.startswith("file:"):
            url = url.replace("file:", "memory:")  # nothing is to be created on this machine
        store = open_store(url)
        assert not has_credentials(store.url)
        keys.split_spec_url(url)

    def query(data: bytes) -> None:
        pairs = (pair.partition("=")[::2] for pair in data.decode(errors="replace").split("&"))
        Options.from_query(dict(pairs), "s3://bucket/run")

    def read_prices(data: bytes) -> None:
        read_rows(data.decode(errors="replace"), "links.csv", Link, ("from_site", "to_site"))

    def follow_trace(data: bytes) -> None:
        trace = decode_spot_trace(data, "spot.json")
        trace.next_s(max(trace.data), trace.duration_s / 2)

    def parse_source(data: bytes) -> None:
        (folder / "job.py").write_bytes(data)
        parsed_file(folder / "job.py", "job.py")

    return [
        Decoder("units", parse_units, [b"20 MB", b"1h30m", b"210 Mbit/s", b"$5"]),
        Decoder("store URL", open_url, [b"memory://run/specs/a.json", b"s3://bucket/run-7/specs/r0s0.json"]),
        Decoder("options of a URL", query, [b"transport=tcp&codec=bf16&num_streams=4"]),
        Decoder("price list", read_prices, [row.encode()]),
        Decoder("spot trace", follow_trace, [b'{"metadata": {"gap_seconds": 300}, "data": [4, 4, 0, 3]}']),
        Decoder("job source", parse_source, [b"import zooid\njob = zooid.Job(model=dict, loss=None)\n"]),
    ]


def _refused(decode: Callable[[], object]) -> None:
    """Where one input goes to several decoders, that one of them refuses it must not spare the others."""
    try:
        decode()
    except ZooidError:
        return


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zooid-fuzz-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _new_store() -> ObjectStore:
    """One of few, emptied: every URL in memory stays for as long as the process."""
    store = open_store("memory://fuzz")
    store.delete(store.list(""))
    return store
