"""Laws of the emitter: any valid schedule gives the same bits, and each op has its scheduled runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import Node

from checkmate import Problem, Schedule, Solution
from checkmate.model.lower import lazy_sequence
from checkmate_torch import CompiledModule, compile
from checkmate_torch.ops.fast_functions import fastest
from checkmate_torch.running.emit import emit

ROOMY = 2**40
NORM = torch.ops.aten._native_batch_norm_legit.default


@dataclass(frozen=True, kw_only=True)
class Careless:
    """Drops a random choice of forward tensors at the loss."""

    seed: int
    keep: float

    def solve(self, problem: Problem) -> Solution:
        graph = problem.graph
        kept = np.random.default_rng(self.seed).random(graph.n_tensors) < self.keep
        boundary = next(i for i, op in enumerate(graph.ops) if op.name == "loss")
        sequence = lazy_sequence(graph, kept, boundary + 1)
        return Solution.found(problem, Schedule.from_sequence(graph, sequence))


class Everything(nn.Module):
    """Batch norm, dropout, in-place ops, views, several outputs of one op, a branch, a reused tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            nn.Dropout(0.3), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Dropout(0.3)
        )
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 24)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        h = h + self.body(h)
        tokens = self.norm(h.flatten(2).transpose(1, 2))
        q, k, v = self.mix(tokens).chunk(3, dim=-1)
        tokens = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        best, _ = tokens.topk(3, dim=1)
        return self.head(tokens.mean(1) + best.sum(1))  # type: ignore[no-any-return]


def step(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(11)
    module(x).square().mean().backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [*gradients, *module.buffers(), torch.get_rng_state()]


def fresh() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Everything(), torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_any_schedule_gives_the_same_bits(seed: int, keep: float) -> None:
    plain, x = fresh()
    reference = step(plain, x)
    module, _ = fresh()
    compiled = compile(module, ROOMY, solver=Careless(seed=seed, keep=keep))
    for mine, theirs in zip(step(compiled, x), reference, strict=True):
        assert torch.equal(mine, theirs)
    assert (compiled.plans[0].solution.timeline.recomputes > 0) == (keep < 1.0)


def test_each_op_has_its_scheduled_runs() -> None:
    module, x = fresh()
    compiled = compile(module, ROOMY, solver=Careless(seed=5, keep=0.5))
    compiled(x)
    (plan,) = compiled.plans
    forward, backward = emit(plan.traced, plan.solution.schedule)
    nodes = [node for gm in (forward, backward) for node in gm.graph.nodes]
    runs = Counter(node.target for node in nodes)
    conv = torch.ops.aten.convolution.default
    scheduled = plan.solution.timeline.runs
    assert runs[fastest(conv)] == sum(
        int(scheduled[i])
        for i, node in enumerate(plan.traced.nodes)
        if node is not None and node.target == conv
    )
    # Statistics are written by the first runs, one for each batch norm, and by no copy.
    norms = [node for node in nodes if node.target is fastest(NORM)]
    assert sum(is_with_statistics(node) for node in norms) == 2 < len(norms)


def is_with_statistics(node: Node) -> bool:
    """Whether a batch norm gets running statistics, which it updates."""
    return isinstance(node.args[3], Node)


def test_without_recomputation_there_is_no_replay() -> None:
    module, x = fresh()
    compiled = compile(module, "100%")
    compiled(x)
    (plan,) = compiled.plans
    forward, backward = emit(plan.traced, plan.solution.schedule)
    nodes = [node for gm in (forward, backward) for node in gm.graph.nodes]
    norms = [node for node in nodes if node.target is fastest(NORM)]
    assert len(norms) == 2
    assert all(map(is_with_statistics, norms))
    assert not [node for node in nodes if "rng_state" in str(node.target)]


def test_state_dict_and_modes_are_those_of_the_original() -> None:
    module, x = fresh()
    compiled = compile(module, "100%")
    assert isinstance(compiled, CompiledModule)
    assert list(compiled.state_dict()) == list(module.state_dict())
    assert [name for name, _ in compiled.named_parameters()] == [n for n, _ in module.named_parameters()]
    compiled.eval()
    assert not module.training
    assert not module.stem.training
    assert compiled.head is module.head
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
    assert compiled.plans == ()
