"""Traces as records: what they hold, and that nothing hostile gets through them to torch, to Python or to the disk."""

import copy
import json
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.rebuilt import CPU, assert_same_bits, through_bytes
from tests.unit import layer_models as models
from zooid.core.errors import RecordError, ZooidError
from zooid.core.jobs.job import Job
from zooid.core.runs import keys
from zooid.core.runs.events import Event, ModelTraced
from zooid.core.runs.trace import NestRecord, digest_of
from zooid.layers import Batch, LayeredModel, collate, default_device, trace, trace_job
from zooid.layers.record import UnknownClass, decode_constants, decode_trace, encode_trace, rebuild
from zooid.layers.record.literals import decode_literal, encode_literal
from zooid.layers.record.nests import decode_nest, encode_nest
from zooid.layers.record.operations import NotRecorded, named_operation, operation_name
from zooid.store import ObjectStore, open_store
from zooid.worker.member import stored_trace
from zooid.worker.member.stored_trace import layers_of, write_trace

NUM_FUZZED = 400
"""A sample; a longer search is a larger number here."""


class Chooses(models.Perceptron):
    """One of two graphs runs, which one depends on the values."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cond(
            x.sum() > 0, lambda h: h.sin() * 2.0, lambda h: torch.zeros(3) + h[:, :1], (self.first(x)[:, :3],)
        )
        total: Tensor = super().forward(x) + h
        return total


class Detaches(models.Perceptron):
    """A part without gradients, and constants: a tensor of the code, an infinity, and a slice with a step."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = torch.linspace(0.0, 1.0, 6, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.first(x).abs().clamp(max=float("inf")).amax()
        h = torch.tanh(self.first(x)) * self.factors / scale
        return self.third(self.second(h) + torch.cat([h[:, ::2], h[:, 1::2]], dim=1))  # type: ignore[no-any-return]


def example(size: int = 2) -> Batch:
    torch.manual_seed(size)
    return Batch((torch.randn(size, 5, dtype=torch.float64),), {}, None, size)


@cache
def layered_of(build: Callable[[], nn.Module]) -> LayeredModel:
    torch.manual_seed(0)
    return trace(build().double().train(), example())


@cache
def recorded() -> bytes:
    """The bytes of a trace with constants and with what stands for infinity."""
    return encode_trace(layered_of(Detaches), CPU).data


def state_of(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = build().double()
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("build", [Chooses, Detaches])
def test_graphs_and_constants_of_the_code_are_rebuilt(build: Callable[[], nn.Module]) -> None:
    layered = layered_of(build)
    assert any(program.constants for program in (layered.train, layered.evaluation))
    rebuilt = through_bytes(layered)
    assert rebuilt is not None
    for size in (1, 3):
        assert_same_bits(layered, rebuilt, state_of(build), example(size))


def test_equal_traces_have_equal_bytes() -> None:
    assert encode_trace(trace(Detaches().double().train(), example()), CPU).data == recorded()


class OwnOperation(models.Perceptron):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.ops.zooid_tests.same(x))


