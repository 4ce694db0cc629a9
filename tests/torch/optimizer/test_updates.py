"""Updates of one parameter at a time: bit for bit what the optimizer does with all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn, optim
from torch.optim import Optimizer

from checkmate_torch import UnsupportedOptimizerError
from checkmate_torch.costs.meter import resident_bytes
from checkmate_torch.optimizer.meta_step import optimizer_bytes
from checkmate_torch.optimizer.updates import Updates, settings_of

Make = Callable[[nn.Module], Optimizer]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False))


def groups(module: nn.Module) -> list[dict[str, object]]:
    """Two groups with settings of their own, the second with the first module's bias alone."""
    first, second = module.children()
    return [
        {"params": [first.weight, second.weight], "weight_decay": 0.1},
        {"params": [first.bias], "weight_decay": 0.0, "lr": 0.3},
    ]


class Counting(optim.Optimizer):
    """Counts its steps in an attribute and in its groups, and overwrites gradients, as older code does."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            group["t"] = group.get("t", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    seen = self.state[p].setdefault("seen", torch.zeros_like(p))
                    seen.mul_(0.9).add_(p.grad.sign_(), alpha=0.1)
                    p.sub_(seen, alpha=group["lr"] / (group["t"] + self.steps))


class Decayed(optim.SGD):
    """A subclass with a term of its own."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] ** 2)
        super().step()


def matrices(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.dim() == 2]


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda m: optim.SGD(groups(m), lr=0.1),
    "sgd-momentum": lambda m: optim.SGD(groups(m), lr=0.1, momentum=0.9, dampening=0.1),
    "sgd-nesterov": lambda m: optim.SGD(groups(m), lr=0.1, momentum=0.9, nesterov=True),
    "sgd-maximize": lambda m: optim.SGD(groups(m), lr=0.1, maximize=True),
    "sgd-foreach": lambda m: optim.SGD(groups(m), lr=0.1, momentum=0.9, foreach=True),
    "sgd-fused": lambda m: optim.SGD(groups(m), lr=0.1, momentum=0.9, fused=True),
    "adam": lambda m: optim.Adam(groups(m), lr=0.1),
    "adam-amsgrad": lambda m: optim.Adam(groups(m), lr=0.1, amsgrad=True),
    "adam-foreach": lambda m: optim.Adam(groups(m), lr=0.1, foreach=True, maximize=True),
    "adam-fused": lambda m: optim.Adam(groups(m), lr=0.1, fused=True),
    "adam-tensor-lr": lambda m: optim.Adam(m.parameters(), lr=torch.tensor(0.1)),
    "adamw": lambda m: optim.AdamW(groups(m), lr=0.1),
    "adamax": lambda m: optim.Adamax(groups(m), lr=0.1, foreach=True),
    "nadam": lambda m: optim.NAdam(groups(m), lr=0.1),
    "radam": lambda m: optim.RAdam(groups(m), lr=0.1),
    "rmsprop": lambda m: optim.RMSprop(groups(m), lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda m: optim.Adagrad(groups(m), lr=0.1),
    "adadelta": lambda m: optim.Adadelta(groups(m), lr=0.1),
    "asgd": lambda m: optim.ASGD(groups(m), lr=0.1),
    "rprop": lambda m: optim.Rprop(m.parameters(), lr=0.1, foreach=True),
    "adafactor": lambda m: optim.Adafactor(groups(m), lr=0.1),
    "muon": lambda m: optim.Muon(matrices(m), lr=0.1),
    "subclass": lambda m: Decayed(groups(m), lr=0.1, momentum=0.9),
    "third-party": lambda m: Counting(groups(m), lr=0.1),
}


