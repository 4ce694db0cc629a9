"""Fused kernels follow any schedule, within the peak that the simulator gives their program."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from checkmate import InfeasibleBudgetError, Schedule, UnsupportedModelError, simulate
from checkmate.cost import OpProfile
from checkmate_torch import compile, compile_step, memory_meter
from checkmate_torch.costs import price as costs
from checkmate_torch.planning import fusing as fused_step
from checkmate_torch.running.fusing import kernel, measuring, program
from checkmate_torch.running.fusing.windows import gathered

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # Inductor's own imports
]
ROOMY = 2**40
FUSED: Any = {"lowering": "inductor", "time_limit": 2.0}


@pytest.fixture(autouse=True)
def _fuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse whatever can be fused: small kernels gain nothing, but must be right."""
    monkeypatch.setattr(measuring, "seconds_alone", lambda _graph, _ops: float("inf"))


class Everything(nn.Module):
    """Batch norm, dropout, attention, views, several outputs of one op, a reused tensor, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            nn.Dropout(0.3), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU()
        )
        self.norm, self.mix, self.head = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + torch.tanh(self.body(h)) * 0.5
        tokens = self.norm(h.flatten(2).transpose(1, 2))
        q, k, v = self.mix(tokens).chunk(3, dim=-1)
        tokens = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        best, _ = tokens.topk(3, dim=1)
        return cross_entropy(self.head(tokens.mean(1) + best.sum(1)), target)


class Classifier(nn.Module):
    """Many classes, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(16, 4096)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.model(x), y)


