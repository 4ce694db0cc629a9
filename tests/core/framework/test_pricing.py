"""Prices: every cost model over the same facts about the ops, and no fact computed in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checkmate import CostError, DFGraph, PluginError
from checkmate.cost import DEVICES, Roofline, UnitCost, with_costs
from checkmate.framework import Prices, price

GRAPH = DFGraph.from_nodes(cost=[0, 0, 0], size=[4, 4, 4], deps=[[], [0], [1]])
CPU = Roofline(flops_per_s=2.0, bytes_per_s=1e30)


def prices(**facts: Any) -> Prices:
    """Facts of three ops, the last of which costs nothing; a fact that is not given may not be asked for."""

    def unasked(name: str) -> Callable[..., Any]:
        return lambda *_args: pytest.fail(f"{name} was asked for")

    names = ("measured", "flops", "formats", "gpu", "cpu")
    return Prices(**{name: facts.get(name, unasked(name)) for name in names})


def measured(graph: DFGraph) -> DFGraph:
    priced = with_costs(graph, [1.0, 2.0, 0.0], "s")
    return replace(priced, ops=tuple(replace(op, workspace=7) for op in priced.ops))


def flops() -> list[float]:
    return [1e15, 1e15, 0.0]


def formats() -> list[str | None]:
    return ["fp32", "bf16", None]


def costs_of(graph: DFGraph) -> list[float]:
    return [op.cost for op in graph.ops]


def test_profiled_costs_are_measured_and_nothing_else_is_asked_for() -> None:
    priced = price(GRAPH, prices(measured=measured), "profiled", workspaces=False)
    assert (costs_of(priced), priced.cost_unit, priced.ops[0].workspace) == ([1.0, 2.0, 0.0], "s", 7)


def test_flops_need_no_measurement_unless_workspaces_are_wanted() -> None:
    alone = price(GRAPH, prices(flops=flops), "flops", workspaces=False)
    both = price(GRAPH, prices(flops=flops, measured=measured), "flops", workspaces=True)
    assert costs_of(alone) == costs_of(both) == flops()
    assert (alone.cost_unit, both.cost_unit) == ("flop", "flop")
    assert (alone.ops[0].workspace, both.ops[0].workspace) == (0, 7)


def test_each_op_has_the_peak_of_its_own_format_on_a_named_device() -> None:
    priced = price(GRAPH, prices(flops=flops, formats=formats), "roofline-a100-80gb", workspaces=False)
    peaks = DEVICES["A100-80GB"].flops_per_s
    assert costs_of(priced) == pytest.approx([1e15 / peaks["fp32"], 1e15 / peaks["bf16"], 0.0])


def test_the_roofline_here_is_the_gpu_s_or_else_the_measured_cpu_s() -> None:
    gpu = price(
        GRAPH,
        prices(flops=flops, formats=formats, gpu=lambda: ("NVIDIA A100-SXM4-80GB", 79.3)),
        "roofline",
        workspaces=False,
    )
    named = price(GRAPH, prices(flops=flops, formats=formats), "roofline-A100-80GB", workspaces=False)
    assert costs_of(gpu) == costs_of(named)
    cpu = price(
        GRAPH,
        prices(flops=flops, formats=formats, gpu=lambda: None, cpu=lambda: CPU),
        "roofline",
        workspaces=False,
    )
    assert costs_of(cpu) == [5e14, 5e14, 0.0]


def test_an_installed_cost_model_and_one_of_your_own_get_flops() -> None:
    for model in ("unit", UnitCost()):
        assert costs_of(price(GRAPH, prices(flops=flops), model, workspaces=False)) == [1.0, 1.0, 1.0]


def test_a_cost_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="must be 'profiled'"):
        price(GRAPH, prices(), 3.0, workspaces=False)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="no cost model 'guess'"):
        price(GRAPH, prices(flops=flops), "guess", workspaces=False)
    with pytest.raises(CostError, match="no device 'B300'"):
        price(GRAPH, prices(flops=flops, formats=formats), "roofline-B300", workspaces=False)
