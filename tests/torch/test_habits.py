"""Training loops around a step: scaled losses, accumulation, hooks, modes; and models that are refused."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import checkmate
from checkmate.plugins import Solver
from checkmate.report import Kind
from checkmate_torch import UnsupportedModelError, compile, enable, last_plan, memory_meter
from checkmate_torch.ops.recompute_rules import may_run_twice
from checkmate_torch.optimizer.state import state_bytes
from zoo.small_torch import perceptron

network = partial(perceptron, 32, 32, 32, 32, 32, 32, dropout=0.1)


def same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether both are equal to the bit, with NaN at the same places."""
    return torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0)) and torch.equal(
        mine != mine, theirs != theirs
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_with_a_gradient_scaler_overflows_and_recovers_the_same(
    dtype: torch.dtype, forgetful: Solver
) -> None:
    def run(module: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
        torch.manual_seed(1)
        seen = []
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = module(torch.randn(16, 32)).float().square().mean()
            scaler.scale(loss).backward()
            seen += [p.grad.clone() for p in module.parameters()]
            scaler.step(optimizer)
            scaler.update()
            seen.append(torch.tensor(scaler.get_scale()))
        return [*seen, *(p.detach().clone() for p in module.parameters())]

    module = network()
    # Under autocast AOTAutograd rounds gradients elsewhere than eager does, so its own trace is the measure.
    reference = run(torch.compile(copy.deepcopy(module), backend="aot_eager"))
    compiled = compile(module, 2**40, solver=forgetful)
    assert all(map(same, run(compiled), reference))
    assert len(compiled.plans) == 1
    assert compiled.plans[0].solution.timeline.recomputes > 0
    overflowed = any(not tensor.isfinite().all() for tensor in reference)
    assert overflowed == (dtype is torch.float16)


def test_numbers_that_are_not_finite_propagate(forgetful: Solver) -> None:
    module, x = network(), torch.randn(16, 32)
    x[0, 0], x[5, 5] = float("inf"), float("nan")
    plain, compiled = copy.deepcopy(module), compile(module, 2**40, solver=forgetful)
    for run in (plain, compiled):
        torch.manual_seed(1)
        run(x).square().mean().backward()
    assert all(same(p.grad, q.grad) for p, q in zip(module.parameters(), plain.parameters(), strict=True))
    assert any(p.grad.isnan().any() for p in module.parameters())


def test_accumulated_gradients_are_charged_and_added_up(forgetful: Solver) -> None:
    module, x = network(), torch.randn(256, 32)
    plain, compiled = copy.deepcopy(module), compile(module, 2**40, solver=forgetful)
    sums: list[list[torch.Tensor]] = []
    for run in (plain, compiled):
        torch.manual_seed(1)
        for _ in range(3):
            run(x).square().mean().backward()
        sums.append([p.grad.clone() for p in run.parameters()])
    assert all(map(torch.equal, *sums))
    (plan,) = compiled.plans  # it has room for the gradients, and charges them
    parameters = sum(p.nbytes for p in module.parameters())
    assert plan.account.fixed[Kind.EARLIER_GRADIENTS] == parameters
    module.zero_grad()
    for _ in range(3):
        with memory_meter(compiled, x) as meter:
            compiled(x).square().mean().backward()
        assert meter.peak <= plan.solution.peak


def test_held_gradients_without_room_have_a_plan_of_their_own() -> None:
    module, x = network(), torch.randn(256, 32)
    trial = compile(module, "75%")
    trial(x).square().mean().backward()
    module.zero_grad()
    compiled = compile(module, trial.plans[0].solution.peak)
    for _ in range(3):
        compiled(x).square().mean().backward()
    first, later = compiled.plans
    assert Kind.EARLIER_GRADIENTS in later.account.fixed
    module.zero_grad()
    for plan in (first, later):
        with memory_meter(compiled, x) as meter:
            compiled(x).square().mean().backward()
        assert meter.peak <= plan.solution.peak


@pytest.mark.parametrize("door", ["enable", "backend"])
def test_held_gradients_that_no_budget_plan_counts_end_no_training(
    door: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.compiler.reset()  # graphs of earlier tests count towards Dynamo's limit
    x = torch.randn(64, 32)
    module = network()
    settings: dict[str, Any] = {"cost_model": "flops"}
    training = enable(module, "8GiB", **settings)
    module(x)
    least = checkmate.minimum_budget(training.plans[0].traced.graph, fixed_order=True).problem.budget
    for strict in (False, True):
        module = network()
        settings |= {"strict": strict, "budget": least}
        if door == "enable":
            enable(module, **settings)
            run = module
        else:
            run = torch.compile(module, backend="checkmate", options=dict(settings))
        refused = pytest.raises(checkmate.CheckmateError) if strict else nullcontext()
        run(x).square().mean().backward()
        with caplog.at_level(logging.WARNING, "checkmate_torch"), refused:
            for _ in range(3):
                run(x).square().mean().backward()
    assert caplog.text.count("goes on with plans that do not count them") == 1


def test_hooks_on_saved_tensors_compose(forgetful: Solver) -> None:
    module, x = network(), torch.randn(16, 32)
    compiled = compile(module, 2**40, solver=forgetful)
    packed: list[torch.Tensor] = []

    def pack(saved: torch.Tensor) -> torch.Tensor:
        packed.append(saved)
        return saved.clone()

    gradients = []
    for hooks in (
        torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved),
        torch.autograd.graph.save_on_cpu(),
    ):
        module.zero_grad()
        torch.manual_seed(1)
        with hooks:
            loss = compiled(x).square().mean()
        loss.backward()
        gradients.append([p.grad.clone() for p in module.parameters()])
    assert packed
    assert all(map(torch.equal, gradients[0], gradients[1]))
    assert all(map(torch.equal, gradients[0], gradients[2]))


def test_calls_without_gradients_are_not_planned() -> None:
    module, x = network(), torch.randn(16, 32)
    compiled = compile(module, "1KiB")  # would be infeasible
    module.eval()
    with torch.inference_mode():
        inferred = compiled(x)
    with torch.no_grad():
        assert torch.equal(compiled(x), inferred)
    module.requires_grad_(False)
    assert torch.equal(compiled(x), inferred)
    assert compiled.plans == ()


def test_parameters_may_be_frozen_and_thawed_between_steps(forgetful: Solver) -> None:
    module, x = network(), torch.randn(16, 32)
    compiled = compile(module, 2**40, solver=forgetful)
    module[0].requires_grad_(False)
    compiled(x).sum().backward()
    assert module[0].weight.grad is None
    module.zero_grad()
    module[0].requires_grad_(True)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    assert len(compiled.plans) == 2


def test_inside_a_checkpoint_and_under_anomaly_detection() -> None:
    module, x = network().eval(), torch.randn(16, 32, requires_grad=True)
    compiled = compile(module, "100%")
    (plain,) = torch.autograd.grad(module(x).sum(), x)
    outside = torch.utils.checkpoint.checkpoint(compiled, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(outside.sum(), x)[0], plain)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], plain)
    assert len(compiled.plans) == 1


