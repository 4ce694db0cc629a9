"""Planning without running: the same graph as by running, for models that would not fit."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import checkmate
from checkmate.framework import ProgramError
from checkmate.report import Kind
from checkmate.testing import FrontendConformance
from checkmate_torch import UnsupportedModelError, compile, memory_meter, plan, trace
from checkmate_torch.adapters.frontend import Frontend
from checkmate_torch.costs.meter import resident_bytes
from checkmate_torch.private import FakeTensorMode
from zoo.small_torch import perceptron, resnet18

KIB = 1024


network = partial(perceptron, 16, 64, 16)


def test_traced_and_compiled_are_the_same_graph() -> None:
    """Without a loss the boundary stands for it, in both."""
    module, x = network(), torch.randn(8, 16)
    compiled = compile(module, "100%")
    compiled(x)
    traced = trace(module, x)
    assert traced.graph == compiled.plans[0].traced.graph
    assert traced.account == compiled.plans[0].account
    assert plan(module, x, "100%").peak == compiled.plans[0].solution.peak


def test_gradients_of_a_fake_model_are_left_alone() -> None:
    """A fake model is followed itself, not a copy."""
    with FakeTensorMode():
        module, x = network(), torch.randn(8, 16, requires_grad=True)
        given = module[0].weight.grad = torch.zeros_like(module[0].weight)
        trace(module, x, loss=torch.sum)
        assert module[0].weight.grad is given
        assert module[0].bias.grad is None
        assert x.grad is None


class Branching(nn.Module):
    """Computes otherwise while it is captured, as libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            y = layer(x)
            x = y.exp().sigmoid().tanh() + x if torch.compiler.is_compiling() else y.tanh()
        return x


def test_the_plain_peak_is_that_of_the_models_own_code() -> None:
    module, x = Branching(), torch.randn(512, 64)
    traced = trace(module, x, loss=lambda y: y.square().mean())
    with memory_meter(module, x) as meter:
        module(x).square().mean().backward()
    assert traced.plain_peak == pytest.approx(meter.peak, rel=0.02)
    assert traced.plain_peak < 0.6 * checkmate.keep_all_peak(traced.graph)


def test_with_its_loss_the_prediction_is_what_a_step_needs() -> None:
    case = resnet18(width=8, image=16, batch=4)
    solution = plan(case.module, case.inputs, "100%", loss=case.loss)
    assert all(p.grad is None for p in case.module.parameters())
    whole = compile(case.module, "100%")

    def step() -> None:
        case.module.zero_grad()
        case.loss(whole(*case.inputs)).backward()

    step()
    with memory_meter(case.module, case.inputs, case.targets) as meter:
        step()
    assert solution.peak is not None
    assert meter.peak == pytest.approx(solution.peak, rel=0.03)


def test_nothing_is_allocated_and_nothing_is_changed() -> None:
    module, x = resnet18(width=16, image=8, batch=2).module, torch.randn(2, 3, 8, 8)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    trace(module, x, cost_model="flops")
    with memory_meter() as meter:
        trace(module, x, cost_model="flops")
    assert meter.peak < 64 * KIB < resident_bytes(module)  # states of random numbers
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_fake_and_meta_models_of_any_size() -> None:
    n = 2**15
    with torch.device("meta"):
        meta, x = perceptron(n, 4 * n, n), torch.empty(2**12, n)
    with FakeTensorMode():
        fake, y = perceptron(n, 4 * n, n), torch.empty(2**12, n)
    graphs = [trace(meta, x, cost_model="flops").graph, trace(fake, (y,), cost_model="flops").graph]
    assert graphs[0] == graphs[1]
    assert checkmate.keep_all_peak(graphs[0]) > 64 * 2**30


def test_tied_weights_and_hidden_tensors_of_a_model() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
            self.b.weight = self.a.weight
            self.hidden = torch.ones(32)  # no buffer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x) * self.hidden)

    traced = trace(Tied(), {"x": torch.randn(4, 32)}, cost_model="flops")
    sizes = dict.fromkeys(Kind, 0)
    for t in traced.graph.inputs:
        sizes[traced.account.kinds[t]] += traced.graph.tensors[t].size
    assert sizes[Kind.PARAMETERS] == 4 * KIB


def test_a_compiled_model_has_the_graph_of_its_original() -> None:
    module, x = network(), torch.randn(8, 16)
    assert trace(compile(module, "100%"), x, cost_model="flops").graph == (
        trace(module, x, cost_model="flops").graph
    )


def test_a_model_that_can_not_be_copied_is_refused_unless_it_is_fake() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.lock = network(), threading.Lock()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    with pytest.raises(UnsupportedModelError, match=r"lock.*FakeTensorMode"):
        trace(Locked(), torch.randn(8, 16), cost_model="flops")
    with FakeTensorMode():
        model, x = Locked(), torch.randn(8, 16)
    assert trace(model, x, cost_model="flops").graph.n_ops > 3


def test_labels_that_the_loss_reads_are_inputs() -> None:
    labels = torch.randint(16, (8,))
    traced = trace(
        network(),
        torch.randn(8, 16),
        loss=lambda y: functional.cross_entropy(y, labels),
        cost_model="flops",
    )
    assert any("nll_loss" in op.name for op in traced.graph.ops)
    assert labels.nbytes in [traced.graph.tensors[t].size for t in traced.graph.inputs]


def test_a_traced_step_is_saved_in_the_wire_format(tmp_path: Path) -> None:
    traced = trace(network(), torch.randn(8, 16), cost_model="flops")
    traced.save(tmp_path / "step.msgpack")
    assert checkmate.read_graph(tmp_path / "step.msgpack") == traced.graph


def test_without_running_an_op_there_are_no_workspaces() -> None:
    timed: list[checkmate.Progress] = []
    x = torch.randn(9, 16)
    graph = trace(network(), x, cost_model="roofline-H100-80GB", on_progress=timed.append).graph
    assert not any("timing" in report.step for report in timed)
    assert all(op.workspace == 0 for op in graph.ops if op.name != "loss")


def test_no_schedule_fits_a_tiny_budget() -> None:
    x = torch.randn(8, 16)
    assert plan(network(), x, "1KiB", throw=False).status is checkmate.Status.INFEASIBLE
    with pytest.raises(checkmate.InfeasibleBudgetError):
        plan(network(), x, "1KiB")


def test_an_error_says_why_a_model_can_not_be_traced() -> None:
    frozen = network().requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="no backward pass to plan"):
        trace(frozen, torch.randn(8, 16))
    sparse = torch.eye(16).to_sparse()
    with pytest.raises(UnsupportedModelError, match="sparse"):
        trace(network(), sparse)


class TestFrontend(FrontendConformance):
    frontend_name = "torch"

    def programs(self) -> list[tuple[object, ...]]:
        def factory() -> tuple[object, ...]:
            return network(), torch.randn(8, 16), lambda y: y.square().mean()

        return [(network(), torch.randn(8, 16)), (factory,)]


def test_a_factory_must_return_a_model_and_its_inputs() -> None:
    with pytest.raises(ProgramError, match=r"\(model, example_inputs\)"):
        Frontend().trace(network)
