"""A member that starts from the run's trace: it builds no model and imports no compiler, up to its last step."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lab.runs import run_by_hand
from zooid.core.environment import member_environment
from zooid.core.runs import keys

JOB = """
import os
import torch
from torch import nn
import zooid

def build_model():
    assert "BUILDS_NO_MODEL" not in os.environ, "this member builds a model"
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 2))

job = zooid.Job(
    model=build_model,
    loss=nn.functional.mse_loss,
    data=lambda: torch.utils.data.TensorDataset(torch.ones(8, 4), torch.ones(8, 2)),
    evaluation=lambda: torch.utils.data.TensorDataset(torch.ones(4, 4), torch.ones(4, 2)),
    optimizer=lambda named: torch.optim.AdamW(named, lr=0.01),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    batch_size=4,
    grain_size=2,
    epochs=1,
)
"""
MEMBER = """
import json, sys
from zooid.worker import __main__ as program
status = program.main()
print(json.dumps({"status": status, "modules": sorted(sys.modules)}))
"""
COMPILER = ("torch._dynamo", "torch._inductor", "torch.export._trace", "torch.fx.experimental.symbolic_shapes")
OTHERS = ("sympy", "networkx", "rich", "typer", "plotly", "lightgbm", "scipy", "highspy", "pandas")


def test_a_member_trains_without_its_model_s_code_and_without_a_compiler(tmp_path: Path) -> None:
    job_file = tmp_path / "job.py"
    job_file.write_text(JOB)
    with run_by_hand(job_file, 1) as (store, [spec]):
        assert spec.trace
        ran = subprocess.run(
            [sys.executable, "-c", MEMBER, f"{store.url}/{keys.spec(spec.member)}"],
            env={**os.environ, **member_environment(1), "BUILDS_NO_MODEL": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        ended = json.loads(ran.stdout.splitlines()[-1])
        assert ended["status"] == 0, ran.stderr
        assert "checkpoints/00000002/manifest.json" in {*store.list("checkpoints")}, "two steps were trained"
    assert [name for name in (*COMPILER, *OTHERS) if name in ended["modules"]] == []