def images() -> nn.Module:
    """Convolutions without random numbers."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(6400, 1))


def made(n: int = 4) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Everything(), (torch.randn(n, 3, 12, 12), torch.randint(5, (n,)))


def trained(module: Any, batch: tuple[Tensor, ...], steps: int = 2) -> list[Tensor]:
    """The last loss, all gradients and buffers, and the state of the random generator."""
    torch.manual_seed(11)
    for _ in range(steps):
        module.zero_grad()
        loss = module(*batch)
        loss.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [loss.detach(), *gradients, *module.buffers(), torch.get_rng_state()]


def assert_close(found: list[Tensor], expected: list[Tensor], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)


def is_moved(plan: Any) -> bool:
    """Whether convolutions give images with the channels last."""
    nodes = [n for n in plan.traced.nodes if n is not None and n.target is torch.ops.aten.convolution.default]
    assert nodes
    return all(n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in nodes)


@pytest.mark.parametrize("keeps", [True, False], ids=["all kept", "all computed again"])
def test_any_schedule_gives_the_same_results(keeps: bool, forgetful: Any) -> None:
    plain, batch = made()
    module, _ = made()
    compiled = compile(module, ROOMY, lowering="inductor", solver="keep-all" if keeps else forgetful)
    assert_close(trained(compiled, batch), trained(plain, batch))
    plan = compiled.plans[0]
    assert (plan.solution.timeline.recomputes == 0) == keeps
    assert sum(len(each.ops) for each in plan.fusion.kernels.values()) >= 8


@pytest.mark.parametrize("roomy", [True, False], ids=["roomy", "least"])
def test_the_peak_is_that_of_the_program(roomy: bool) -> None:
    module, batch = made()
    compiled = compile(module, "100%", **FUSED)
    if not roomy:
        with pytest.raises(InfeasibleBudgetError) as refused:
            compile(module, "1%", **FUSED)(*batch)
        compiled = compile(module, refused.value.minimum, **FUSED)
    trained(compiled, batch)
    module.zero_grad()
    with memory_meter(module, batch) as meter:
        compiled(*batch).backward()
    plan = compiled.plans[0]
    assert plan.peak == pytest.approx(meter.peak, rel=0.01)
    assert meter.peak <= plan.peak <= plan.solution.problem.budget
    assert f"{len(plan.fusion.kernels)} fused kernels" in str(compiled.report(meter))


def test_windows_are_the_same_runs_in_a_valid_order(forgetful: Any) -> None:
    module, batch = made()
    compiled = compile(module, ROOMY, solver=forgetful)
    trained(compiled, batch, steps=1)
    plan = compiled.plans[0]
    runs = plan.solution.schedule.sequence.tolist()
    windows = gathered(plan.traced, runs)
    found = [*itertools.chain(*windows)]
    assert Counter(found) == Counter(runs)
    assert max(map(len, windows)) > 3
    graph = plan.traced.graph
    simulate(graph, Schedule.from_sequence(graph, found))


def test_whole_steps_are_fused() -> None:
    losses = []
    for lowering in ("eager", "inductor"):
        module, batch = made()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        settings: Any = FUSED | {"lowering": lowering}
        step = compile_step(module, lambda m, *batch: m(*batch), optimizer, "100%", **settings)
        torch.manual_seed(1)
        losses.append([float(step(*batch)) for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    with memory_meter(module, batch, optimizer) as meter:
        step(*batch)
    plan: Any = step.plans[0]
    assert plan.fusion.kernels
    assert meter.peak <= plan.peak <= plan.solution.problem.budget


def test_mixed_precision_is_fused() -> None:
    losses = []
    for lowering in ("eager", "inductor"):
        module, batch = made()
        settings: Any = FUSED | {"lowering": lowering}
        compiled = compile(module, "100%", **settings)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(*batch)
        loss.backward()
        losses.append(float(loss.detach()))
    plan: Any = compiled.plans[0]
    assert plan.fusion.kernels
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_norms_in_mixed_precision_have_pytorchs_gradients() -> None:
    x, found = torch.randn(64, 8, generator=torch.manual_seed(1)), []
    for planned in (False, True):
        torch.manual_seed(0)
        group = (nn.Unflatten(1, (2, 4)), nn.GroupNorm(1, 2), nn.Flatten(), nn.GELU())
        batch = (nn.BatchNorm1d(8), nn.GELU(), nn.BatchNorm1d(8).eval(), nn.GELU())
        model = nn.Sequential(nn.Linear(8, 8), *group, *batch, nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
        step = compile(model, "100%", **FUSED) if planned else model
        with torch.autocast("cpu", torch.bfloat16):
            loss = step(x).float().square().mean()
        loss.backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0.05, atol=5e-3)


def test_a_kernel_refuses_numbers_of_another_type() -> None:
    module, batch = made()
    compiled = compile(module, "100%", **FUSED)
    compiled(*batch)
    plan: Any = compiled.plans[0]
    fused = next(iter(plan.fusion.kernels.values()))
    inputs = [torch.zeros(node.meta["val"].shape, dtype=torch.float64) for node in fused.sources]
    with pytest.raises(UnsupportedModelError, match=r'torch\.float64, but traced as torch.*"eager"'):
        fused(*inputs)


def test_sizes_may_change() -> None:
    module, _ = made()
    plain, _ = made()
    compiled = compile(module, ROOMY, lowering="inductor", dynamic=True, solver="keep-all")
    for n in (6, 4, 5):
        _, batch = made(n)
        assert_close(trained(compiled, batch), trained(plain, batch))


def test_images_of_changing_sizes_stay() -> None:
    module = Viewed(lambda y: y.square().mean())
    compiled = compile(module, ROOMY, lowering="inductor", dynamic=True, solver="keep-all")
    for n in (6, 4):
        x = torch.randn(n, 3, 12, 12)
        torch.testing.assert_close(compiled(x), module(x))
        compiled(x).backward()
    assert not is_moved(compiled.plans[0])


def test_a_loss_takes_no_copy_of_its_logits() -> None:
    """The gradients of the two halves of cross entropy are one kernel."""
    peaks = []
    for lowering in ("eager", "inductor"):
        batch = torch.randn(64, 16), torch.randint(4096, (64,))
        compiled = compile(Classifier(), ROOMY, lowering=lowering, solver="keep-all")
        trained(compiled, batch)
        peaks.append(compiled.plans[0].peak)
    logits = 64 * 4096 * 4
    assert peaks[0] - peaks[1] >= 0.9 * logits


def test_images_are_moved_and_shares_are_of_the_plain_step() -> None:
    x, peaks, results = torch.randn(16, 3, 24, 24), [], []
    for lowering in ("eager", "inductor"):
        module = images()
        settings: Any = FUSED | {"lowering": lowering}
        compiled = compile(module, "100%", **settings)
        compiled(x).square().mean().backward()
        plan: Any = compiled.plans[0]
        peaks.append(plan.plain_peak)
        results.append([p.grad for p in module.parameters() if p.grad is not None])
        assert is_moved(plan) == (lowering == "inductor")
    assert peaks[1] == pytest.approx(peaks[0], rel=0.02)
    assert_close(results[1], results[0], rtol=1e-3)


class Viewed(nn.Module):
    """Convolutions, whose result is seen in another way."""

    def __init__(self, seen: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.seen = nn.Conv2d(3, 8, 3), seen

    def forward(self, x: Tensor) -> Tensor:
        return self.seen(self.layers(x))


def written_flat(y: Tensor) -> Tensor:
    y.flatten(1).mul_(2.0)
    return y.square()


@pytest.mark.parametrize(
    ("seen", "moved"),
    [
        (lambda y: y, True),
        (lambda y: y.flatten(1), True),
        (lambda y: y.view(len(y), -1), False),
        (written_flat, False),
        (lambda y: checkpoint(lambda z: z.view(len(z), -1) * 2.0, y, use_reentrant=False), False),
    ],
    ids=["returned", "flattened", "viewed", "written through a view", "viewed inside a checkpoint"],
)
def test_results_do_not_depend_on_the_memory_format(seen: Any, moved: bool) -> None:
    torch.manual_seed(0)
    module, x = Viewed(seen), torch.randn(4, 3, 12, 12)
    expected = module(x)
    compiled = compile(module, ROOMY, lowering="inductor", solver="keep-all")
    found = compiled(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    found.square().mean().backward()
    assert is_moved(compiled.plans[0]) == moved


def test_images_with_random_numbers_stay_so_that_the_numbers_are_the_same() -> None:
    module, batch = made()
    compiled = compile(module, "100%", **FUSED)
    trained(compiled, batch, steps=1)
    assert not is_moved(compiled.plans[0])


def test_single_ops_are_tried_where_fused_ones_need_too_much(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Images with the channels last are made to need a huge workspace."""
    x, plain = torch.randn(16, 3, 24, 24), images()
    known = costs.profile_node

    def greedy(node: Any) -> OpProfile:
        image = node.target is torch.ops.aten.convolution.default and node.args[0].meta["val"]
        moved = image is not False and image.is_contiguous(memory_format=torch.channels_last)
        return known(node)._replace(workspace=2**30 if moved else 0)

    monkeypatch.setattr(costs, "profile_node", greedy)
    monkeypatch.setattr("checkmate.framework.pricing._memory", {})
    compiled = compile(images(), "100%", cache=False, **FUSED)
    with caplog.at_level(logging.INFO):
        loss = compiled(x).square().mean()
    loss.backward()
    assert "trying single ops" in caplog.text
    plan: Any = compiled.plans[0]
    assert plan.fusion is None
    assert not is_moved(plan)
    assert torch.equal(loss, plain(x).square().mean())


