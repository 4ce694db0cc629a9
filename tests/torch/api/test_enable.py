"""A model that trains in place: it stays itself, and its step stays within the budget."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import nn

import checkmate
from checkmate.report import Kind
from checkmate_torch import (
    PlannedTraining,
    compile,
    disable,
    enable,
    last_plan,
    memory_meter,
    planned_training,
)

MODELS = "checkmate_torch"


class Blocks(nn.Module):
    """Residual blocks; with a graph break after every second one, if asked."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(6)
        )
        self.breaks = breaks

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """The mean square of the last block's output, scaled."""
        a, b, c, d, e, f = self.blocks
        x = x + a(x)
        x = x + b(x)
        if self.breaks:
            torch._dynamo.graph_break()  # noqa: TID251 - as users' code does
        x = x + c(x)
        x = x + d(x)
        if self.breaks:
            torch._dynamo.graph_break()  # noqa: TID251
        x = x + e(x)
        return (x + f(x)).square().mean() * scale


class Counting(Blocks):
    """Counts its calls."""

    calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """As above."""
        self.calls += 1
        return super().forward(x, scale)


Step = Callable[[nn.Module], object]


def once(model: nn.Module, x: torch.Tensor) -> object:
    return model(x).backward()


def twice(model: nn.Module, x: torch.Tensor) -> object:
    return (model(x) + model(x.flip(0))).backward()


def repeated(model: nn.Module, x: torch.Tensor) -> object:
    loss = model(x)
    loss.backward(retain_graph=True)
    return (2 * loss).backward()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def peak_of(model: nn.Module, step: Step, *resident: object) -> int:
    model.zero_grad()
    with memory_meter(model, *resident) as meter:
        step(model)
    return meter.peak


def same(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own, at a break
@pytest.mark.parametrize(
    ("breaks", "step", "share"),
    [(False, once, 0.6), (False, twice, 0.7), (False, repeated, 0.7), (True, once, 0.6)],
    ids=["one graph", "two calls", "two backward passes", "three pieces"],
)
def test_every_step_has_the_bits_of_plain_pytorch_and_stays_within_the_budget(
    breaks: bool, step: Callable[[nn.Module, torch.Tensor], object], share: float
) -> None:
    torch.manual_seed(0)
    model, x = Blocks(breaks), torch.randn(512, 32)
    plain = copy.deepcopy(model)
    run = partial(step, x=x)
    budget = int(share * peak_of(plain, run, x))
    training = enable(model, budget, cost_model="flops")
    for _ in range(3):
        model.zero_grad()
        run(model)
        assert same(gradients(model), gradients(plain))
    plans = training.plans
    assert peak_of(model, run, x) <= budget
    assert same(gradients(model), gradients(plain))
    assert training.plans == plans  # the same ones: nothing is planned again
    peaks = [plan.solution.peak for plan in training.plans]
    assert max(peak for peak in peaks if peak is not None) <= budget


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own
def test_two_models_in_one_step_share_the_smaller_budget() -> None:
    def net() -> nn.Module:
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())))

    torch.manual_seed(0)
    models, x = nn.ModuleList([net(), net()]), torch.randn(512, 32)
    plain = copy.deepcopy(models)

    def step(models: nn.Module) -> object:
        first, second = models  # type: ignore[misc]
        return second(first(x)).square().mean().backward()

    budget = int(0.75 * peak_of(plain, step, x))
    for model, room in zip(models, (1, 2), strict=True):
        enable(model, room * budget, cost_model="flops")
    for _ in range(3):
        models.zero_grad()
        step(models)
        assert same(gradients(models), gradients(plain))
    assert peak_of(models, step, x) <= budget


def test_the_model_stays_itself() -> None:
    model = Blocks()
    training = enable(model, "8GiB", cost_model="flops")
    assert type(model) is Blocks
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    assert planned_training(model) is training
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (torch.load(buffer, weights_only=False), torch.nn.Sequential(model)):
        assert planned_training(other) is None
    model(torch.randn(8, 32)).backward()
    with torch.no_grad():
        model(torch.randn(9, 32))
    assert len(training.plans) == 1
    disable(model)
    assert planned_training(model) is None
    model(torch.randn(10, 32)).backward()
    assert len(training.plans) == 1


