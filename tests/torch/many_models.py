"""Ten models of 8 MiB, each trained for a step and dropped; prints the resident set after 4 and 10."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch
from torch import nn

from checkmate_torch import compile, compile_step


def train(whole_step: bool) -> None:
    """One step of a new model: plainly compiled, or with its updates."""
    layers = [layer for _ in range(2) for layer in (nn.Linear(1024, 1024), nn.GELU())]
    model, x = nn.Sequential(*layers), torch.randn(8, 1024)
    optimizer = torch.optim.Adam(model.parameters())
    settings = {"cost_model": "flops", "solver": "keep-all", "cache": False}
    if whole_step:
        compile_step(model, lambda model, x: model(x).square().mean(), optimizer, "100%", **settings)(x)
    else:
        compile(model, "100%", optimizer=optimizer, **settings)(x).sum().backward()
        optimizer.step()


def resident_set() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


torch.set_num_threads(1)
for k in range(10):
    train(whole_step=k % 2 == 1)
    gc.collect()
    if k in (3, 9):
        print(resident_set())  # noqa: T201 - for the test
