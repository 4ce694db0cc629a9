"""Through Inductor: the same step up to rounding, the same random numbers, within the budget."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import nn

from checkmate_torch import compile, memory_meter


def network() -> nn.Module:
    torch.manual_seed(0)
    block = (nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32))
    return nn.Sequential(*(copy.deepcopy(layer) for _ in range(3) for layer in block))


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # Inductor's own imports
def test_the_budget_bounds_fused_kernels() -> None:
    plain, x = network(), torch.randn(512, 32)
    compiled = compile(copy.deepcopy(plain), "60%", lowering="inductor", solver="evict-belady")
    peaks = []
    for run in (plain, compiled):
        for measured in (False, True):
            torch.manual_seed(1)
            run.zero_grad()
            if measured:
                with memory_meter(run, x) as meter:
                    run(x).square().mean().backward()
                peaks.append(meter.peak)
            else:
                run(x).square().mean().backward()
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    assert compiled.plans[0].solution.timeline.recomputes > 0
    assert peaks[1] <= compiled.plans[0].solution.problem.budget
    assert peaks[1] < 0.61 * peaks[0]


def test_an_unknown_lowering_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no lowering 'triton'"):
        compile(network(), "60%", lowering="triton")