def test_an_assigned_forward_is_called_planned_and_does_not_recurse() -> None:
    """As accelerate assigns one under mixed precision."""
    for wrap in (lambda model: model, lambda model: compile(model, "8GiB", cost_model="flops")):
        model = wrap(Blocks())
        if isinstance(model, Blocks):
            enable(model, "8GiB", cost_model="flops")
        inner, seen = model.forward, []

        def forward(
            *args: object, inner: Callable[..., torch.Tensor] = inner, seen: list[int] = seen
        ) -> object:
            seen.append(1)
            return inner(*args) * 2

        model.forward = forward
        model(torch.randn(8, 32)).backward()
        assert seen


def test_direct_calls_of_forward_are_planned() -> None:
    model, x = Blocks(), torch.randn(8, 32)
    plain = model.forward(x, scale=2.0)
    training = enable(model, "8GiB", cost_model="flops")
    planned = model.forward(x, scale=2.0)
    assert torch.equal(plain, planned)
    assert model.forward.__func__ is Blocks.forward  # which accelerate wraps
    twin = copy.deepcopy(model)
    twin.forward(x).backward()
    assert [len(found.plans) for found in (training, planned_training(twin)) if found] == [1, 1]
    hook = model.register_forward_hook(lambda *_: torch.zeros(()))
    assert torch.equal(model.forward(x, scale=2.0), plain)
    hook.remove()
    inner = model.forward
    model.forward = lambda *args: inner(*args) + 1
    assert torch.equal(model.forward(x), plain / 2 + 1)
    assert len(training.plans) == 1
    gone = weakref.ref(twin)
    del twin
    assert gone() is None


def test_batches_and_models_are_freed_with_their_last_reference() -> None:
    model, x = Blocks(), torch.randn(8, 32)
    training = enable(model, "8GiB", cost_model="flops")
    model(x).backward()
    gone, batch = weakref.ref(model), weakref.ref(x)
    gc.disable()
    try:
        del x
        assert batch() is None
        del model
        assert gone() is None
    finally:
        gc.enable()
    assert isinstance(training, PlannedTraining)
    assert len(training.plans) == 1


def test_an_optimizer_is_noticed_and_the_budget_holds_with_its_state() -> None:
    torch.manual_seed(0)
    x = torch.randn(128, 32)
    steps: list[list[torch.Tensor]] = []
    for budget in (None, "70%"):
        torch.manual_seed(1)
        model = Blocks()
        training = enable(model, budget, cost_model="flops", split=False) if budget else None
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
        steps.append([p.detach().clone() for p in model.parameters()])
    assert same(*steps)
    assert training is not None
    (plan,) = training.plans
    assert plan.account.fixed[Kind.OPTIMIZER] == sum(
        v.nbytes for state in optimizer.state.values() for v in state.values()
    )
    peak = peak_of(model, partial(once, x=x), x, optimizer)
    assert peak <= plan.solution.problem.budget
    model.zero_grad()
    roomy = enable(model, "8GiB", cost_model="flops")
    model(x).backward()
    (first,) = roomy.plans
    torch.optim.Adam(model.parameters()).step()
    (charged,) = roomy.plans  # the same schedule, with the state
    assert charged.solution.schedule is first.solution.schedule
    assert charged.solution.peak == (first.solution.peak or 0) + charged.account.fixed[Kind.OPTIMIZER]


def test_a_budget_without_room_for_the_optimizer_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Blocks(), torch.randn(32, 32)
    least = enable(model, "8GiB", cost_model="flops")
    model(x).backward()
    floor = checkmate.minimum_budget(least.plans[0].traced.graph, fixed_order=True).peak
    assert floor is not None
    for strict in (False, True):
        training = enable(model, floor, strict=strict, cost_model="flops")
        optimizer = torch.optim.Adam(model.parameters())
        with caplog.at_level(logging.WARNING, MODELS):
            for step in range(3):
                optimizer.zero_grad()
                if strict and step == 1:
                    with pytest.raises(checkmate.InfeasibleBudgetError):
                        model(x)
                    break
                model(x).backward()
                optimizer.step()
        assert len(training.plans) == 1
    assert caplog.text.count("optimizer's state") == 1


