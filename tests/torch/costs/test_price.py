"""Cost models: ops are measured once, and computed costs have known values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx import Node

import checkmate
from checkmate.cost import DEVICES, OpProfile, UnitCost
from checkmate.framework import pricing
from checkmate_torch import compile
from checkmate_torch.costs import price as costs
from checkmate_torch.costs.price import price
from checkmate_torch.private import fake_mode
from checkmate_torch.tracing.traced_graph import TracedGraph

BATCH, WIDTH = 12, 20


@pytest.fixture(scope="module")
def step() -> TracedGraph:
    """A layer with an activation, bias and squared output, as traced and planned once."""
    torch.manual_seed(0)
    compiled = compile(nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU()), "100%", solver="keep-all")
    compiled(torch.randn(BATCH, WIDTH)).sum().backward()
    return compiled.plans[0].traced


@pytest.fixture
def bare(step: TracedGraph) -> checkmate.DFGraph:
    return replace(step.graph, ops=tuple(replace(op, cost=0.0, workspace=0) for op in step.graph.ops))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty disk and an empty memory."""
    monkeypatch.setattr(OpProfile, "to_repeat", False)  # however busy this machine is
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pricing, "_memory", {})
    return tmp_path


class _Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def ops_of(step: TracedGraph, target: object) -> list[int]:
    return [v for v, node in enumerate(step.nodes) if node is not None and node.target is target]


def test_the_next_process_reads_measured_costs_from_disk(
    step: TracedGraph, bare: checkmate.DFGraph, cache: Path
) -> None:
    first = price(bare, step.nodes)
    assert len(list(cache.rglob("*.json"))) == 1
    pricing._memory.clear()
    timed: list[checkmate.Progress] = []
    again = price(bare, step.nodes, on_progress=timed.append)
    assert timed == []
    assert again.digest == first.digest
    assert first.cost_unit == "s"
    assert all(op.cost > 0 for op, node in zip(first.ops, step.nodes, strict=True) if node is not None)


def test_the_off_switch_leaves_the_disk_alone(
    step: TracedGraph, bare: checkmate.DFGraph, cache: Path
) -> None:
    price(bare, step.nodes, on_disk=False)
    assert not list(cache.iterdir())


def test_an_interrupt_keeps_the_measured_costs(
    step: TracedGraph, bare: checkmate.DFGraph, cache: Path
) -> None:
    seen: list[checkmate.Progress] = []

    def stop(report: checkmate.Progress) -> None:
        seen.append(report)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        price(bare, step.nodes, on_progress=stop)
    pricing._memory.clear()
    rest: list[checkmate.Progress] = []
    price(bare, step.nodes, on_progress=rest.append)
    assert f"timing op 1 of {len(seen) - 1 + len(rest)}" in seen[0].step
    assert f"timing op 1 of {len(rest)}" in rest[0].step


def test_flops_of_a_product_are_2mnk_and_of_other_ops_one_for_each_element(
    step: TracedGraph, bare: checkmate.DFGraph
) -> None:
    counted = price(bare, step.nodes, "flops", workspaces=False)
    assert counted.cost_unit == "flop"
    (linear,) = ops_of(step, torch.ops.aten.addmm.default)
    (gelu,) = ops_of(step, torch.ops.aten.gelu.default)
    assert counted.ops[linear].cost == 2 * BATCH * WIDTH * 3 * WIDTH
    assert counted.ops[gelu].cost == BATCH * 3 * WIDTH
    assert counted.ops[step.boundary].cost == 0


@pytest.mark.parametrize("heads", [3, 1])
def test_attention_on_the_cpu_counts_its_products_and_five_in_backward(heads: int) -> None:
    length, depth = 16, 8
    query = torch.zeros(2, 3, length, depth, requires_grad=True)
    attend = partial(nn.functional.scaled_dot_product_attention, enable_gqa=heads < 3)
    traced = checkmate.torch.trace(
        _Function(lambda q: attend(q, q[:, :heads], q[:, :heads])),
        query,
        loss=torch.sum,
        cost_model="flops",
    )
    product = 2 * 2 * 3 * length * length * depth
    costs_of = [op.cost for op in traced.graph.ops if "flash_attention" in op.name]
    assert costs_of == [2 * product, 5 * product]


def test_workspaces_do_not_depend_on_the_cost_model(step: TracedGraph, bare: checkmate.DFGraph) -> None:
    profiled, counted = (price(bare, step.nodes, model) for model in ("profiled", "flops"))
    assert [op.workspace for op in profiled.ops] == [op.workspace for op in counted.ops]


def test_the_roofline_of_another_device(step: TracedGraph, bare: checkmate.DFGraph) -> None:
    timed = price(bare, step.nodes, "roofline-a100-80gb", workspaces=False)
    device = DEVICES["A100-80GB"]
    (gelu,) = ops_of(step, torch.ops.aten.gelu.default)
    moved = 2 * BATCH * 3 * WIDTH * 4
    assert timed.ops[gelu].cost == pytest.approx(moved / device.bytes_per_s)
    assert timed.cost_unit == "s"
    assert timed.ops[step.boundary].cost == 0