def random_gradients(module: nn.Module, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) for p in module.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_same_bits_and_same_state_as_all_at_once(name: str) -> None:
    plain, module = network(), network()
    reference, optimizer = OPTIMIZERS[name](plain), OPTIMIZERS[name](module)
    updates = Updates(optimizer=optimizer)
    for step in range(4):
        gradients = random_gradients(plain, step)
        for p, gradient in zip(plain.parameters(), gradients, strict=True):
            p.grad = gradient.clone()
        reference.step()
        given = [gradient.clone() for gradient in gradients]
        for p, gradient in reversed([*zip(module.parameters(), given, strict=True)]):
            if (update := updates.of(p)) is not None:
                update(p, gradient)
            assert p.grad is None
        optimizer.step()  # no gradients: it counts
        for gradient, before in zip(given, gradients, strict=True):
            assert torch.equal(gradient, before)  # read-only: another update may read it too
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    torch.testing.assert_close(optimizer.state_dict(), reference.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sgd-momentum", "adam-amsgrad", "adagrad"])
def test_a_profile_leaves_no_trace(name: str) -> None:
    module = network()
    optimizer = OPTIMIZERS[name](module)
    before = copy.deepcopy((module.state_dict(), optimizer.state_dict())), torch.get_rng_state()
    for p in module.parameters():
        update = Updates(optimizer=optimizer).of(p)
        assert update is not None
        assert update.profile().seconds > 0
    after = (module.state_dict(), optimizer.state_dict()), torch.get_rng_state()
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_the_workspace_of_an_update_depends_on_its_terms() -> None:
    module = network()
    weight = next(module.parameters())
    workspace = {}
    for decay, max_norm in ((0.0, None), (0.1, None), (0.1, 1.0)):
        optimizer = optim.SGD(module.parameters(), lr=0.1, weight_decay=decay)
        update = Updates(optimizer=optimizer, max_norm=max_norm).of(weight)
        assert update is not None
        workspace[decay, max_norm] = update.profile().workspace
    assert list(workspace.values()) == [0, weight.nbytes, 2 * weight.nbytes]


def test_a_parameter_of_another_optimizer_has_no_update() -> None:
    module = network()
    first, second = module.children()
    updates = Updates(optimizer=optim.SGD(second.parameters(), lr=0.1))
    assert updates.of(first.weight) is None
    assert updates.of(second.weight) is not None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_counted_without_memory_are_those_of_a_real_step(name: str) -> None:
    module, plain = network(), network()
    with torch.device("meta"):
        shown = network()
    bytes_ahead = optimizer_bytes(OPTIMIZERS[name](shown))
    reference = OPTIMIZERS[name](plain)
    for p, gradient in zip(plain.parameters(), random_gradients(plain, 0), strict=True):
        p.grad = gradient
    reference.step()
    assert bytes_ahead == optimizer_bytes(OPTIMIZERS[name](module)) == resident_bytes(reference)
    update = Updates(optimizer=OPTIMIZERS[name](shown)).of(next(shown.parameters()))
    assert update is not None
    assert update.counted().workspace >= 0 < update.counted().seconds


class CommonNorm(optim.SGD):
    """Clips all gradients together, with a limit that few steps reach."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 100.0)
        super().step()


class CommonCount(optim.SGD):
    """Counts calls in its state, which all updates share."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        count = self.state["count"].setdefault("n", torch.zeros(()))
        count += 1
        super().step()


class Noisy(optim.SGD):
    """Draws random numbers in the order of the parameters."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            p.add_(torch.randn_like(p))


@pytest.mark.parametrize("kind", [CommonNorm, CommonCount, Noisy, optim.LBFGS, optim.SparseAdam])
def test_other_optimizers_are_refused_with_the_way_out_and_left_as_they_are(kind: type[Optimizer]) -> None:
    module = network()
    optimizer = kind(module.parameters(), lr=0.1)
    before, rng = copy.deepcopy((module.state_dict(), optimizer.state_dict())), torch.get_rng_state()
    with pytest.raises(UnsupportedOptimizerError, match=rf"{kind.__name__} .*torch\.compile\(model"):
        Updates(optimizer=optimizer)
    torch.testing.assert_close(module.state_dict(), before[0], rtol=0, atol=0)
    assert optimizer.state_dict() == before[1]
    assert torch.equal(rng, torch.get_rng_state())


class Wrapper(Optimizer):
    """As libraries wrap optimizers: what a copy of it sets, it would set on the inner one."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> list[dict[str, object]]:
        return self.inner.param_groups


def test_a_wrapper_is_refused_for_the_optimizer_inside() -> None:
    inner = optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(
        UnsupportedOptimizerError, match="Wrapper wraps another optimizer: pass the inner one"
    ):
        Updates(optimizer=Wrapper(inner))


def test_differentiable_optimizers_are_refused_with_the_way_out() -> None:
    optimizer = optim.SGD(network().parameters(), lr=0.1, differentiable=True)
    with pytest.raises(UnsupportedOptimizerError, match="differentiable=True"):
        Updates(optimizer=optimizer)


def test_settings_change_with_terms_and_parameters_but_not_with_schedules() -> None:
    module = network()
    optimizer = optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    before = settings_of(optimizer)
    optimizer.param_groups[0].update(lr=0.2, momentum=0.8)
    optimizer.load_state_dict(optimizer.state_dict())
    assert settings_of(optimizer) == before
    optimizer.param_groups[0]["weight_decay"] = 0.1
    assert settings_of(optimizer) != before
    optimizer.param_groups[0]["weight_decay"] = 0
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    assert settings_of(optimizer) != before
