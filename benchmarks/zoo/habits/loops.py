"""Habits of the loop itself: the optimizer, gradients, precision."""

from __future__ import annotations

from itertools import islice

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from zoo.habits.habit import Door, Steps, batch, habit, mlp, of, sgd, square, trained

__all__: list[str] = []


@habit("zero_grad before the forward pass")
def zero_before(door: Door) -> Steps:
    model = mlp()
    yield from trained(model, door(model))


@habit("zero_grad after the step")
def zero_after(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        loss = square(run(x), y)
        loss.backward()
        kept = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        yield [*of(model, more=[loss]), *kept]
        del kept


@habit("zero_grad between forward and backward pass")
def zero_between(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(4):
        x, y = batch(step)
        loss = square(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("zero_grad(set_to_none=False)")
def zero_in_place(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad(set_to_none=False)
        loss = square(run(x), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("gradients accumulated over three batches")
def accumulation(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(3):
            x, y = batch(3 * step + part)
            loss = square(run(x), y) / 3
            loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("a step skipped after the forward pass")
def skipped(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(4):
        x, y = batch(step)
        loss = square(run(x), y)
        if step == 1:
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("losses kept in a list, not detached")
def kept_losses(door: Door) -> Steps:
    model = mlp()
    run, optimizer, losses = door(model), sgd(model), []
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        losses.append(square(run(x), y))
        losses[-1].backward()
        optimizer.step()
        yield of(model, more=losses)


@habit("GradScaler and autocast")
def scaler(door: Door) -> Steps:
    model = mlp()
    run, optimizer, scaler = door(model), sgd(model), torch.amp.GradScaler("cpu")
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = square(run(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield of(model, more=[loss])


@habit("autocast to bfloat16")
def autocast(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = square(run(x).float(), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("clip_grad_norm_")
def clip_norm(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        yield of(model, more=[loss, norm])


@habit("clip_grad_value_")
def clip_value(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        clip_grad_value_(model.parameters(), 1e-3)
        optimizer.step()
        yield of(model, more=[loss])


@habit("an exponential moving average of the model")
def ema(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in trained(model, run, optimizer):
        average.update_parameters(model)
        yield of(model, average)


@habit("weight decay in parameter groups")
def groups(door: Door) -> Steps:
    model = mlp()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=1e-3)
    yield from trained(model, door(model, optimizer), optimizer)


@habit("a learning rate scheduler")
def scheduler(door: Door) -> Steps:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)
    for results in trained(model, door(model, optimizer), optimizer):
        schedule.step()
        yield results


@habit("the learning rate changed by hand")
def learning_rate(door: Door) -> Steps:
    model = mlp()
    optimizer = sgd(model)
    for results in trained(model, door(model), optimizer):
        optimizer.param_groups[0]["lr"] *= 0.5
        yield results


@habit("Adam, passed as optimizer=")
def adam(door: Door) -> Steps:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    yield from trained(model, door(model, optimizer), optimizer)


@habit("Adam, not passed")
def adam_not_passed(door: Door) -> Steps:
    model = mlp()
    yield from trained(model, door(model), torch.optim.Adam(model.parameters()), steps=4, size=128)


@habit("optimizer steps in backward hooks")
def in_backward(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def update(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    hooks = [p.register_post_accumulate_grad_hook(update) for p in model.parameters()]
    for step in range(3):
        x, y = batch(step)
        loss = square(run(x), y)
        loss.backward()
        yield of(model, more=[loss])
    for hook in hooks:  # they hold the parameters that hold them, which no garbage collector sees
        hook.remove()


@habit("a closure passed to optimizer.step")
def closure(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)

        def again(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = square(run(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(again)
        yield of(model, more=[loss])


@habit("LBFGS, several passes in one step")
def lbfgs(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=2)
    for _ in range(3):
        x, y = batch(0)

        def again(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = square(run(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(again)
        yield of(model, more=[loss])


@habit("two passes in one step (sharpness-aware)")
def two_passes(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        square(run(x), y).backward()
        shifts = [0.05 * p.grad for p in model.parameters()]
        with torch.no_grad():
            for p, shift in zip(model.parameters(), shifts, strict=True):
                p.add_(shift)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        with torch.no_grad():
            for p, shift in zip(model.parameters(), shifts, strict=True):
                p.sub_(shift)
        optimizer.step()
        optimizer.zero_grad()
        del shifts
        yield of(model, more=[loss])


@habit("a gradient read and changed before the step")
def changed_gradient(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward()
        for p in islice(model.parameters(), 2):
            p.grad.data.mul_(0.5)
        optimizer.step()
        yield of(model, more=[loss])
