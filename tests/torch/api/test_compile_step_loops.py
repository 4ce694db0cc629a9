"""Whole steps as in loops that accumulate gradients or scale the loss: the same bits, within the budget."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn, optim
from torch.amp import GradScaler

from checkmate.report import Kind
from checkmate_torch import compile_step, memory_meter
from zoo.small_torch import perceptron

NOT_FINITE = 3


def network() -> nn.Sequential:
    return perceptron(64, 64, 64, 64, 4, dropout=0.1)


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def batches() -> list[Tensor]:
    """Eight batches, one of which gives gradients that are not finite."""
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(1024, 64, generator=generator) for _ in range(8)]
    found[NOT_FINITE].fill_(torch.inf)
    return found


def loop(
    model: nn.Module,
    optimizer: optim.Optimizer,
    scaler: GradScaler | None,
    accumulate: int,
    max_norm: float | None,
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The loop of PyTorch's documentation."""

    def run(data: Sequence[Tensor]) -> list[Tensor]:
        losses = []
        for k, x in enumerate(data):
            if k % accumulate == 0:
                optimizer.zero_grad()
            loss = mean_square(model, x)
            losses.append(loss.detach())
            (loss if scaler is None else scaler.scale(loss)).backward()
            if (k + 1) % accumulate:
                continue
            if scaler is not None:
                scaler.unscale_(optimizer)
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        return losses

    return run


@pytest.mark.parametrize(
    ("accumulate", "scaled", "max_norm", "make"),
    [
        (1, True, 0.05, optim.AdamW),
        (2, True, None, optim.Adafactor),
        (4, False, 0.05, optim.RMSprop),
    ],
)
def test_same_bits_as_the_loop_by_hand_within_the_budget(
    accumulate: int, scaled: bool, max_norm: float | None, make: type[optim.Optimizer]
) -> None:
    module, plain, data = network(), network(), batches()
    if not scaled:
        data[NOT_FINITE].fill_(1.0)
    optimizer, reference = make(module.parameters(), lr=0.01), make(plain.parameters(), lr=0.01)
    scaler, theirs = (
        GradScaler("cpu", init_scale=1024.0, growth_interval=2) if scaled else None for _ in range(2)
    )
    stepped = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    step = compile_step(
        module,
        mean_square,
        optimizer,
        "70%",
        max_norm=max_norm,
        accumulate=accumulate,
        scaler=scaler,
        cost_model="flops",
    )
    torch.manual_seed(1)
    losses = [step(x) for x in data]
    torch.manual_seed(1)
    expected = loop(plain, reference, theirs, accumulate, max_norm)(data)

    torch.testing.assert_close(losses, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict(), reference.state_dict(), rtol=0, atol=0)
    assert len(stepped) == len(data) // accumulate - scaled
    assert all(p.grad is None for p in module.parameters())
    if scaler is not None and theirs is not None:
        assert scaler.state_dict() == theirs.state_dict()
    (plan,) = step.plans
    peaks = []
    for x in [data[0]] * accumulate:
        with memory_meter(module, optimizer, x) as meter:
            step(x)
        peaks.append(meter.peak)
    assert plan.solution.timeline.recomputes > 0
    assert plan.solution.peak <= plan.solution.problem.budget
    assert max(peaks) == pytest.approx(plan.solution.peak, rel=0.01)


def test_gradients_that_wait_are_charged_and_begin_again_after_an_error() -> None:
    module, plain, x = network(), network(), torch.randn(8, 64)
    module.eval()
    plain.eval()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    step = compile_step(module, mean_square, optimizer, "100%", accumulate=2, cost_model="flops")
    step(x)
    held = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
    assert held == sum(p.nbytes for p in module.parameters())
    assert step.report().by_kind[Kind.EARLIER_GRADIENTS] == held
    with pytest.raises(RuntimeError):
        step(torch.randn(8, 3))
    loop(plain, optim.SGD(plain.parameters(), lr=0.1), None, 2, None)([x, x])
    before = copy.deepcopy(module.state_dict())
    step(x)
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    step(x)
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_no_number_of_calls_is_below_one() -> None:
    module = network()
    with pytest.raises(ValueError, match="accumulate is the number of calls"):
        compile_step(module, mean_square, optim.SGD(module.parameters(), lr=0.1), "100%", accumulate=0)
