"""Ops in place: the same bits as the functions that they replace, and no bytes beside their operand."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.fx.node import map_arg

import checkmate
import checkmate_torch
from checkmate_torch.costs.meter import memory_meter
from checkmate_torch.ops.in_place import overwrites
from checkmate_torch.private import FakeTensorMode

aten = torch.ops.aten


class Use(NamedTuple):
    """A call; "x", "g" and "mask" stand for tensors of one shape, "row" for one row of x."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = MappingProxyType({})

    def run(self, values: Mapping[str, Tensor]) -> Tensor:
        args = (values.get(a, a) if isinstance(a, str) else a for a in self.args)
        result: Tensor = self.function(*args, **self.kwargs)
        return result


USES = {
    "sum": Use(aten.add.Tensor, ("x", "g")),
    "scaled sum": Use(aten.add.Tensor, ("x", "g"), {"alpha": 0.5}),
    "product": Use(aten.mul.Tensor, ("x", "g")),
    "quotient": Use(aten.div.Tensor, ("x", "g")),
    "number": Use(aten.mul.Scalar, ("x", 3.0)),
    "relu": Use(aten.relu.default, ("x",)),
    "gelu": Use(aten.gelu.default, ("x",), {"approximate": "tanh"}),
    "silu": Use(aten.silu.default, ("x",)),
    "tanh": Use(aten.tanh.default, ("x",)),
    "clamp": Use(aten.clamp.default, ("x", -0.5, 0.5)),
    "fill": Use(aten.masked_fill.Scalar, ("x", "mask", 2.0)),
    "relu's gradient": Use(aten.threshold_backward.default, ("g", "x", 0.0)),
    "gelu's gradient": Use(aten.gelu_backward.default, ("g", "x"), {"approximate": "none"}),
    "silu's gradient": Use(aten.silu_backward.default, ("g", "x")),
    "tanh's gradient": Use(aten.tanh_backward.default, ("g", "x")),
    "sigmoid's gradient": Use(aten.sigmoid_backward.default, ("g", "x")),
    "elu's gradient": Use(aten.elu_backward.default, ("g", 1.0, 1.0, 1.0, False, "x")),
    "leaky relu's gradient": Use(aten.leaky_relu_backward.default, ("g", "x", 0.1, False)),
    "hard tanh's gradient": Use(aten.hardtanh_backward.default, ("g", "x", -0.5, 0.5)),
    "hard sigmoid's gradient": Use(aten.hardsigmoid_backward.default, ("g", "x")),
    "soft plus' gradient": Use(aten.softplus_backward.default, ("g", "x", 1.0, 20.0)),
}
OTHERS = {
    "twice the same": Use(aten.add.Tensor, ("x", "x")),
    "a part of it": Use(aten.add.Tensor, ("x", "row")),
    "a smaller operand": Use(aten.add.Tensor, ("small", "x")),
    "other numbers": Use(aten.gt.Tensor, ("x", "g")),
    "matrices": Use(aten.mm.default, ("x", "g")),
    "random": Use(aten.bernoulli.p, ("x", 0.5)),
    "other strides": Use(aten.add.Tensor, ("turned", "small")),
}


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    x, g = torch.randn(64, 64), torch.randn(64, 64)
    small, turned = torch.randn(64), torch.randn(64).expand(64, 64)
    return {"x": x, "g": g, "mask": g > 0, "row": x[:1], "small": small, "turned": turned}


def node_of(use: Use) -> Node:
    """The node of a call, with fake tensors, as a traced graph has it."""
    graph, mode = Graph(), FakeTensorMode()
    values = tensors()
    with mode:
        storage = {name: mode.from_tensor(value) for name, value in values.items() if name != "row"}
        storage["row"] = storage["x"][:1]
    nodes = {name: graph.placeholder(name) for name in values}
    for name, node in nodes.items():
        node.meta["val"] = storage[name]
    args = tuple(nodes.get(a, a) if isinstance(a, str) else a for a in use.args)
    node = graph.call_function(use.function, args, dict(use.kwargs))
    with mode:
        node.meta["val"] = use.run(storage)
    return node


@pytest.mark.parametrize("name", USES)
def test_in_place_gives_the_same_bits_and_takes_no_bytes(name: str) -> None:
    use = USES[name]
    calls = list(overwrites(node_of(use)))
    assert calls
    for call in calls:
        given = tensors()
        expected = use.run(given)
        args, kwargs = map_arg((call.args, call.kwargs), lambda n, given=given: given[n.name])
        with memory_meter(*given.values()) as meter:
            made = call.target(*args, **kwargs)
        assert torch.equal(made, expected)
        assert made.data_ptr() == given[call.operand.name].data_ptr()
        assert meter.peak - meter.base < 16  # a number is a tensor while the kernel runs


def test_both_operands_of_a_sum_may_be_overwritten() -> None:
    assert {call.operand.name for call in overwrites(node_of(USES["sum"]))} == {"x", "g"}
    assert [call.operand.name for call in overwrites(node_of(USES["quotient"]))] == ["x"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts_and_other_functions_overwrite_nothing_that_differs(name: str) -> None:
    found = [call.operand.name for call in overwrites(node_of(OTHERS[name]))]
    assert found == (["x"] if name == "a smaller operand" else [])


class Skips(nn.Module):
    """Sums of gradients: each layer's output is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return x.square().mean()


def test_a_plan_within_less_than_the_functions_need_has_the_same_bits() -> None:
    torch.manual_seed(0)
    model, plain, x = Skips(), Skips(), torch.randn(512, 64)
    plain.load_state_dict(model.state_dict())
    traced = checkmate_torch.trace(model, x, cost_model="flops", workspaces=True)
    assert any(op.reuses for op in traced.graph.ops)
    within = checkmate.minimum_budget(traced.graph, fixed_order=True)
    assert within.peak is not None
    assert within.timeline is not None
    overwritten = [within.timeline.reused_at(k) for k in range(len(within.timeline.memory))]
    assert any(overwritten)
    planned = checkmate_torch.bind(traced, within.timeline.schedule)
    for module in (planned, plain):
        module(x).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
        ours.grad = None
    with memory_meter(model, x) as meter:
        planned(x).backward()
    assert meter.peak <= within.peak


def test_the_backward_pass_of_a_model_overwrites_nothing_of_the_forward_pass() -> None:
    traced = checkmate_torch.trace(Skips(), torch.randn(8, 64), cost_model="flops").traced
    graph, boundary = traced.graph, traced.boundary
    assert boundary is not None
    reused = [(v, t) for v, op in enumerate(graph.ops) for t in op.reuses]
    assert reused
    assert all(graph.producer[t] > boundary and v > boundary for v, t in reused)


def test_two_backward_passes_after_one_forward_pass_have_the_same_bits() -> None:
    torch.manual_seed(0)
    model, x = Skips(), torch.randn(64, 64)
    loss = checkmate_torch.compile(model, budget="80%", cost_model="flops", cache=False)(x)
    grads = []
    for _ in range(2):
        loss.backward(retain_graph=True)
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