def test_a_deep_copy_has_plans_of_its_own_as_long_as_the_model_is_enabled() -> None:
    model, x = Blocks(), torch.randn(8, 32)
    training = enable(model, "8GiB", cost_model="flops")
    twin = copy.deepcopy(copy.deepcopy(model))
    found = planned_training(twin)
    assert found is not None
    assert found.options == training.options
    twin(x).backward()
    assert (len(found.plans), len(training.plans)) == (1, 0)
    disable(model)
    assert planned_training(copy.deepcopy(model)) is None
    gone = weakref.ref(twin)
    del twin
    assert gone() is None


def test_a_generator_is_an_input_like_a_list() -> None:
    class Summed(nn.Linear):
        def forward(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            return sum((super(Summed, self).forward(part).sum() for part in parts), torch.zeros(()))

    model, x = Summed(32, 1), torch.randn(8, 32)
    training = enable(model, "8GiB", strict=True, cost_model="flops")
    model(part for part in x.chunk(2)).backward()
    assert len(training.plans) == 1


def test_changing_inputs_never_end_a_training(caplog: pytest.LogCaptureFixture) -> None:
    model = Counting()
    training = enable(model, "8GiB", cost_model="flops", max_plans=3)
    with caplog.at_level(logging.WARNING, MODELS):
        for k in range(12):
            model(torch.randn(2 + 3 * (k % 5), 32), scale=1.0 + k).backward()
    assert len(training.plans) <= 3
    assert model.calls == 12


def test_what_is_no_module_or_compiled_already_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        enable(lambda x: x, "8GiB")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="original"):
        enable(compile(Blocks(), "8GiB"), "8GiB")
    model = Blocks()
    model.compile(backend="eager")
    with pytest.raises(TypeError, match=r"compiled by torch\.compile"):
        enable(model, "8GiB")


def test_an_outer_torch_compile_keeps_the_budget() -> None:
    for planned in (compile(Blocks(), "8GiB", cost_model="flops"), Blocks()):
        training = enable(planned, "8GiB", cost_model="flops") if isinstance(planned, Blocks) else planned
        torch.compile(planned, backend="eager")(torch.randn(8, 32)).backward()
        assert len(training.plans) == 1


def test_the_backend_counts_gradients_passes_errors_and_shows_its_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, x = Blocks(), torch.randn(256, 32)
    infeasible = torch.compile(model, backend="checkmate", options={"budget": "40KiB", "cost_model": "flops"})
    with pytest.raises(checkmate.InfeasibleBudgetError, match="least budget"):
        infeasible(x)
    with pytest.raises(TypeError, match="did you mean 'budget'"):
        torch.compile(model, backend="checkmate", options={"budged": "8GiB"})(x)
    trial = torch.compile(model, backend="checkmate", options={"budget": "70%", "cost_model": "flops"})
    trial(x).backward()
    budget = last_plan().solution.peak
    model.zero_grad()
    compiled = torch.compile(model, backend="checkmate", options={"budget": budget, "cost_model": "flops"})
    with caplog.at_level(logging.WARNING, MODELS):
        for _ in range(3):
            compiled(x).backward()
    assert "gradients of" in caplog.text
    assert last_plan().account.fixed[Kind.EARLIER_GRADIENTS] == sum(p.nbytes for p in model.parameters())
    with memory_meter(model, x) as meter:
        compiled(x).backward()
    assert budget is not None
    assert meter.peak <= budget


def test_calls_that_another_compilation_replaces_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Blocks(), torch.randn(16, 32)
    enable(model, "8GiB", cost_model="flops")
    model.compile(backend="eager")
    with caplog.at_level(logging.WARNING, MODELS):
        model(x).backward()
        torch.optim.SGD(model.parameters()).step()
    assert "Blocks.compile() has replaced the planned calls" in caplog.text
