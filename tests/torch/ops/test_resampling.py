"""Ops that resample images stay one kernel each: the same bits as in eager PyTorch, and no decomposition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checkmate.torch

MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "nearest": ("upsample_nearest", {"scale_factor": 2}),
    "nearest-exact": ("_upsample_nearest_exact", {"scale_factor": 2}),
    "bilinear": ("upsample_bilinear", {"size": (21, 19), "align_corners": True}),
    "bicubic": ("upsample_bicubic", {"scale_factor": 1.5}),
    "antialias": ("_upsample_bilinear", {"size": (9, 9), "mode": "bilinear", "antialias": True}),
}


class Resampling(nn.Module):
    """Convolutions around an interpolation."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.before, self.after = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.settings = settings

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.before(x))
        return (self.after(F.interpolate(x, **self.settings)) ** 2).mean()


def gradients(model: nn.Module, run: Any) -> list[Tensor]:
    run(torch.randn(4, 8, 16, 16, generator=torch.Generator().manual_seed(1))).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("mode", MODES)
def test_resampling_is_one_kernel_with_the_bits_of_eager_pytorch(mode: str) -> None:
    name, settings = MODES[mode]
    torch.manual_seed(0)
    model = Resampling({"mode": mode} | settings)
    expected = [g.clone() for g in gradients(model, model)]
    model.zero_grad()
    planned = checkmate.torch.compile(model, "100%", cost_model="flops", workspaces=False, cache=False)
    found = gradients(model, planned)
    assert all(map(torch.equal, found, expected))
    ops = [op.name for op in planned.plans[0].solution.problem.graph.ops]
    assert [op.startswith(name) for op in ops].count(True) == 2  # with the backward pass
    assert not any("index" in op for op in ops)


def test_other_compilers_decompose_as_before() -> None:
    model = Resampling({"scale_factor": 2, "mode": "bilinear"})
    before = dict(torch.ops.aten.upsample_bilinear2d.vec.py_kernels)
    assert before
    gradients(model, checkmate.torch.compile(model, "100%", cost_model="flops", workspaces=False))
    assert torch.ops.aten.upsample_bilinear2d.vec.py_kernels == before
