"""Modules that are hard to trace: each trains the same, to the bit, with all of forward recomputed."""

from __future__ import annotations

import copy
import dataclasses
import math
import shutil
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from checkmate.plugins import Solver
from checkmate_torch import compile
from checkmate_torch.private import tree_leaves
from checkmate_torch.running.fusing import measuring
from zoo.small_torch import perceptron

network = partial(perceptron, 16, 64, 64, 16)


class Tied(nn.Module):
    """A tied weight, a dict of outputs, an unused and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = network()
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(30, 30)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        ids = x.abs().mul(10).long().clamp(max=49)
        return {
            "logits": self.head(self.frozen(self.body(self.embed(ids)))),
            "more": [self.embed(ids).mean()],
        }


class Squared(torch.autograd.Function):
    """Saves a tensor for backward, and puts another on ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.double = 2 * x
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (ctx.double + 0 * x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = network(), network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Squared.apply(self.a(x)).tanh())


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(x).float()


class UserCheckpoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Sequential(network(), nn.Dropout(0.2)), network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(checkpoint(self.a, x, use_reentrant=False))


class InPlaceInput(nn.Module):
    """Changes its input in place, which the caller sees."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return self.body(functional.gelu(x + 1))


class Counted(torch.autograd.Function):
    """Adds up its gradients in a buffer: a side effect of the backward pass."""

    @staticmethod
    def forward(ctx, x, total):
        ctx.save_for_backward(x)
        ctx.total = total
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        ctx.total.add_(grad.sum(0))
        return grad * ctx.saved_tensors[0].cos(), None


class WritesInBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = network(), network()
        self.register_buffer("total", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Counted.apply(self.a(x), self.total))


class NormThenOverwrite(nn.Module):
    """A batch norm reads its input before that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, affine=False)
        self.body = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        x.mul_(0.5)
        return self.body(functional.gelu(h))


class ReadsStatistics(nn.Module):
    """Uses the running variance that its batch norm has just updated."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = network(), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.body(x)).relu()
        return (h * self.norm.running_var.clone().sin()).tanh()


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.body(x)) * (1 + 2j)).tanh()


class Between(nn.Module):
    """Something awkward between two networks."""

    def __init__(self, middle: Callable[[torch.Tensor], object], **modules: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.middle = network(), network(), middle
        self.inside = nn.ModuleDict(modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.middle(self.a(x), *self.inside.values()))


class Counts(nn.Module):
    """Counts its calls and averages its inputs, in buffers that it reads afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("replaced", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.detach().mean(0), 0.1)
        self.replaced = self.replaced * 1.1
        return ((x - self.mean) * self.calls * self.replaced).tanh()


def in_place_on_views(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, :4].mul_(2)
    y[1].add_(1)
    upper, lower = y.chunk(2, 0)
    turned = (lower * 2).t_().tanh_()
    return torch.cat([upper.clone().relu_(), turned.t()])


def index_writes(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(64, 16)
    y[torch.arange(64) % 50] = x
    y.index_add_(0, torch.arange(64) % 7, x)
    values, order = y.scatter_add(0, torch.zeros(64, 16, dtype=torch.long), x).sort(1)
    return values * order


def hooked(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda grad: grad * 2)
    return x.sin()


def energy_gradient(x: torch.Tensor, f: nn.Module) -> torch.Tensor:
    return torch.autograd.grad(f(x).square().sum(), x, create_graph=True)[0]


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@dataclasses.dataclass
class Two:
    hidden: torch.Tensor
    result: torch.Tensor
    size: int = 0


class Pair(NamedTuple):
    hidden: torch.Tensor
    rest: list[object]


class Returns(nn.Module):
    """Returns its results in a container of some kind, beside values without a gradient."""

    def __init__(self, wrap: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.a, self.b, self.wrap = network(), network(), wrap

    def forward(self, x: torch.Tensor) -> object:
        hidden = self.a(x).tanh()
        return self.wrap(hidden, self.b(hidden))


AWKWARD: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "custom function": Custom,
    "autocast": Autocast,
    "checkpoint inside": UserCheckpoint,
    "in-place input": InPlaceInput,
    "complex": Complex,
    "writes in backward": WritesInBackward,
    "norm, then overwrite": NormThenOverwrite,
    "reads statistics": ReadsStatistics,
    "batch norm without statistics": lambda: nn.Sequential(
        network(), nn.BatchNorm1d(16, track_running_stats=False), network()
    ),
    "batch norm with a cumulative average": lambda: nn.Sequential(
        network(), nn.BatchNorm1d(16, momentum=None), network()
    ),
    "shared norm": lambda: Between(lambda x, n: n(n(x).tanh()), norm=nn.BatchNorm1d(16)),
    "instance norm": lambda: Between(
        lambda x, n: n(x.view(4, 16, 16)).view(64, 16).tanh(),
        norm=nn.InstanceNorm1d(16, track_running_stats=True, affine=True),
    ),
    "spectral norm": lambda: Between(
        lambda x, f: f(x).tanh(), f=nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
    ),
    "buffers": lambda: Between(lambda x, counts: counts(x), counts=Counts()),
    "in-place on views": lambda: Between(in_place_on_views),
    "index writes": lambda: Between(index_writes),
    "hook": lambda: Between(hooked),
    "gradient inside": lambda: Between(energy_gradient, f=nn.Tanh()),
    "rows by data": lambda: Between(lambda x: x[x[:, 0] > 0].sin()),
    "cond": lambda: Between(branches),
    "dataclass": lambda: Returns(lambda h, y: Two(h, y, size=h.shape[0])),
    "named tuple": lambda: Returns(lambda h, y: Pair(h, [y, h.argmax(1), None, "name"])),
    "eval": lambda: nn.Sequential(network(), nn.BatchNorm1d(16), nn.Dropout(0.5), network()).eval(),
}


def loss_of(output: object) -> torch.Tensor:
    if dataclasses.is_dataclass(output):
        output = vars(output)
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.square().mean() for tensor in tensors if tensor.requires_grad)