def test_a_model_with_operations_of_others_says_so_in_its_record() -> None:
    library = torch.library.Library("zooid_tests", "DEF")  # type: ignore[no-untyped-call]
    library.define("same(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    library.impl("same", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    encoded = encode_trace(trace(OwnOperation().double().train(), example()), CPU)
    assert encoded.trace.layers is None
    assert "zooid_tests.same" in encoded.trace.why_traced


class OddStrides(models.Perceptron):
    """Contiguous tensors of one number, with strides that no other tensor of this size has."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = [torch.empty_strided((1, 1), (5, 16)).fill_(2.0) for _ in range(2)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.factors[0] * self.factors[1])


def test_a_constant_that_would_come_back_with_other_strides_is_not_recorded() -> None:
    encoded = encode_trace(trace(OddStrides().double().train(), example()), CPU)
    assert "not contiguous" in encoded.trace.why_traced


@pytest.mark.parametrize(
    "literal",
    [
        None,
        True,
        3,
        -(2**63),
        0.1,
        float("inf"),
        float("-inf"),
        1 + 2j,
        complex("nan"),
        "text",
        [1, [2.5]],
        (1, (2,)),
        torch.float16,
        torch.complex64,
        torch.device("cuda", 1),
        torch.channels_last,
        torch.sparse_coo,
        {"a": [None]},
    ],
    ids=str,
)
def test_arguments_come_back_as_they_were(literal: Any) -> None:
    data = json.loads(json.dumps(encode_literal(literal, {})))
    back = decode_literal(data, ())
    assert (repr(back), type(back)) == (repr(literal), type(literal))


@pytest.mark.parametrize(
    "literal", [2**63, object(), torch.ones(1), {1: 2}, torch.Generator()], ids=lambda literal: type(literal).__name__
)
def test_what_json_cannot_say_is_not_recorded(literal: Any) -> None:
    with pytest.raises(NotRecorded):
        encode_literal(literal, {})


@pytest.mark.parametrize(
    "name",
    [
        "aten.from_file.default",
        "aten.save.default",
        "aten.add",
        "aten.add.Tenso",
        "aten.__class__.default",
        "os.system",
        "operator.attrgetter",
        "operator.methodcaller",
        "math.__loader__",
        "torch.load",
        "higher_order.call_torchbind",
        "higher_order.__class__",
        "builtins.eval",
        "quantized.add.default",
        "zooid.opaque.default",
        "",
        ".",
        "aten..",
        "eval",
    ],
)
def test_only_operations_of_the_allow_list_are_found(name: str) -> None:
    with pytest.raises(RecordError, match="operation"):
        named_operation(name)


@pytest.mark.parametrize(
    "target", [torch.ops.aten.from_file.default, torch.load, eval, print, torch.nn.functional.relu, lambda x: x]
)
def test_other_operations_are_not_recorded(target: Any) -> None:
    with pytest.raises(NotRecorded, match="operation"):
        operation_name(target)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Unseen:
    """A dataclass that torch has not met before."""

    value: Any
    other: Any = None


@pytest.mark.parametrize("nest", [1, (1, [2, {"a": 3, "b": ()}]), Pair(1, (2,)), {"x": Pair(1, 2)}], ids=str)
def test_nests_come_back_as_they_were(nest: Any) -> None:
    leaves, spec = tree_flatten(nest)
    assert tree_unflatten(leaves, decode_nest(encode_nest(spec))) == nest


def test_a_dataclass_is_found_by_its_name() -> None:
    """As in a member, which has run the job's file, but not the model that returns such objects."""
    context = [["value"], ["other"]]
    record = NestRecord(kind=f"{__name__}:Unseen", context=context, children=(NestRecord(),))
    assert tree_unflatten([4], decode_nest(record)) == Unseen(4)


def test_a_class_of_a_package_that_the_job_has_not_imported_is_not_looked_for() -> None:
    with pytest.raises(UnknownClass, match="antigravity"):
        decode_nest(NestRecord(kind="antigravity:Flight"))


@pytest.mark.parametrize(
    ("kind", "context"),
    [
        ("json:loads", None),
        ("json:JSONDecoder", None),
        ("dict", ["a"]),
        ("named_tuple", "json:Nothing"),
        (f"{__name__}:Pair", None),
        ("os.path:join", None),
        ("torch.__main__:x", None),
        ("list", {"node": 0}),
    ],
)
def test_nests_that_no_model_returns_are_refused(kind: str, context: Any) -> None:
    with pytest.raises(RecordError):
        tree_unflatten([1, 2], decode_nest(NestRecord(kind=kind, context=context, children=(NestRecord(),) * 2)))


Change = Callable[[dict[str, Any]], None]


def _rename(train: dict[str, Any]) -> None:
    train["inputs"][0]["name"] = "x=__import__('os').system('true')"


def _inject_argument(train: dict[str, Any]) -> None:
    train["operations"][-1]["kwargs"] = {"a=print(1), b": 1}


def _quote(train: dict[str, Any]) -> None:
    train["state"][0]["name"] = 'weight")+print(1)+getattr(self, "bias'


def _keyword(train: dict[str, Any]) -> None:
    train["operations"][0]["name"] = "lambda"


def _twice(train: dict[str, Any]) -> None:
    train["operations"][1]["name"] = train["operations"][0]["name"]


def _look_ahead(train: dict[str, Any]) -> None:
    train["operations"][0]["args"] = [{"node": 10_000}]


def _refer_to_itself(train: dict[str, Any]) -> None:
    before = sum(len(train[part]) for part in ("inputs", "state", "constants"))
    train["operations"][0]["args"] = [{"node": before}]


def _overlap(train: dict[str, Any]) -> None:
    train["starts"] = [0, *reversed(train["starts"])]


def _shorten(train: dict[str, Any]) -> None:
    train["starts"], train["crossing"] = [0], []


def _leave_out_a_crossing(train: dict[str, Any]) -> None:
    train["crossing"] = train["crossing"][:-1]


def _cross_nothing(train: dict[str, Any]) -> None:
    train["crossing"][0] = [-1]


def _grow(train: dict[str, Any]) -> None:
    train["inputs"][0]["tensor"]["sizes"] = [[0, 1], 2**62]


def _vary_a_parameter(train: dict[str, Any]) -> None:
    train["state"][0]["node"]["tensor"]["sizes"] = [[0, 1]]


def _call_an_unknown_type(train: dict[str, Any]) -> None:
    train["inputs"][0]["tensor"]["dtype"] = "load"


def _return_more(train: dict[str, Any]) -> None:
    train["outputs"] *= 2


def _lose_a_constant(train: dict[str, Any]) -> None:
    train["constants"][0]["tensor"] = "constant_99"


def _nest(train: dict[str, Any]) -> None:
    argument: Any = 1
    for _ in range(300):
        argument = {"tuple": [argument]}
    train["operations"][0]["args"] = [argument]


def _add_nothing(train: dict[str, Any]) -> None:
    """In a sub-graph, whose code is generated at once."""
    graph = next(entry["graph"] for entry in train["constants"] if entry.get("graph"))
    graph["nodes"][0] |= {"operation": "operator.add", "args": []}


HOSTILE = [_rename, _inject_argument, _quote, _keyword, _twice, _look_ahead, _refer_to_itself, _overlap, _shorten]
HOSTILE += [_leave_out_a_crossing, _cross_nothing, _grow, _vary_a_parameter, _call_an_unknown_type, _return_more]
HOSTILE += [_lose_a_constant, _nest, _add_nothing]


def rebuilt_from(data: bytes) -> LayeredModel | None:
    """As a member does it."""
    record = decode_trace(data, "the trace")
    if record.layers is None:
        return None
    constants = encode_trace(layered_of(Detaches), CPU).constants
    return rebuild(record.layers, decode_constants(constants, "the constants"))


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: change.__name__)
def test_a_record_that_no_trace_has_written_is_refused(change: Change) -> None:
    record = json.loads(recorded())
    assert rebuilt_from(json.dumps(record).encode()) is not None
    change(record["layers"]["train"])
    with pytest.raises(RecordError):
        rebuilt_from(json.dumps(record).encode())


