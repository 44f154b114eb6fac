"""Fine-tuning end to end: `from_pretrained` in a job, real members, and `from_pretrained` of what they made."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import default_collate

import zooid
from tests.integration.interpreters import run_python
from tests.integration.jobs import plan_by_hand
from tests.integration.recording import RecordingPlatform
from tests.integration.reference import sample_plan
from zooid.core.errors import CheckpointError, InputError
from zooid.core.jobs.job import load_job
from zooid.core.records import encode_record
from zooid.core.runs import keys
from zooid.core.runs.checkpoint import CheckpointManifest, SampleFacts, Shard
from zooid.core.runs.spec import RunClaim
from zooid.store import open_store
from zooid.worker.checkpoints.safetensors_file import pack

pytestmark = pytest.mark.timeout(180)

TOLERANCE = 1e-9
JOB = """
import torch
import transformers

import zooid
from tests.integration import test_pretrained

job = zooid.Job(
    model=lambda: transformers.{name}.from_pretrained({folder!r}),
    loss=None,
    data=lambda: test_pretrained.{data}(),
    optimizer=lambda named: torch.optim.AdamW(named, lr=1e-2),
    batch_size=8,
    grain_size=4,
    epochs=2,
)
"""


def sentences() -> list[tuple[dict[str, Any], None]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(31, (24, 8), generator=generator)
    return [({"input_ids": row, "labels": row}, None) for row in tokens]


def recordings() -> list[tuple[dict[str, Any], None]]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(24, 8, 20, generator=generator, dtype=torch.float64)
    tokens = torch.randint(31, (24, 6), generator=generator)
    return [({"input_features": one, "labels": row}, None) for one, row in zip(features, tokens, strict=True)]


def gpt2() -> "transformers.PreTrainedModel":
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=31, n_positions=8)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


def whisper() -> "transformers.PreTrainedModel":
    small = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    wide = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    sizes = {"vocab_size": 31, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 8}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**small, **wide, **sizes, **special, dropout=0.0, suppress_tokens=None)
    )


def write_checkpoint(model: "transformers.PreTrainedModel", folder: Path) -> None:
    model.double().save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2, "the checkpoint has several shards"


def train_by_hand(job_file: Path) -> "transformers.PreTrainedModel":
    """The untouched model in a plain loop, over the same samples in the same order."""
    job = load_job(job_file)
    model, data = job.model().train(), job.data()
    optimizer = job.optimizer(model.named_parameters())
    samples = sample_plan(job, len(data))
    for step in range(samples.num_steps):
        indices = [index for grain in samples.grains(step) for index in grain]
        optimizer.zero_grad()
        model(**default_collate([data[index][0] for index in indices])).loss.backward()
        optimizer.step()
    return model


def difference(first: "transformers.PreTrainedModel", second: "transformers.PreTrainedModel") -> float:
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(("build", "data"), [(gpt2, sentences), (whisper, recordings)])
def test_a_sharded_checkpoint_is_fine_tuned_and_read_back(
    forking: RecordingPlatform, tmp_path: Path, build: Any, data: Any
) -> None:
    torch.manual_seed(0)
    initial = build()
    write_checkpoint(initial, tmp_path / "before")
    job_file = tmp_path / "job.py"
    kind = type(initial)
    job_file.write_text(JOB.format(name=kind.__name__, folder=str(tmp_path / "before"), data=data.__name__))
    plan = plan_by_hand(job_file, cuts=2)
    result = zooid.train(job_file, store=(tmp_path / "run").as_uri(), plan=plan, platform=forking)
    zooid.save_pretrained(result.store, tmp_path / "after")
    trained = kind.from_pretrained(tmp_path / "after")
    assert trained.dtype == torch.float64
    assert difference(trained, train_by_hand(job_file)) <= TOLERANCE
    assert difference(trained, initial) > 1e-3, "equality would prove nothing about a run that trained nothing"
    with pytest.raises(InputError, match=r"holds a model already .* give another folder"):
        zooid.save_pretrained(result.store, tmp_path / "after")


def bert() -> "transformers.PreTrainedModel":
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=31
        )
    )


def bart() -> "transformers.PreTrainedModel":
    small = {f"{part}_{what}": 1 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            **small, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=31, max_position_embeddings=8
        )
    )


def t5() -> "transformers.PreTrainedModel":
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=31)
    )


def mixtral() -> "transformers.PreTrainedModel":
    """Its experts have other names in the library's checkpoints than in the module."""
    wide = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 31, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**wide, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    )


def tied_by_hand() -> "transformers.PreTrainedModel":
    """A tie that the configuration knows nothing about."""
    model = bert()
    first, second = model.bert.encoder.layer
    second.intermediate.dense.weight = first.intermediate.dense.weight
    return model


def save_run(model: "transformers.PreTrainedModel", folder: Path, num_shards: int) -> str:
    """A run's folder with a checkpoint of this model, as members would have written it."""
    store = open_store((folder / "run").as_uri())
    store.put(keys.claim(0), encode_record(RunClaim(run="run")))
    state = model.state_dict()
    first: dict[int, str] = {}
    aliases = {
        name: first[id(tensor)]
        for name, tensor in model.state_dict(keep_vars=True).items()
        if first.setdefault(id(tensor), name) != name
    }
    names = [name for name in state if name not in aliases]
    parts = [names[number::num_shards] for number in range(num_shards)]
    shards = [Shard(key=keys.shard(0, "model", n, num_shards, 0), names=tuple(part)) for n, part in enumerate(parts)]
    for shard in shards:
        store.put(shard.key, pack({name: state[name] for name in shard.names}))
    manifest = CheckpointManifest(
        step=0,
        model_fingerprint="",
        samples=SampleFacts(num_samples=2, batch_size=1, grain_size=1, epochs=1, seed=0),
        optimizer_class="SGD",
        shards=tuple(shards),
        constants=(),
        aliases=aliases,
    )
    store.put(keys.checkpoint_manifest(0), encode_record(manifest))
    return store.url


