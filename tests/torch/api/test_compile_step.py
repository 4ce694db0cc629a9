"""A whole step trains the same, to the bit, within the budget and at the predicted peak."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import Optimizer

import checkmate
from checkmate.heuristics import PlainOrder
from checkmate.report import Kind
from checkmate_torch import NoPlanError, TooManyPlansError, UnsupportedModelError, memory_meter, trace_step
from checkmate_torch.api.compile_step import CompiledStep, compile_step
from checkmate_torch.costs.meter import resident_bytes
from zoo.small_torch import Case, gpt2, mlp, perceptron, resnet18

STEPS = 4
LEAST = "least and a tenth"
ENOUGH = "1MiB"


def mlp_with_dropout() -> Case:
    case = mlp(blocks=6, width=32, batch=1024)
    for k in (1, 3):
        case.module[k].layers.append(nn.Dropout(0.2))
    return case


CASES: dict[str, Callable[[], Case]] = {
    "mlp": mlp_with_dropout,
    "resnet18": lambda: resnet18(width=8, image=32, batch=16),
    "gpt2": lambda: gpt2(layers=3, width=64, heads=4, length=64, batch=8, vocabulary=256, dropout=0.2),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "mlp": lambda m: optim.AdamW(m.parameters(), lr=1e-3),
    "resnet18": lambda m: optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "gpt2": lambda m: optim.Adam(m.parameters(), lr=1e-3),
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The results of a training run."""

    losses: list[torch.Tensor]
    state: list[torch.Tensor]
    optimizer: dict[str, object]
    rng: torch.Tensor
    peak: int
    resident: int


def loss_of(case: Case) -> Callable[..., torch.Tensor]:
    """The loss in the form that a step calls: the model first, then the batch."""
    return lambda model, *inputs: case.loss(model(*inputs))


def train(case: Case, optimizer: Optimizer, step: Callable[..., torch.Tensor]) -> Training:
    """A few steps; the memory of the last one is measured."""
    torch.manual_seed(7)
    losses = [step(*case.inputs) for _ in range(STEPS - 1)]
    with memory_meter(case.module, optimizer, case.inputs, case.targets) as meter:
        losses.append(step(*case.inputs))
    return Training(
        losses=losses,
        state=[*case.module.parameters(), *case.module.buffers()],
        optimizer=optimizer.state_dict(),
        rng=torch.get_rng_state(),
        peak=meter.peak,
        resident=meter.base,
    )


