"""Tracing a large model costs neither its weights' memory nor a hook that stays."""

import json
from pathlib import Path

import pytest

from tests.integration.interpreters import run_python

TRACE_LARGE = """
import json, torch, transformers
from zooid.core.resources.process_memory import forget_peak, peak_resident_bytes
from zooid.layers import Batch, trace
transformers.logging.set_verbosity_error()
with torch.device("meta"):
    config = transformers.GPT2Config(n_embd=4096, n_layer=2, n_head=16, use_cache=False, loss_type="ForCausalLMLoss")
    model = transformers.GPT2LMHeadModel(config)
tokens = torch.zeros(2, 128, dtype=torch.long)
forget_peak()
before = peak_resident_bytes()
layered = trace(model, Batch((), {"input_ids": tokens, "labels": tokens}, None, 2).to("meta"))
print(json.dumps({
    "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    "num_layers": layered.num_layers,
    "extra_bytes": peak_resident_bytes() - before,
}))
"""


@pytest.mark.timeout(180)
def test_a_model_of_350_million_parameters_is_traced_without_their_memory(tmp_path: Path) -> None:
    answer = run_python(TRACE_LARGE, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["num_parameters"] > 350_000_000
    assert found["num_layers"] > 6
    assert found["extra_bytes"] < 200_000_000