def test_bytes_that_are_nested_without_end_are_refused() -> None:
    with pytest.raises(RecordError):
        decode_trace(b'{"record":"trace","version":1,"fingerprint":' + b"[" * 100_000, "the trace")


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x08" + b"\0" * 7 + b"{}", (2**62).to_bytes(8, "little") + b"{}"])
def test_constants_that_are_not_safetensors_are_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="the constants"):
        decode_constants(data, "the constants")


def test_altered_records_give_a_project_error_or_a_model() -> None:
    """Parts of the record change places, grow, vanish and turn into other values; bytes flip and are cut off."""
    seed = secrets.randbelow(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    whole = json.loads(recorded())
    num_refused = 0
    for _ in range(NUM_FUZZED):
        data = _altered_bytes(recorded(), draw) if draw.random() < 0.3 else json.dumps(_altered(whole, draw)).encode()
        try:
            model = rebuilt_from(data)
        except ZooidError:
            num_refused += 1
            continue
        if model is not None:
            model.state_of(0, model.num_layers)
            assert model.fingerprint
    assert num_refused > NUM_FUZZED // 4


def _altered(whole: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    record = copy.deepcopy(whole)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(record))
        holder, key = draw.choice(places)
        other, other_key = draw.choice(places)
        holder[key] = draw.choice(
            [None, -1, 2**63, 1e308, "", "x" * 1000, [], {}, {"node": 3}, copy.deepcopy(other[other_key])]
        )
    return record


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a nest, as what holds it and the key or index there."""
    found: list[tuple[Any, Any]] = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += [(value, key), *_places(inner)]
    return found


def _altered_bytes(data: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


class Counted:
    """A job whose model is built in front of witnesses."""

    def __init__(self, build: Callable[[], nn.Module] = models.Perceptron, **more: Any) -> None:
        self.num_built = 0
        self._build = build
        self.job = Job(
            model=self.model,
            loss=nn.functional.mse_loss,
            data=lambda: torch.utils.data.TensorDataset(torch.ones(8, 5), torch.ones(8, 3)),
            optimizer=lambda named: torch.optim.SGD(named, lr=0.1),
            batch_size=4,
            epochs=1,
            **more,
        )

    def model(self) -> nn.Module:
        self.num_built += 1
        return self._build()

    def layers(self, store: ObjectStore, digest: str) -> LayeredModel:
        return layers_of(store, digest, self.job, self.job.data())

    def write(self, store: ObjectStore) -> tuple[str, LayeredModel, list[Event]]:
        layered = trace_job(self.job, collate(self.job.data(), range(2), self.job))
        told: list[Event] = []
        digest = write_trace(store, layered, told.append)
        self.num_built = 0
        return digest, layered, told


def test_members_find_the_trace_by_its_digest_and_build_no_model() -> None:
    store, counted = open_store("memory://traces"), Counted()
    digest, layered, [told] = counted.write(store)
    assert isinstance(told, ModelTraced)
    assert (told.digest, told.why_traced) == (digest, "")
    assert counted.layers(store, digest).fingerprint == layered.fingerprint
    assert counted.num_built == 0


def test_members_trace_a_model_that_has_no_record() -> None:
    store, counted = open_store("memory://no-record"), Counted(models.ChoosyBlocks)
    digest, layered, [told] = counted.write(store)
    assert isinstance(told, ModelTraced)
    assert "Python code" in told.why_traced
    assert counted.layers(store, digest).fingerprint == layered.fingerprint
    assert counted.num_built > 0


def test_members_trace_where_the_launch_names_no_trace() -> None:
    counted = Counted()
    counted.layers(open_store("memory://none"), "")
    assert counted.num_built > 0


def test_members_trace_a_model_whose_results_only_its_own_code_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    store, counted = open_store("memory://unknown"), Counted()
    digest, layered, _ = counted.write(store)

    def unknown(*_: Any) -> Any:
        raise UnknownClass("results are of a class that is not there")

    monkeypatch.setattr(stored_trace, "rebuild", unknown)
    assert counted.layers(store, digest).fingerprint == layered.fingerprint
    assert counted.num_built > 0


def test_an_altered_or_missing_trace_is_refused() -> None:
    store, counted = open_store("memory://altered"), Counted(Detaches)
    digest, _, _ = counted.write(store)
    whole = bytes(store.get(keys.trace(digest)))
    store.put(keys.trace(digest), whole.replace(b"aten.tanh.default", b"aten.sinh.default"))
    with pytest.raises(RecordError, match="altered since"):
        counted.layers(store, digest)
    store.put(keys.trace(digest), whole)
    [constants] = [key for key in store.list(keys.TRACES) if key.endswith(".safetensors")]
    store.delete([constants])
    with pytest.raises(RecordError, match="is missing"):
        counted.layers(store, digest)


def test_a_trace_of_another_version_of_torch_is_told_apart() -> None:
    store, counted = open_store("memory://version"), Counted()
    digest, _, _ = counted.write(store)
    data = bytes(store.get(keys.trace(digest))).replace(b"aten.tanh.default", b"aten.sinh.default")
    store.put(keys.trace(digest_of(data)), data)
    with pytest.raises(RecordError, match="fingerprint differs"):
        counted.layers(store, digest_of(data))


def test_types_under_autocast_are_those_of_the_member_s_own_device() -> None:
    store, counted = open_store("memory://autocast"), Counted(autocast="bf16")
    digest, layered, _ = counted.write(store)
    dtypes = [value.dtype for value in layered.values_into(1)]
    assert dtypes == [torch.bfloat16]
    assert [value.dtype for value in counted.layers(store, digest).values_into(1)] == dtypes
    plain = replace(trace_job(replace_autocast(counted.job), collate(counted.job.data(), range(2), counted.job)))
    other = torch.device("cpu" if default_device().type == "cuda" else "cuda")
    elsewhere = write_trace_for(store, plain, other)
    assert [value.dtype for value in counted.layers(store, elsewhere).values_into(1)] == dtypes


def replace_autocast(job: Job) -> Job:
    return replace(job, autocast=None)


def write_trace_for(store: ObjectStore, layered: LayeredModel, device: torch.device) -> str:
    data = encode_trace(layered, device).data
    store.put(keys.trace(digest_of(data)), data)
    return digest_of(data)