def write_job(file: Path, build: str) -> Path:
    file.write_text(
        "import torch\nimport zooid\nfrom tests.integration import test_pretrained\n\n"
        f"job = zooid.Job(model=lambda: test_pretrained.{build}().double(), loss=None, data=list,\n"
        "                batch_size=1, epochs=1, optimizer=lambda named: torch.optim.SGD(named, lr=0.1))\n"
    )
    return file


@pytest.mark.parametrize("build", [gpt2, bert, bart, t5, mixtral, whisper])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_what_is_saved_is_what_transformers_saves(tmp_path: Path, build: Any, num_shards: int) -> None:
    """The same model comes back, with ties, type, class and settings for generating text."""
    torch.manual_seed(0)
    model = build().double().eval()
    url = save_run(model, tmp_path, num_shards)
    zooid.save_pretrained(url, tmp_path / "ours", job_file=write_job(tmp_path / "job.py", build.__name__))
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (type(model).from_pretrained(tmp_path / name) for name in ("ours", "theirs"))
    assert difference(ours, model) == 0
    assert len(dict(ours.named_parameters())) == len(dict(theirs.named_parameters())), "ties are tied again"
    for file in ("config.json", "generation_config.json"):
        assert [(tmp_path / name / file).exists() for name in ("ours", "theirs")] in ([True, True], [False, False])
    settings = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs")]
    assert settings[0] == settings[1]


def test_a_tie_that_the_configuration_does_not_know_is_written_out(tmp_path: Path) -> None:
    """Otherwise `from_pretrained` would draw new weights for the second name."""
    model = tied_by_hand().double()
    url = save_run(model, tmp_path, num_shards=1)
    zooid.save_pretrained(url, tmp_path / "saved", job_file=write_job(tmp_path / "job.py", "tied_by_hand"))
    assert difference(type(model).from_pretrained(tmp_path / "saved"), model) == 0


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    url = save_run(gpt2(), tmp_path, num_shards=2)
    folder = tmp_path / "saved"
    with pytest.raises(InputError, match=r"job file of the run in .* no longer exists at a known path.* job_file="):
        zooid.save_pretrained(url, folder)
    with pytest.raises(InputError, match=r"another model than job.model\(\) builds: only one of them has .*--job"):
        zooid.save_pretrained(url, folder, job_file=write_job(tmp_path / "other.py", "bert"))
    with pytest.raises(InputError, match=r"returns a Linear, which is not a model of transformers.*load_checkpoint"):
        zooid.save_pretrained(url, folder, job_file=write_job(tmp_path / "plain.py", "plain"))
    job_file = write_job(tmp_path / "job.py", "gpt2")
    store = open_store(url)
    key = keys.shard(0, "model", 1, 2, 0)
    whole = bytes(store.get(key))
    store.delete([key])
    with pytest.raises(CheckpointError, match=r"lacks checkpoints/00000000/model-00002-of-00002.safetensors"):
        zooid.save_pretrained(url, folder, job_file=job_file)
    assert not folder.exists()
    store.put(key, whole[:-8])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors was cut short or altered"):
        zooid.save_pretrained(url, folder, job_file=job_file)
    assert not (folder / "config.json").exists(), "without it, nothing can be read"


def plain() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


PREPARE = """
from lab.plans import bare_plan
from zooid.core.jobs.job import load_job
from zooid.core.resources.process_memory import forget_peak, peak_resident_bytes
from zooid.layers import check_job, trace_job
from zooid.store import open_store
from zooid.worker.checkpoints.contents import write_initial


def prepare(job_file, url):
    checked = check_job(load_job(job_file))
    layered = trace_job(checked.job, checked.example)
    plan = bare_plan(
        job="job", fingerprint=layered.fingerprint, spans=[(0, layered.num_layers)], batch_size=8, grain_size=4,
        num_steps=6, num_replicas=1, schedule="gpipe", ahead=0, transport="store", all_reduce="three_phase", shares=(),
    )
    write_initial(open_store(url), checked, layered, plan)


small, large = {jobs}
prepare(*small)
forget_peak()
before = peak_resident_bytes()
prepare(*large)
print(peak_resident_bytes() - before)
"""


def test_initial_weights_of_a_third_of_a_gigabyte_are_built_and_written_without_a_second_copy(tmp_path: Path) -> None:
    """Beside the model, there is room for no more than a shard; a small model goes first, to import everything.

    Comparing gradients is left out: that takes copies of its own.
    """
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=6, n_embd=1024, n_head=8, vocab_size=31, n_positions=8)
        )
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    model_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    jobs: list[tuple[str, str]] = []
    for name, built in (("small", gpt2()), ("large", model)):
        built.save_pretrained(tmp_path / name, max_shard_size="100MB")
        job_file = tmp_path / f"{name}.py"
        job_file.write_text(JOB.format(name="GPT2LMHeadModel", folder=str(tmp_path / name), data="sentences"))
        jobs.append((str(job_file), (tmp_path / f"{name}-run").as_uri()))
    del model, built
    ended = run_python(PREPARE.format(jobs=jobs), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    extra = int(ended.stdout) / model_bytes
    print(f"{extra:.2f} times its {model_bytes / 1e6:.0f} MB")
    assert extra <= 1.6
    state = zooid.load_checkpoint(jobs[1][1])
    assert sum(tensor.numel() for tensor in state.values()) * 4 >= model_bytes
