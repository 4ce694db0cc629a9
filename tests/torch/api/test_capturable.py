"""The verdict on CUDA graphs, for a GPU that is not here: 20 networks, and what forbids capture in eight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from checkmate_torch import UnsupportedModelError, capturable, compile_step, plan_step, trace, trace_step
from zoo import small_torch

H100 = "cuda:H100-80GB"


class Layer(nn.Module):
    """A linear layer, then a function of its parameters and outputs."""

    def __init__(self, after: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(8, 8), after
        self.register_buffer("scale", torch.arange(1.0, 9.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.linear, self.linear(x))


def grouped(linear: nn.Linear, y: Tensor) -> Tensor:
    ends = torch.full((2,), 2, device=y.device, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    weights = torch.stack((linear.weight, linear.weight)).bfloat16()
    return torch._grouped_mm(y.bfloat16(), weights, offs=ends)


FINE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: Layer(lambda linear, y: y),
    "dropout": lambda: Layer(lambda linear, y: nn.functional.dropout(y, 0.2)),
    "gelu": lambda: Layer(lambda linear, y: nn.functional.gelu(y)),
    "softmax": lambda: Layer(lambda linear, y: y.softmax(-1)),
    "where": lambda: Layer(lambda linear, y: torch.where(y > 0, y, 0.0)),
    "masked_fill": lambda: Layer(lambda linear, y: y.masked_fill(y > 0, 0.0)),
    "index": lambda: Layer(lambda linear, y: y[torch.arange(2, device=y.device)]),
    "sort": lambda: Layer(lambda linear, y: y.sort().values),
    "topk": lambda: Layer(lambda linear, y: y.topk(2).values),
    "layer norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
}
FORBIDDEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mask": (lambda: Layer(lambda linear, y: y[:, :1].index_put((y[:, :1] > 0,), y.sum())), "of a mask"),
    "numbers": (lambda: Layer(lambda linear, y: y * torch.tensor([2.0] * 8)), "copies Python numbers"),
    "cpu()": (lambda: Layer(lambda linear, y: y.cpu() * 2), "on the CPU"),
    "to cpu": (lambda: Layer(lambda linear, y: y.to("cpu") * 2), "on the CPU"),
    "made there": (lambda: Layer(lambda linear, y: y * torch.ones(8, device="cpu")), "on the CPU"),
    "experts": (lambda: Layer(grouped), "below compute capability 10.0"),
    "svd": (lambda: Layer(lambda linear, y: torch.linalg.svdvals(linear.weight) * y), "on the host"),
    "lstm": (lambda: Recurrent(), "autograd of its own"),
}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x[None])[0]


def batch_of(model: nn.Module) -> Tensor:
    return torch.randn(1, 4, 8) if isinstance(model, nn.TransformerEncoderLayer) else torch.randn(4, 8)


@pytest.mark.parametrize("name", FINE)
def test_what_can_be_captured(name: str) -> None:
    model = FINE[name]()
    verdict = capturable(trace(model, batch_of(model), device=H100))
    assert verdict, verdict
    assert str(verdict) == "the step can be captured as one CUDA graph"


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_forbids_it_and_where(name: str) -> None:
    make, why = FORBIDDEN[name]
    verdict = capturable(trace(make(), torch.randn(4, 8), device=H100))
    assert not verdict
    assert any(why in o.why for o in verdict.obstacles), verdict
    assert any(o.place.startswith("test_capturable.py:") for o in verdict.obstacles), verdict


def test_newer_devices_hold_grouped_products() -> None:
    assert capturable(trace(Layer(grouped), torch.randn(4, 8), device="cuda:B200-180GB"))


def test_a_step_on_a_cpu_is_none() -> None:
    model = FINE["linear"]()
    assert "runs on a CPU" in str(capturable(trace(model, batch_of(model))))
    step = compile_step(model, mean, optim.SGD(model.parameters()), "100%", cuda_graph=True)
    with pytest.raises(UnsupportedModelError, match="runs on a CPU"):
        step(batch_of(model))
    quiet = compile_step(model, mean, optim.SGD(model.parameters()), "100%", cuda_graph="auto")
    quiet(batch_of(model))
    assert "CUDA graph" not in str(quiet.report())


def mean(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


class Reads(optim.SGD):
    """Scales each gradient by its sum, as a number."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-p.grad.sum().item())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (optim.SGD, None),
        (lambda ps: optim.AdamW(ps, capturable=True), None),
        (lambda ps: optim.AdamW(ps, foreach=False), "capturable=True"),
        (optim.Adagrad, "keeps numbers of its state on the host"),
        (lambda ps: optim.SGD(ps, lr=torch.tensor(0.1), momentum=0.9), "SGD reads lr, a tensor on the GPU"),
        (lambda ps: optim.SGD(ps, lr=torch.tensor(0.1), foreach=True), "fused=True, or with a number"),
        (lambda ps: optim.SGD(ps, lr=torch.tensor(0.1), fused=True), None),
        (lambda ps: optim.Adam(ps, lr=torch.tensor(0.1), capturable=True), None),
        (lambda ps: optim.RMSprop(ps, lr=torch.tensor(0.1), capturable=True), None),
        (
            lambda ps: optim.RMSprop(ps, lr=torch.tensor(0.1), capturable=True, foreach=False),
            "RMSprop reads lr",
        ),
        (lambda ps: optim.RMSprop(ps, lr=0.1, capturable=True), None),
        (Reads, "Reads reads numbers of tensors on the host"),
    ],
)
def test_optimizers(make: Callable[..., Optimizer], why: str | None) -> None:
    model = FINE["linear"]()
    traced = trace_step(model, mean, make(model.parameters()), (batch_of(model),), device=H100)
    assert (why or "can be captured") in str(capturable(traced))


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"accumulate": 2}, "accumulate adds"), ({"scaler": torch.amp.GradScaler("cpu")}, "scaler reads")],
)
def test_settings_that_need_the_host_are_refused_by_name(settings: dict[str, object], why: str) -> None:
    model = FINE["linear"]()
    sgd = optim.SGD(model.parameters())
    with pytest.raises(UnsupportedModelError, match=why):
        plan_step(model, mean, sgd, (batch_of(model),), "100%", device=H100, cuda_graph=True, **settings)


def test_a_plan_counts_the_copies() -> None:
    case = small_torch.mlp(blocks=2, width=32, batch=256)
    sgd = optim.SGD(case.module.parameters())

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return case.loss(model(x))

    given = (case.module, loss, sgd, case.inputs, "200%")
    plain, graph = (plan_step(*given, device=H100, cuda_graph=on).problem.graph for on in (False, True))
    assert graph.fixed_size - plain.fixed_size == 2 * case.inputs[0].nbytes + 512  # inputs, targets, the loss


def test_other_values_are_refused() -> None:
    model = FINE["linear"]()
    with pytest.raises(ValueError, match="cuda_graph is 'yes'"):
        compile_step(model, mean, optim.SGD(model.parameters()), "100%", cuda_graph="yes")
