"""A budget lets a step train under an allocator limit that stops TensorFlow, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).with_name("limited_step.py"))
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(sys.path),  # the networks are in benchmarks/
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",  # oneDNN's kernels crash when memory is refused
}


def training(budget: int, limit_mib: int) -> subprocess.Popen[str]:
    """Three steps in a new process; a budget of 0 means stock TensorFlow."""
    return subprocess.Popen(
        [sys.executable, SCRIPT, str(budget)],
        env={**os.environ, **ENVIRONMENT, "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit_mib)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_step_that_runs_out_of_memory_trains_within_a_budget() -> None:
    refused = training(0, limit_mib=70)  # it retries for some time before it fails
    ours, stock = training(48 * 10**6, limit_mib=70), training(0, limit_mib=1000)
    losses, errors = ours.communicate()
    assert ours.returncode == 0, errors
    expected, _ = stock.communicate()
    assert [float(x) for x in losses.split()] == pytest.approx([float(x) for x in expected.split()], rel=1e-5)
    assert "ResourceExhaustedError" in refused.communicate()[1]
    assert refused.returncode != 0