def test_each_op_has_the_peak_of_its_own_format() -> None:
    """A product that arithmetic limits: 16 times faster in bf16, whose peak is 16 times as high."""
    nodes: list[Node | None] = []
    graph = torch.fx.Graph()
    for dtype in (torch.float32, torch.bfloat16):
        matrix = graph.placeholder("matrix")
        product = graph.call_function(torch.ops.aten.mm.default, (matrix, matrix))
        for node in (matrix, product):
            node.meta["val"] = torch.empty(2**13, 2**13, dtype=dtype, device="meta")
        nodes.append(product)
    both = checkmate.DFGraph.from_nodes(cost=[0, 0], size=[4, 4], deps=[[], []])
    timed = price(both, nodes, "roofline-A100-80GB", workspaces=False)
    assert timed.ops[0].cost / timed.ops[1].cost == pytest.approx(16)


def test_the_roofline_of_this_cpu_is_measured_once(
    step: TracedGraph, bare: checkmate.DFGraph, cache: Path
) -> None:
    timed = []
    for _ in range(2):
        costs._of_this_cpu.cache_clear()
        timed.append(price(bare, step.nodes, "roofline", workspaces=False))
    assert timed[0].digest == timed[1].digest
    assert len(list(cache.rglob("*.json"))) == 1
    assert all(op.cost > 0 for op, node in zip(timed[0].ops, step.nodes, strict=True) if node is not None)
    costs._of_this_cpu.cache_clear()


@pytest.mark.parametrize("shape", [(0,), (), (5,), (3, 2**15), (2**16 + 1,)])
def test_made_up_inputs_have_the_layout_and_are_random(shape: tuple[int, ...]) -> None:
    for shown in (torch.empty(shape, device="meta"), torch.empty(shape, device="meta", dtype=torch.int64)):
        real = costs.real_like(torch.empty_like(shown, device="cpu"))
        assert (real.shape, real.stride(), real.dtype) == (shown.shape, shown.stride(), shown.dtype)
        if shown.is_floating_point() and shown.numel() > 100:
            assert real.std() == pytest.approx(1.0, abs=0.05)
            assert real.isfinite().all()
        elif not shown.is_floating_point():
            assert not real.any()
    transposed = torch.empty(4, 3).t()
    assert costs.real_like(transposed).stride() == transposed.stride()


def test_a_cost_model_by_name_and_by_value(step: TracedGraph, bare: checkmate.DFGraph) -> None:
    for model in ("unit", UnitCost()):
        assert price(bare, step.nodes, model, workspaces=False).ideal_cost == bare.n_ops


def test_the_second_plan_of_a_step_comes_from_disk(cache: Path) -> None:
    x = torch.randn(BATCH, WIDTH)

    def planned(**settings: object) -> checkmate.Solution:
        pricing._memory.clear()
        compiled = compile(nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh()), "100%", **settings)
        compiled(x)
        return compiled.plans[0].solution

    first, again = planned(), planned()
    assert "cache" not in first.origin
    assert Path(again.origin["cache"]).is_relative_to(cache)
    assert again.peak == first.peak
    assert "cache" not in planned(cache=False).origin


def test_unknown_and_wrong_cost_models_are_refused() -> None:
    with pytest.raises(TypeError, match="must be 'profiled'"):
        compile(nn.Linear(2, 2), "1MiB", cost_model=3.0)  # type: ignore[arg-type]
    with pytest.raises(checkmate.PluginError, match="no cost model 'guess'"):
        compile(nn.Linear(2, 2), "1MiB", cost_model="guess")(torch.ones(1, 2))
    with pytest.raises(checkmate.CostError, match="no device 'B300'"):
        compile(nn.Linear(2, 2), "1MiB", cost_model="roofline-B300")(torch.ones(1, 2))


def test_made_up_inputs_share_storages_as_the_real_ones_do_and_warn_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the weights of a recurrent network on a GPU, which cuDNN copies and warns of if they lie apart."""
    seen: list[torch.Tensor] = []

    def product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        seen[:] = [a, b, c]
        warnings.warn("these inputs are odd", stacklevel=1)
        return a @ b

    monkeypatch.setattr(costs, "may_run_twice", lambda _: True)
    graph, weights = torch.fx.Graph(), torch.zeros(24)
    values = weights[:12].view(3, 4), weights[12:].view(4, 3), torch.zeros(5)
    inputs = [graph.placeholder(name) for name in "abc"]
    node = graph.call_function(product, tuple(inputs))
    fakes = fake_mode()
    for one, value in zip((*inputs, node), (*values, torch.zeros(3, 3)), strict=True):
        one.meta["val"] = fakes.from_tensor(value)
    assert costs.profile_node(node).seconds > 0
    assert [x.shape for x in seen] == [x.shape for x in values]
    a, b, c = (x.untyped_storage().data_ptr() for x in seen)
    assert a == b != c
    assert [x.storage_offset() for x in seen] == [0, 12, 0]


def test_what_kernels_read_on_the_cpu_is_the_seed_and_the_offset_of_dropout() -> None:
    for op, positions in costs._READ_ON_CPU.items():
        names = [argument.name for argument in op._schema.arguments]
        assert [names[k] for k in positions] == ["philox_seed", "philox_offset"]