def plain_step(
    model: nn.Module, loss_fn: Callable[..., torch.Tensor], optimizer: Optimizer
) -> Callable[..., torch.Tensor]:
    def step(*inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model, *inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # so that no gradient is resident before the next step
        return loss.detach()

    return step


def assert_same(run: Training, reference: Training) -> None:
    torch.testing.assert_close(run.losses, reference.losses, rtol=0, atol=0)
    torch.testing.assert_close(run.state, reference.state, rtol=0, atol=0)
    torch.testing.assert_close(run.optimizer, reference.optimizer, rtol=0, atol=0)
    assert torch.equal(run.rng, reference.rng)


@pytest.fixture(scope="module", params=CASES)
def plain(request: pytest.FixtureRequest) -> tuple[str, Training]:
    case = CASES[request.param]()
    optimizer = OPTIMIZERS[request.param](case.module)
    return request.param, train(case, optimizer, plain_step(case.module, loss_of(case), optimizer))


@pytest.mark.parametrize("budget", ["100%", "60%", LEAST])
def test_same_bits_within_the_budget_at_the_predicted_peak(plain: tuple[str, Training], budget: str) -> None:
    name, reference = plain
    case = CASES[name]()
    optimizer = OPTIMIZERS[name](case.module)
    limit: str | int = budget
    if budget == LEAST:
        hopeless = compile_step(case.module, loss_of(case), optimizer, "1B", time_limit=2, split=False)
        with pytest.raises(checkmate.InfeasibleBudgetError) as caught:
            hopeless(*case.inputs)
        limit = int(1.1 * (caught.value.minimum or 0))  # room for a busy machine's solver
    step = compile_step(case.module, loss_of(case), optimizer, limit, time_limit=3, split=False)
    run = train(case, optimizer, step)
    (plan,) = step.plans

    assert_same(run, reference)
    assert run.peak <= plan.solution.problem.budget
    assert plan.solution.peak == pytest.approx(run.peak, rel=0.01)
    if budget == "100%":
        assert plan.solution.problem.budget <= 1.01 * reference.peak  # autograd may hold more than it needs
        assert plan.solution.timeline.recomputes == 0
    else:
        assert plan.solution.timeline.recomputes > 0


def network() -> nn.Sequential:
    layers = perceptron(8, 32, 32, 4)
    layers.insert(2, nn.Dropout(0.1))
    return layers


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


BATCH = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def both(
    make: Callable[[nn.Module], Optimizer],
    loss_fn: Callable[..., torch.Tensor] = mean_square,
    *,
    module: Callable[[], nn.Module] = network,
) -> tuple[CompiledStep, Callable[..., torch.Tensor], Optimizer]:
    """The same training compiled and plain, and the optimizer of the latter."""
    compiled, plain = module(), module()
    reference = make(plain)
    return (
        compile_step(compiled, loss_fn, make(compiled), ENOUGH),
        plain_step(plain, loss_fn, reference),
        reference,
    )


def assert_equal_steps(step: CompiledStep, plain: Callable[..., torch.Tensor], n: int = 3) -> None:
    for _ in range(n):
        state = torch.get_rng_state()
        loss = step(BATCH)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        assert torch.equal(loss, plain(BATCH))
        assert torch.equal(after, torch.get_rng_state())


def assert_equal_state(optimizer: Optimizer, reference: Optimizer) -> None:
    torch.testing.assert_close(optimizer.state_dict(), reference.state_dict(), rtol=0, atol=0)
    for group, other in zip(optimizer.param_groups, reference.param_groups, strict=True):
        torch.testing.assert_close(group["params"], other["params"], rtol=0, atol=0)


def test_groups_and_schedulers_without_a_warning_or_a_new_plan() -> None:
    def make(module: nn.Module) -> Optimizer:
        first, *rest = (p for p in module.parameters())
        return optim.AdamW([{"params": rest}, {"params": [first], "lr": 0.5, "weight_decay": 0}], lr=0.1)

    step, plain, reference = both(make)
    schedulers = [optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=9) for o in (step.optimizer, reference)]
    for _ in range(3):
        assert_equal_steps(step, plain, 1)
        for scheduler in schedulers:
            scheduler.step()
    assert_equal_state(step.optimizer, reference)
    assert len(step.plans) == 1


def test_saved_state_can_be_loaded() -> None:
    """Saved after two steps of one training and loaded into another: both continue equally."""
    step, plain, reference = both(lambda m: optim.Adam(m.parameters(), lr=0.01))
    assert_equal_steps(step, plain, 2)
    saved = step.model.state_dict(), step.optimizer.state_dict()
    later, _, _ = both(lambda m: optim.Adam(m.parameters(), lr=0.5))
    later(BATCH)
    later.model.load_state_dict(saved[0])
    later.optimizer.load_state_dict(saved[1])
    assert_equal_steps(later, plain)
    assert_equal_state(later.optimizer, reference)


def test_an_optimizer_with_another_term_gets_another_plan() -> None:
    step, plain, reference = both(lambda m: optim.SGD(m.parameters(), lr=0.1))
    assert_equal_steps(step, plain, 1)
    for optimizer in (step.optimizer, reference):
        optimizer.param_groups[0]["momentum"] = 0.9
    assert_equal_steps(step, plain, 2)
    assert_equal_state(step.optimizer, reference)
    before, after = step.plans
    assert after.solution.peak > before.solution.peak


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_clipped_as_by_hand(max_norm: float) -> None:
    module, plain = network(), network()
    optimizer, reference = (optim.AdamW(m.parameters(), lr=0.1) for m in (module, plain))
    step = compile_step(module, mean_square, optimizer, ENOUGH, max_norm=max_norm)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        reference.zero_grad()
        loss = mean_square(plain, x)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
        reference.step()
        return loss.detach()

    assert_equal_steps(step, by_hand)
    assert_equal_state(optimizer, reference)