@pytest.mark.parametrize(
    "name", ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "wait_tensor"]
)
def test_collectives_run_once(name: str) -> None:
    graph = torch.fx.Graph()
    node = graph.call_function(getattr(torch.ops._c10d_functional, name).default, (graph.placeholder("x"),))
    assert not may_run_twice(node)


class Two(nn.Module):
    """Has its second half on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = network(), nn.Linear(32, 4, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).to("meta"))


class Fills(nn.Module):
    """Makes a tensor whose size depends on data, without a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.a = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.abs().sum().int().item()
        torch._check(count >= 0)
        return self.a(x) * torch.ones(count).sum()


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x))


@pytest.mark.parametrize(
    ("module", "prepare", "message"),
    [
        (Two, torch.clone, "one budget bounds one device"),
        (Fills, torch.clone, "depends on data"),
        (lambda: nn.Embedding(32, 4, sparse=True), rows, "sparse=False"),
        (network, torch.Tensor.to_sparse, "sparse Tensor"),
    ],
    ids=["devices", "data", "sparse gradient", "sparse input"],
)
def test_a_model_that_cannot_be_planned_is_refused_with_the_way_out(
    module: Callable[[], nn.Module], prepare: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        compile(module(), "1GiB", strict=True)(prepare(torch.randn(16, 32)))


@pytest.mark.parametrize("door", ["enable", "backend"])
def test_an_optimizer_that_calls_the_model_in_its_step_is_warned_of_once(
    door: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()  # noqa: TID251 - graphs of earlier tests count towards its limit
    module, x = network(), torch.randn(512, 32)
    settings: dict[str, Any] = {"budget": "8GiB", "cost_model": "flops"}
    training = enable(module, **settings) if door == "enable" else None
    run = module if training else torch.compile(module, backend="checkmate", options=settings)
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=2, history_size=2)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        torch.manual_seed(1)
        result = run(x).square().mean()
        result.backward()
        return result

    with caplog.at_level(logging.WARNING, "checkmate_torch"):
        for _ in range(4):
            optimizer.step(loss)
    plan = training.plans[-1] if training else last_plan()
    assert plan.account.fixed[Kind.OPTIMIZER] == state_bytes(optimizer)
    (record,) = caplog.records
    assert "LBFGS calls the model inside of its step" in record.message
    assert record.message.endswith("Pass those bytes as reserve=")


def test_a_reserve_is_for_what_an_optimizer_holds_in_its_step(caplog: pytest.LogCaptureFixture) -> None:
    """With one, an optimizer that calls the model in its step is no matter for a warning."""
    module, x = network(), torch.randn(8, 32)
    enable(module, "8GiB", reserve="64MiB", cost_model="flops")
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=2)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        result: torch.Tensor = module(x).square().mean()
        result.backward()
        return result

    with caplog.at_level(logging.WARNING, "checkmate_torch"):
        optimizer.step(loss)
    assert not caplog.records


@pytest.mark.parametrize("strict", [False, True])
def test_what_no_plan_can_bound_is_warned_of_once_or_refused(
    strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = network(), torch.randn(8, 32)
    enable(module, "8GiB", strict=strict, cost_model="flops")
    refused = pytest.raises(UnsupportedModelError) if strict else nullcontext()
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    with caplog.at_level(logging.WARNING, "checkmate_torch"):
        for _ in range(2):
            with refused:
                torch.func.grad(lambda p: torch.func.functional_call(module, p, x).sum())(parameters)
    assert caplog.text.count("torch.func transforms this call") == (not strict)
    module(x).sum().backward()
    loss = module(x).sum()
    loss.backward(retain_graph=True)  # after a step without
    with refused:
        loss.backward()