def training(module: nn.Module) -> list[torch.Tensor]:
    seen = []
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(64, 16)
        module.zero_grad()
        loss = loss_of(module(x))
        loss.backward()
        seen += [x, loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
    return [*seen, *module.buffers(), torch.get_rng_state()]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch.cond does
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_models_train_the_same(name: str, forgetful: Solver) -> None:
    torch.manual_seed(3)
    module = AWKWARD[name]()
    reference = training(copy.deepcopy(module))
    compiled = compile(module, 2**40, solver=forgetful)
    for mine, theirs in zip(training(compiled), reference, strict=True):
        assert torch.equal(mine, theirs)
    (plan,) = compiled.plans
    assert plan.solution.timeline.recomputes > 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_models_train_the_same_by_fused_kernels(
    name: str, forgetful: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "seconds_alone", lambda _graph, _ops: math.inf)  # fuse all
    torch.manual_seed(3)
    module = AWKWARD[name]()
    reference = training(copy.deepcopy(module))
    compiled = compile(module, 2**40, solver=forgetful, lowering="inductor")
    for mine, theirs in zip(training(compiled), reference, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


class Views(nn.Module):
    """Returns views, aliases, its input and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = network(), network()

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        h = self.a(x).tanh()
        return [h, h[:32], h.t(), x, x[3:], self.a[0].weight, self.b(h)]


def test_returned_views_are_views_and_gradients_those_of_the_same_trace(forgetful: Solver) -> None:
    """AOTAutograd adds up the gradients of aliased outputs in an order of its own."""
    module = Views()
    reference = training(torch.compile(copy.deepcopy(module), backend="aot_eager", dynamic=False))
    plain = training(copy.deepcopy(module))
    compiled = compile(module, 2**40, solver=forgetful)
    for mine, traced, eager in zip(training(compiled), reference, plain, strict=True):
        assert torch.equal(mine, traced)
        torch.testing.assert_close(mine, eager)
    x = torch.randn(64, 16)
    outputs = compiled(x)
    assert outputs[3] is x
    assert outputs[4]._base is x
    assert outputs[5] is module.a[0].weight
    assert outputs[1].data_ptr() == outputs[0].data_ptr() == outputs[2].data_ptr()


def every_random_op(x: torch.Tensor) -> torch.Tensor:
    images = x.view(4, 16, 4, 4)
    x = functional.dropout(x, 0.2) + functional.dropout2d(images, 0.2).view(64, 16)
    x = functional.alpha_dropout(x, 0.2, training=True) + torch.rand_like(x) * torch.rand(64, 16)
    x = x + functional.feature_alpha_dropout(images, 0.2, training=True).view(64, 16)
    x = x * torch.bernoulli(torch.full_like(x, 0.8)) + x.sin() * torch.empty_like(x).bernoulli_(0.4)
    x = x.tanh() * torch.randn(64, 16) + x * torch.normal(0.0, 1.0, (64, 16)) + torch.normal(x.detach(), 0.1)
    x = x.cos() * torch.empty(64, 16).normal_() + x * torch.empty(64, 16).uniform_()
    x = x * torch.empty(64, 16).exponential_() + x * torch.poisson(torch.ones(64, 16))
    x = x[torch.randperm(64)] * torch.randint(0, 3, (64, 16)) + x[torch.multinomial(torch.ones(64), 64)]
    x = functional.gumbel_softmax(x) + functional.rrelu(x, training=True) * torch.randn_like(x)
    queries = x.reshape(4, 2, 8, 16)
    return functional.scaled_dot_product_attention(queries, queries, queries, dropout_p=0.3).view(64, 16)


def test_every_random_op_is_replayed_exactly(forgetful: Solver) -> None:
    module = Between(every_random_op)
    reference = training(copy.deepcopy(module))
    compiled = compile(module, 2**40, solver=forgetful)
    for mine, theirs in zip(training(compiled), reference, strict=True):
        assert torch.equal(mine, theirs)
    (plan,) = compiled.plans
    again = {plan.traced.nodes[i].target for i in (plan.solution.timeline.runs > 1).nonzero()[0]}
    assert len([target for target in again if torch.Tag.nondeterministic_seeded in target.tags]) >= 8


def test_unused_parameters_and_old_gradients_count() -> None:
    module, x = Tied(), torch.randn(64, 16)
    compiled = compile(module, "100%")
    loss_of(compiled(x)).backward()
    parameters = sum(p.nbytes for p in module.parameters())
    assert compiled.plans[0].traced.graph.base_size >= parameters + x.nbytes
    again = compile(module, "100%")
    loss_of(again(x)).backward()
    gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
    grown = again.plans[0].traced.graph.base_size - compiled.plans[0].traced.graph.base_size
    assert grown == gradients
