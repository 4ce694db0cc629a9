"""A network whose blocks FSDP2 can shard, and what tests of sharding need to run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH = 32
NEEDS = [
    pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # PyTorch hides it otherwise
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(blocks)), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def shard(net: nn.Module, **settings: Any) -> None:
    for block in net.get_submodule("blocks").children():
        fully_shard(block, **settings)
    fully_shard(net, **settings)