def wrong(_module: Any, _examples: Any) -> Any:
    """A compiler whose kernels return an input."""
    return lambda args: [args[0] for _ in range(9)]


def missing(_module: Any, _examples: Any) -> Any:
    """No compiler."""
    raise RuntimeError("there is no C++ compiler")


@pytest.mark.parametrize("compiler", [wrong, missing])
def test_kernels_that_are_of_no_use_are_not_used(
    compiler: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel, "compile_with_inductor", compiler)
    monkeypatch.setattr(kernel, "_compiled", {})
    plain, batch = made()
    module, _ = made()
    with caplog.at_level(logging.WARNING):
        compiled = compile(module, "100%", **FUSED)
        found = trained(compiled, batch)
    assert_close(found, trained(plain, batch))
    plan: Any = compiled.plans[0]
    assert not plan.fusion.kernels
    warned = [record for record in caplog.records if "can't compile" in record.message]
    assert len(warned) == (compiler is missing)


def test_a_kernel_that_takes_longer_than_its_ops_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "seconds_alone", lambda _graph, _ops: 1e-9)
    monkeypatch.setattr(measuring, "_LEAST_S", 0.0)
    module, batch = made()
    compiled = compile(module, "100%", **FUSED)
    trained(compiled, batch, steps=1)
    plan: Any = compiled.plans[0]
    assert not plan.fusion.kernels


def test_a_kernel_that_would_exceed_the_budget_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = OpProfile(seconds=0.0, workspace=2**30)
    monkeypatch.setattr(program.Measuring, "worthy", lambda _self, _graph, kernels: [greedy] * len(kernels))
    monkeypatch.setattr(fused_step, "fuse_chains", lambda *_: False)
    module, batch = made()
    compiled = compile(module, "100%", **FUSED)
    trained(compiled, batch, steps=1)
    plan: Any = compiled.plans[0]
    assert not plan.fusion.kernels
    assert plan.peak <= plan.solution.problem.budget
