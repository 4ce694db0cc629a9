"""Laws of inputs that a step writes: buffers have the bits of plain PyTorch, whatever is recomputed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from checkmate import Problem, Schedule, Solution
from checkmate.model.lower import lazy_sequence
from checkmate_torch import compile, compile_step, enable
from checkmate_torch.tracing.traced_graph import TracedGraph

STEPS = 3


@dataclass(frozen=True)
class Forgetting:
    """Keeps a random choice of tensors from forward to backward."""

    seed: int
    keep: float

    def solve(self, problem: Problem) -> Solution:
        graph = problem.graph
        kept = np.random.default_rng(self.seed).random(graph.n_tensors) < self.keep
        boundary = next(i for i, op in enumerate(graph.ops) if op.name == "loss")
        return Solution.found(
            problem, Schedule.from_sequence(graph, lazy_sequence(graph, kept, boundary + 1))
        )


class Normed(nn.Module):
    """Layers and norms; ``way`` is called with the module and a batch."""

    def __init__(self, way: Callable[[Normed, Tensor], Tensor]) -> None:
        super().__init__()
        self.way = way
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(4))
        self.register_buffer("seen", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x).tanh()


def each_once(of: Normed, x: Tensor) -> Tensor:
    for layer, norm in zip(of.layers, of.norms, strict=True):
        x = norm(layer(x)).relu()
    return x


def one_for_all(of: Normed, x: Tensor) -> Tensor:
    for layer in of.layers:
        x = of.norms[0](layer(x)).relu()
    return x


def frozen(of: Normed, x: Tensor) -> Tensor:
    of.norms[1].eval()
    return each_once(of, x)


def read_after(of: Normed, x: Tensor) -> Tensor:
    return each_once(of, x) * of.norms[0].running_mean.sum()


def read_before(of: Normed, x: Tensor) -> Tensor:
    before = of.norms[0].running_var.clone()
    return each_once(of, x) * before.mean()


def reset_before(of: Normed, x: Tensor) -> Tensor:
    of.norms[0].running_mean.mul_(0.5)
    return each_once(of, x)


def counted(of: Normed, x: Tensor) -> Tensor:
    of.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return each_once(of, x)


def exchanged(of: Normed, x: Tensor) -> Tensor:
    mean = of.norms[0].running_mean.clone()
    of.norms[0].running_mean.copy_(of.norms[1].running_mean)
    of.norms[1].running_mean.copy_(mean)
    return each_once(of, x)


def shared(of: Normed, x: Tensor) -> Tensor:
    of.norms[2].running_mean = of.norms[0].running_mean
    return each_once(of, x)


def in_halves(of: Normed, x: Tensor) -> Tensor:
    of.seen[:2].add_(1)
    return each_once(of, x) * of.seen[2:].sum()


ALL_IN_PLACE = [each_once, one_for_all, frozen, counted]
WAYS = [*ALL_IN_PLACE, read_after, read_before, reset_before, exchanged, shared, in_halves]


def batch(step: int) -> Tensor:
    return torch.randn(128, 8, generator=torch.Generator().manual_seed(step))


def state_of(module: nn.Module) -> list[Tensor]:
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [x.clone() for x in (*gradients, *module.buffers())]


def trained(module: nn.Module, call: nn.Module) -> list[Tensor]:
    """Gradients and buffers after each step, with an evaluation between steps."""
    found = []
    for step in range(STEPS):
        module.train()
        module.zero_grad()
        call(batch(step)).square().mean().backward()
        found += state_of(module)
        module.eval()
        with torch.no_grad():
            found.append(call(batch(-1 - step)))
    return found


@given(way=st.sampled_from(WAYS), seed=st.integers(0, 99), keep=st.sampled_from([0.0, 0.5, 1.0]))
def test_any_schedule_writes_the_same_bits(
    way: Callable[[Normed, Tensor], Tensor], seed: int, keep: float
) -> None:
    torch.manual_seed(0)
    plain = Normed(way)
    planned = copy.deepcopy(plain)
    call = compile(planned, 2**40, solver=Forgetting(seed, keep))
    for mine, theirs in zip(trained(planned, call), trained(plain, plain), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_step_writes_the_same_bits(way: Callable[[Normed, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    plain = Normed(way)
    planned = copy.deepcopy(plain)
    one, two = (torch.optim.SGD(x.parameters(), lr=0.1) for x in (plain, planned))
    step = compile_step(planned, lambda model, x: model(x).square().mean(), two, "85%", split=False)
    for k in range(STEPS):
        one.zero_grad()
        plain(batch(k)).square().mean().backward()
        one.step()
        step(batch(k))
        for mine, theirs in zip(planned.state_dict().values(), plain.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs)


def traced(way: Callable[[Normed, Tensor], Tensor]) -> TracedGraph:
    module = Normed(way)
    training = enable(module, "1MiB", split=False)
    module(batch(0)).square().mean().backward()
    return training.plans[0].traced


@pytest.mark.parametrize("way", ALL_IN_PLACE)
def test_what_nothing_else_reads_is_written_in_place(way: Callable[[Normed, Tensor], Tensor]) -> None:
    found = traced(way)
    makers = [n.args[0] if "getitem" in n.name else n for n in found.written.values()]
    assert {n.name for n in makers} <= {n.name for n in found.in_place}
    assert len(found.returned) == 1


@pytest.mark.parametrize("way", [read_after, read_before, reset_before])
def test_norms_with_other_readers_keep_the_old_statistics(
    way: Callable[[Normed, Tensor], Tensor],
) -> None:
    found = traced(way)
    norms = [n for n in found.op_nodes if "batch_norm_legit" in n.name]
    assert len(set(norms) - found.in_place) == 1


@pytest.mark.parametrize("planned", [False, True])
def test_graphs_of_the_user_notice_that_a_buffer_is_written(planned: bool) -> None:
    module = Normed(counted)
    if planned:
        enable(module, "1MiB", split=False)
    loss = (torch.ones(8, requires_grad=True) * module.seen).sum()
    module(batch(0)).square().mean().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_pass_writes_nothing() -> None:
    torch.manual_seed(0)
    plain = Normed(one_for_all)
    planned = copy.deepcopy(plain)
    enable(planned, "1MiB", split=False)
    for module in (plain, planned):
        loss = module(batch(0)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    for mine, theirs in zip(state_of(planned), state_of(plain), strict=True):
        assert torch.equal(mine, theirs)


def test_statistics_take_no_memory() -> None:
    found = traced(each_once)
    items = [n for n in found.tensor_of if "getitem" in n.name and n.args[1] >= 3]
    assert items
    assert {found.graph.tensors[found.tensor_of[n]].size for n in items} == {0}