class Tied(nn.Module):
    """One weight read twice, one parameter frozen, one never read, one that the optimizer does not hold."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.outer.weight = self.inner.weight
        self.outer.bias.requires_grad_(False)
        self.unread = nn.Linear(3, 3)
        self.others = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.others(self.outer(self.inner(x).tanh()))


def test_tied_frozen_unread_and_foreign_parameters() -> None:
    def make(module: nn.Module) -> Optimizer:
        mine = [p for name, p in module.named_parameters() if not name.startswith("others")]
        return optim.SGD(mine, lr=0.1, momentum=0.9)

    step, plain, reference = both(make, module=Tied)
    assert_equal_steps(step, plain)
    assert_equal_state(step.optimizer, reference)
    names = [op.name for op in step.plans[0].traced.graph.ops if op.name.startswith("update")]
    assert names == ["update of inner.weight", "update of inner.bias"]
    assert all(p.grad is None for p in step.model.parameters())


def test_more_than_a_loss_and_arguments_of_all_kinds() -> None:
    module = network()

    def loss_fn(
        model: nn.Module, batch: dict[str, torch.Tensor], *, scale: float
    ) -> tuple[torch.Tensor, object]:
        outputs = model(batch["x"])
        return outputs.square().mean() * scale, {"outputs": outputs, "n": len(outputs)}

    step = compile_step(module, loss_fn, optim.SGD(module.parameters(), lr=0.1), "100%", has_aux=True)
    torch.manual_seed(0)
    expected, more = loss_fn(module, {"x": BATCH}, scale=2.0)
    torch.manual_seed(0)
    loss, aux = step({"x": BATCH}, scale=2.0)
    assert torch.equal(loss, expected)
    assert torch.equal(aux["outputs"], more["outputs"])
    assert aux["n"] == 16
    assert not loss.requires_grad
    assert not aux["outputs"].requires_grad


def test_gradients_do_not_wait_for_each_other() -> None:
    """Wide layers and few activations: most of the memory is gradients."""

    def wide() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))

    def loss_fn(model: nn.Module) -> torch.Tensor:
        return model(torch.ones(1, 128)).square().mean()

    step, plain, reference = both(lambda m: optim.SGD(m.parameters(), lr=0.1), loss_fn, module=wide)
    step()
    plain()
    with memory_meter(step.model) as ours:
        step()
    with memory_meter(reference.param_groups[0]["params"]) as theirs:
        plain()
    weight = 4 * 128 * 128
    assert theirs.peak - theirs.base > 8 * weight
    assert ours.peak - ours.base < 2 * weight


def test_steps_leak_nothing_and_the_first_batch_is_freed() -> None:
    step, _, _ = both(lambda m: optim.Adam(m.parameters(), lr=0.01))
    first = torch.randn(16, 8)
    gone = weakref.ref(first)
    step(first)
    del first
    gc.collect()
    assert gone() is None
    seen = set()
    for _ in range(3):
        with memory_meter(step.model, step.optimizer, BATCH) as meter:
            step(BATCH)
        seen.add((meter.peak, int(meter.bytes[-1])))
    assert len(seen) == 1


def test_two_steps_of_one_model_keep_their_own_plans() -> None:
    module, x = network(), torch.randn(256, 8)
    optimizer = optim.SGD(module.parameters(), lr=0.01)
    roomy, tight = (compile_step(module, mean_square, optimizer, budget) for budget in ("100%", "85%"))
    for step in (roomy, tight, roomy, tight):
        step(x)
    assert len(roomy.plans) == len(tight.plans) == 1
    assert tight.plans[0].solution.peak < roomy.plans[0].solution.peak


def test_step_hooks_of_the_optimizer_run_once_a_step() -> None:
    step, _, _ = both(lambda m: optim.SGD(m.parameters(), lr=0.01))
    calls = []
    step.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    step(BATCH)
    step(BATCH)
    assert len(calls) == 2


def test_at_the_plain_peak_updates_wait_where_early_ones_would_not_fit() -> None:
    """Adam's temporaries beside all activations are more than plain PyTorch ever holds."""
    _, plain, reference = both(lambda m: optim.Adam(m.parameters(), lr=0.01))
    module = network()
    optimizer = optim.Adam(module.parameters(), lr=0.01)
    traced = trace_step(module, mean_square, optimizer, (BATCH,), workspaces=True)
    at_the_end = PlainOrder(order=traced.step.plain).peak(traced.graph)
    step = compile_step(module, mean_square, optimizer, at_the_end)
    assert_equal_steps(step, plain)
    assert_equal_state(step.optimizer, reference)
    (plan,) = step.plans
    assert checkmate.keep_all_peak(plan.traced.graph) > plan.solution.problem.budget >= plan.solution.peak
    assert plan.solution.timeline.recomputes == 0


