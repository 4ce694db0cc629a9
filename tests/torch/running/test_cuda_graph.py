"""A step as one CUDA graph, on a CPU: a tape repeats ops with numbers and addresses of their capture."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from checkmate_torch import CompiledStep, UnsupportedModelError, compile_step
from checkmate_torch.ops.capturable import Capturable
from checkmate_torch.planning.steps import unbroken_step
from checkmate_torch.private import tree_leaves, tree_map
from checkmate_torch.running import cuda_graph

STEPS = 7
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
"""How a mode sees that a number is read: above autograd, and below it."""


class Tape(TorchDispatchMode):
    """Captures on the CPU as a CUDA graph does: ops, their numbers, and the addresses of all tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[Any, Any, Any, Any, torch.Generator | None]] = []
        self.draws: list[tuple[Any, Any, Any]] = []
        self.drawn = self.captures = self.replays = 0
        self.recording = False
        self.source: torch.Generator | None = None
        self.results: Sequence[Any] = ()

    @property
    def generator(self) -> torch.Generator:
        return torch.default_generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        made = func(*args, **given)
        if torch.Tag.nondeterministic_seeded in func.tags and self.source is None:
            self.drawn += 1
            if self.recording:
                self.draws.append((func, args, given))
        if self.recording:
            if func in READS:
                raise RuntimeError("operation not permitted when stream is capturing\nsee the documentation")
            self.ops.append((func, args, given, made, self.source))
        return made

    @contextmanager
    def drawing_from(self, generator: torch.Generator) -> Iterator[None]:
        own = self.generator.get_state()
        self.generator.set_state(generator.get_state())
        before, self.source = self.source, generator
        yield
        self.source = before
        generator.set_state(self.generator.get_state())
        self.generator.set_state(own)

    def run(self, code: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        with self:
            return code()

    def record(self, code: Callable[[], Sequence[Any]], generators: Sequence[torch.Generator]) -> Tape:
        """Capture without an effect: what the ops write is written back."""
        self.ops, self.draws, self.recording = [], [], True
        self.captures += 1
        drawn, state = self.drawn, self.generator.get_state()
        untouched = {}
        for x in self.holds():
            untouched[x.data_ptr()] = (x, x.detach().clone())
        try:
            with self:
                self.results = code()
        finally:
            self.recording = False
        for x, old in untouched.values():
            x.detach().copy_(old)
        self.drawn = drawn
        self.generator.set_state(state)
        return self

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, made, source in self.ops:
            if source is None:
                again = func(*args, **kwargs)
                self.drawn += torch.Tag.nondeterministic_seeded in func.tags
            else:
                with self.drawing_from(source):
                    again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def is_recording(self) -> bool:
        return self.recording

    def offset(self) -> int:
        return self.drawn

    def wind(self, generator: torch.Generator, offset: int) -> None:
        own = self.generator.get_state()
        for func, args, kwargs in self.draws[:offset]:
            func(*tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, args), **kwargs)
        generator.set_state(self.generator.get_state())
        self.generator.set_state(own)

    holds: Callable[[], list[Tensor]]


class Net(nn.Module):
    """Dropout and a batch norm between layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 16)) for _ in range(4)
        ]
        self.layers, self.norm = nn.Sequential(*layers), nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(x))


class Recurrent(nn.Module):
    """An LSTM of two layers; on a GPU it is refused, as nothing of it was tried there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.LSTM(16, 16, 2, batch_first=True, dropout=0.3), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(x.view(8, 8, 16))[0])


