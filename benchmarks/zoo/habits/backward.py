"""Habits of the backward pass, hooks and several calls for one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.habits.habit import Door, Steps, batch, habit, mlp, of, sgd, square, trained

__all__: list[str] = []


@habit("backward twice, with retain_graph")
def retained(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("double backward (a gradient penalty)")
def double_backward(door: Door) -> Steps:
    model = mlp(4, nn.Tanh)
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, _ = batch(step)
        x.requires_grad_()
        optimizer.zero_grad()
        outputs = run(x)
        (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
        loss = outputs.square().mean() + (gradient.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("two losses, one backward pass each")
def two_losses(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        outputs = run(x)
        first, second = square(outputs, y), outputs.abs().mean()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        yield of(model, more=[first, second])


@habit("autograd.grad instead of backward")
def autograd_grad(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    for step in range(3):
        x, y = batch(step)
        loss = square(run(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.sub_(gradient, alpha=0.01)
        yield of(model, more=[loss, *gradients])
        del gradients


@habit("a siamese network: two calls, one backward pass")
def siamese(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(4):
        x, _ = batch(step)
        optimizer.zero_grad()
        loss = square(run(x), run(x.flip(0)))
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("a GAN: two models, two optimizers")
def gan(door: Door) -> Steps:
    generator = nn.Sequential(*mlp()[:-1], nn.Linear(64, 64))
    critic = nn.Sequential(*mlp()[:-1], nn.Linear(64, 1))
    make, judge = door(generator), door(critic)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for step in range(5):
        x, _ = batch(step)
        of_critic.zero_grad()
        fake = make(x)
        critic_loss = judge(fake.detach()).sigmoid().mean() - judge(x).sigmoid().mean()
        critic_loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = -judge(fake).sigmoid().mean()
        loss.backward()
        of_generator.step()
        yield of(generator, critic, more=[loss, critic_loss])
        del fake


@habit("an encoder and a decoder, one optimizer")
def two_models(door: Door) -> Steps:
    encoder, decoder = mlp()[:-1], mlp()
    optimizer = sgd(encoder, decoder)
    encode, decode = door(encoder), door(decoder)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(decode(encode(x)), y)
        loss.backward()
        optimizer.step()
        yield of(encoder, decoder, more=[loss])


@habit("a teacher without gradients")
def teacher(door: Door) -> Steps:
    model, fixed = mlp(), mlp().eval().requires_grad_(False)
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, _ = batch(step)
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = fixed(x)
        loss = square(run(x), wanted)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("a forward hook that reads")
def forward_hook(door: Door) -> Steps:
    model, seen = mlp(), []
    model[3].register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach().mean()))
    for results in trained(model, door(model)):
        yield [*results, seen[-1]]


@habit("a forward hook added after compiling")
def late_hook(door: Door) -> Steps:
    model, seen = mlp(), []
    for step, results in enumerate(trained(model, door(model), steps=4)):
        yield [*results, *seen[-1:]]
        if step == 0:
            model[3].register_forward_hook(
                lambda _module, _inputs, output: seen.append(output.detach().mean())
            )


@habit("a forward hook that changes the output")
def changing_hook(door: Door) -> Steps:
    model = mlp()
    model[3].register_forward_hook(lambda _module, _inputs, output: output * 0.5)
    yield from trained(model, door(model))


@habit("a hook on the whole model")
def outer_hook(door: Door) -> Steps:
    model, seen = mlp(), []
    run = door(model)
    run.register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach().mean()))
    for results in trained(model, run):
        yield [*results, seen[-1]]


@habit("a full backward hook")
def backward_hook(door: Door) -> Steps:
    model, seen = mlp(), []
    model[3].register_full_backward_hook(lambda _module, _inputs, outputs: seen.append(outputs[0].norm()))
    for results in trained(model, door(model)):
        yield [*results, seen[-1]]


@habit("a hook on a parameter's gradient")
def parameter_hook(door: Door) -> Steps:
    model = mlp()
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    yield from trained(model, door(model))


@habit("a tensor hook in forward")
def tensor_hook(door: Door) -> Steps:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = mlp()[:-1], nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.body(x)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))
            return self.head(hidden)

    model = Hooked()
    yield from trained(model, door(model))


@habit("a hook on the output")
def output_hook(door: Door) -> Steps:
    model = mlp()

    def call(run: Any, x: Tensor) -> Tensor:
        outputs = run(x)
        outputs.register_hook(lambda gradient: gradient * 0.5)
        outputs.retain_grad()
        return outputs

    yield from trained(model, door(model), call=call)


@habit("anomaly mode")
def anomaly(door: Door) -> Steps:
    model = mlp()
    with torch.autograd.set_detect_anomaly(True):
        yield from trained(model, door(model))


@habit("saved tensors hooks around the step")
def saved_hooks(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            loss = square(run(x), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])


@habit("torch.func.functional_call")
def functional_call(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        doubled = {name: 2 * p for name, p in model.named_parameters()}
        loss = square(torch.func.functional_call(run, doubled, (x,)), y)
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])
        del doubled


@habit("torch.func.grad over the model")
def func_grad(door: Door) -> Steps:
    model = mlp()
    run = door(model)
    for step in range(3):
        x, y = batch(step)

        def loss_of(parameters: Any, x: Tensor = x, y: Tensor = y) -> Tensor:
            return square(torch.func.functional_call(run, parameters, (x,)), y)

        gradients = torch.func.grad(loss_of)({k: p.detach() for k, p in model.named_parameters()})
        yield list(gradients.values())
        del gradients


@habit("only a part of the outputs in the loss")
def partial_loss(door: Door) -> Steps:
    model = mlp()
    run, optimizer = door(model), sgd(model)
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = square(run(x)[:100], y[:100])
        loss.backward()
        optimizer.step()
        yield of(model, more=[loss])