def test_a_replaced_parameter_is_refused_before_anything_runs() -> None:
    step, _, _ = both(lambda m: optim.SGD(m.parameters(), lr=0.1))
    step(BATCH)
    step.model[0].weight = nn.Parameter(torch.zeros(32, 8))
    before = [p.detach().clone() for p in step.model.parameters()]
    with pytest.raises(UnsupportedModelError, match=r"\(32, 8\) was replaced"):
        step(BATCH)
    torch.testing.assert_close(list(step.model.parameters()), before, rtol=0, atol=0)


def test_the_report_accounts_for_every_byte() -> None:
    step, _, _ = both(lambda m: optim.Adam(m.parameters(), lr=0.01), module=lambda: network()[3:])
    with pytest.raises(NoPlanError):
        step.report()
    x = torch.randn(256, 32)
    step(x)
    with memory_meter(step.model, step.optimizer, x) as meter:
        step(x)
    report = step.report(meter)
    assert sum(report.by_kind.values()) == report.peak == meter.peak
    assert report.by_kind[Kind.OPTIMIZER] == resident_bytes(step.optimizer)
    assert "gradient" in str(report)
    assert str(step.explain())


def test_each_kind_of_inputs_has_a_plan_up_to_the_limit() -> None:
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    step = compile_step(module, mean_square, optimizer, ENOUGH, max_plans=2)
    for batch in (4, 5, 4):
        step(torch.randn(batch, 8))
    assert len(step.plans) == 2
    with pytest.raises(TooManyPlansError, match="max_plans"):
        step(torch.randn(6, 8))
    step(torch.randn(4, 8))


@pytest.mark.parametrize("kind", ["SGD", "momentum", "AdamW"])
def test_graphs_of_the_user_notice_updates(kind: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    settings: dict[str, Any] = {"momentum": 0.9} if kind == "momentum" else {}
    optimizer = getattr(torch.optim, kind.replace("momentum", "SGD"))(model.parameters(), lr=0.1, **settings)
    step = compile_step(model, lambda model, x: model(x).square().mean(), optimizer, "1MiB")
    step(torch.ones(2, 4))
    states = [
        x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x) and x.dim()
    ]
    ones = [torch.ones_like(x, requires_grad=True) for x in (*model.parameters(), *states)]
    products = [(one * x.detach()).sum() for one, x in zip(ones, (*model.parameters(), *states), strict=True)]
    step(torch.ones(2, 4))
    for product in products:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_calls_that_only_accumulate_write_no_parameter() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = compile_step(model, lambda model, x: model(x).square().mean(), optimizer, "1MiB", accumulate=2)
    step(torch.ones(2, 4))
    step(torch.ones(2, 4))
    one = torch.ones_like(model.weight, requires_grad=True)
    product = (one * model.weight.detach()).sum()
    step(torch.ones(2, 4))
    product.backward()
    assert one.grad is not None
    assert torch.equal(one.grad, model.weight)