def squares(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = model(x)
    return y.square().mean(), y


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


BATCHES = [torch.randn(64, 16, generator=torch.Generator().manual_seed(k)) for k in range(STEPS)]
BETWEEN = Callable[[int, nn.Module, Optimizer], object]


def nothing(*_: object) -> None:
    """Between two steps."""


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    tape = Tape()
    monkeypatch.setattr(unbroken_step, "recorder_on", lambda _device: tape)
    monkeypatch.setattr(unbroken_step, "capturable_step", lambda *_: Capturable())
    return tape


def trained(
    tape: Tape,
    make: Callable[[nn.Module], Optimizer],
    between: BETWEEN,
    budget: str = "70%",
    network: Callable[[], nn.Module] = Net,
    **settings: Any,
) -> tuple[list[Any], CompiledStep]:
    """Losses and outputs of all steps, then all that the steps changed."""
    torch.manual_seed(0)
    model = network()
    optimizer = make(model)
    tape.holds = lambda: [
        *model.parameters(),
        *model.buffers(),
        *(x for x in tree_leaves([*optimizer.state.values()]) if isinstance(x, Tensor)),
    ]
    step = compile_step(
        model,
        squares,
        optimizer,
        budget,
        has_aux=True,
        cost_model="flops",
        time_limit=1,
        split=False,
        **settings,
    )
    results: list[Any] = []
    for k, x in enumerate(BATCHES):
        results.append(step(x))
        between(k, model, optimizer)
    state = [[optimizer.state[p] for p in model.parameters()], [*model.parameters()], [*model.buffers()]]
    return [*results, state, torch.get_rng_state()], step


def assert_same(
    tape: Tape, make: Callable[[nn.Module], Optimizer], between: BETWEEN = nothing, **settings: Any
) -> CompiledStep:
    plain, _ = trained(tape, make, between, **settings)
    captured, step = trained(tape, make, between, cuda_graph=True, **settings)
    for one, other in zip(tree_leaves(plain), tree_leaves(captured), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    return step


def reseeds(k: int, _model: nn.Module, _optimizer: Optimizer) -> None:
    if k % 2:
        torch.manual_seed(k)


def decays_once(k: int, _model: nn.Module, optimizer: Optimizer) -> None:
    if k == 3:
        optimizer.param_groups[0]["lr"] = 0.01


def replaces_numbers(k: int, model: nn.Module, _optimizer: Optimizer) -> None:
    if k == 3:
        layer = model.get_submodule("layers.0.0")
        layer.weight.data = layer.weight.detach() * 2


def loads(k: int, _model: nn.Module, optimizer: Optimizer) -> None:
    if k == 3:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize(
    ("between", "captures"),
    [(nothing, 1), (reseeds, 1), (decays_once, 2), (replaces_numbers, 2), (loads, 2)],
)
def test_replays_train_the_same_to_the_bit(tape: Tape, between: BETWEEN, captures: int) -> None:
    step = assert_same(tape, sgd, between)
    assert tape.captures == captures
    assert tape.replays == STEPS - 1 - captures  # the first makes the state; after a change, one runs
    assert any(source is not None for *_, source in tape.ops), "dropout is not run again"
    assert "captured as one CUDA graph" in str(step.report())


def test_a_step_that_counts_on_the_host_is_never_captured(
    tape: Tape, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "_PATIENCE", 3)
    assert_same(tape, lambda model: torch.optim.Adam(model.parameters(), lr=1e-2))
    assert tape.captures == 0
    assert caplog.text.count("3 steps in a row ran without a CUDA graph") == 1


def decays(k: int, _model: nn.Module, optimizer: Optimizer) -> None:
    rate = optimizer.param_groups[0]["lr"]
    if isinstance(rate, Tensor):
        rate.fill_(0.1 / (k + 1))  # as PyTorch's schedulers do


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=torch.tensor([1e-2]), capturable=True)


def fused_sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9, fused=True)


@pytest.fixture
def numbers_are_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of one number are on the GPU, where the host doesn't read them, as Adam's counts of steps."""
    module = sys.modules["torch.optim.adam"]
    devices = module._get_capturable_supported_devices
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda: [*devices(), "cpu"])
    read = cuda_graph.host_side

    def addresses(value: object) -> object:
        return read(tree_map(lambda x: x.view(-1) if isinstance(x, Tensor) else x, value))

    monkeypatch.setattr(unbroken_step, "host_side", addresses)


@pytest.mark.usefixtures("numbers_are_on_the_device")
@pytest.mark.parametrize("make", [adam, fused_sgd])
def test_a_rate_on_the_device_may_change_at_every_step(
    tape: Tape, make: Callable[[nn.Module], Optimizer]
) -> None:
    assert_same(tape, make, decays)
    assert tape.captures == 1


@pytest.mark.usefixtures("numbers_are_on_the_device")
def test_what_reads_a_number_while_it_is_captured_is_refused(tape: Tape) -> None:
    def sgd_of_tensor(model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)

    with pytest.raises(UnsupportedModelError, match=r"stream is capturing\).*cuda_graph=False"):
        trained(tape, sgd_of_tensor, nothing, cuda_graph=True)


@pytest.mark.parametrize("make", [sgd, adam])
def test_gradients_are_clipped_in_a_graph(
    tape: Tape, make: Callable[[nn.Module], Optimizer], numbers_are_on_the_device: None
) -> None:
    assert_same(tape, make, max_norm=0.05)
    assert tape.captures == 1


def test_recurrent_layers_could_be_captured(tape: Tape) -> None:
    assert_same(tape, sgd, budget="130%", network=Recurrent)
    assert tape.captures == 1


def test_the_copies_of_a_graph_are_in_the_budget(tape: Tape) -> None:
    _, plain = trained(tape, sgd, nothing, "100%")
    _, captured = trained(tape, sgd, nothing, "120%", cuda_graph=True)
    copies = 2 * BATCHES[0].nbytes + 4
    graph, other = (step.plans[0].traced.graph for step in (captured, plain))
    assert graph.fixed_size - other.fixed_size >= copies
    assert captured.plans[0].plain_bytes == plain.plans[0].plain_bytes


def test_without_a_capture_the_generated_code_is_what_it_was(tape: Tape) -> None:
    trained(tape, sgd, nothing)
    assert tape.captures == tape.replays == tape.drawn == 0


def test_what_the_host_reads() -> None:
    x, count = torch.ones(3), torch.ones(())
    before = cuda_graph.host_side([{"lr": 0.1, "betas": (0.9, x)}, {x: count}])
    x.add_(1)
    assert cuda_graph.host_side([{"lr": 0.1, "betas": (0.9, x)}, {x: count}]) == before
    count.add_(1)
    assert cuda_graph.host_side([{"lr": 0.1, "betas": (0.9, x)}, {x: count}]) != before
