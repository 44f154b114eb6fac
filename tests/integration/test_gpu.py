"""Tensors of a GPU, where there is one."""

import subprocess
import sys

import pytest
import torch

from tests.integration import gpu_ranks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
def test_tensors_of_a_gpu_go_through_pinned_memory() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.gpu_ranks"], capture_output=True, text=True, check=False, timeout=110
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("ok ") == 2 * len(gpu_ranks.CHECKS)
