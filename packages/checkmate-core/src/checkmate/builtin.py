"""The built-in plugin: it registers the solvers, cost models and exporters of core, as any plugin does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from checkmate.cost import DEVICES, Roofline, UnitCost
from checkmate.plugins.hookspecs import hookimpl
from checkmate.plugins.specs import CostModelSpec, ExporterSpec, SolverSpec

__all__ = ["checkmate_register_cost_models", "checkmate_register_exporters", "checkmate_register_solvers"]

_CHEN = "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174"
_JAIN = "Jain et al. 2020, Checkmate: Breaking the Memory Wall, arXiv:1910.02653"


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """The heuristics, the best one first."""
    return [
        SolverSpec(
            name="heuristics",
            summary="the best of the built-in heuristics",
            load=_lazily("heuristics.best", "BestHeuristic"),
        ),
        SolverSpec(
            name="first-fit",
            summary="any schedule within the budget, quickly",
            load=_lazily("heuristics.best", "FirstFit"),
        ),
        SolverSpec(
            name="keep-all",
            summary="compute everything once: no recomputation",
            load=_lazily("heuristics.simple", "KeepAll"),
        ),
        SolverSpec(
            name="chen-sqrt-n",
            summary="keep every k-th forward output, k around sqrt(n)",
            load=_lazily("heuristics.chen", "ChenSqrtN"),
            cite=_CHEN,
        ),
        SolverSpec(
            name="chen-sqrt-n-ap",
            summary="keep every k-th articulation point of the forward pass",
            load=_lazily("heuristics.chen", "ChenSqrtN", candidates="articulation"),
            cite=f"{_CHEN}; {_JAIN}",
        ),
        SolverSpec(
            name="chen-greedy",
            summary="keep a forward output whenever more than b bytes were made since",
            load=_lazily("heuristics.chen", "ChenGreedy"),
            cite=f"{_CHEN}; {_JAIN}",
        ),
        SolverSpec(
            name="chen-greedy-ap",
            summary="keep an articulation point whenever more than b bytes were made since",
            load=_lazily("heuristics.chen", "ChenGreedy", candidates="articulation"),
            cite=f"{_CHEN}; {_JAIN}",
        ),
        SolverSpec(
            name="checkpoint-last",
            summary="keep only the outputs of the op before: little memory at any cost",
            load=_lazily("heuristics.simple", "CheckpointLast"),
            cite=_JAIN,
        ),
        SolverSpec(
            name="evict-belady",
            summary="when memory is full, evict the tensor whose next use is farthest away",
            load=_lazily("heuristics.eviction", "StaticEviction", rule="belady"),
            cite="Belady 1966, A study of replacement algorithms for a virtual-storage computer",
        ),
        SolverSpec(
            name="evict-dtr",
            summary="when memory is full, evict large, stale and cheap tensors",
            load=_lazily("heuristics.eviction", "StaticEviction", rule="dtr"),
            cite="Kirisame et al. 2021, Dynamic Tensor Rematerialization, arXiv:2006.09616",
        ),
    ]


@hookimpl
def checkmate_register_cost_models() -> list[CostModelSpec]:
    """The cost models that need no settings, and a roofline for each device of the table."""
    return [
        CostModelSpec(name="unit", summary="every op costs 1", load=UnitCost),
        *(
            CostModelSpec(
                name=f"roofline-{device}",
                summary=f"seconds from FLOPs and bytes, at the peaks of {device} in float32",
                load=partial(Roofline.of, device),
                cite="Williams, Waterman and Patterson 2009, Roofline, CACM 52(4)",
            )
            for device in DEVICES
        ),
    ]


@hookimpl
def checkmate_register_exporters() -> list[ExporterSpec]:
    """Pictures, reports and traces of judged schedules."""
    pictures = [
        ExporterSpec(
            name=kind,
            summary=f"memory while each op runs, as {kind.upper()}",
            suffix=f".{kind}",
            load=_lazily("report.plot", "MemoryPicture", kind=kind),
            requires=("matplotlib",),
        )
        for kind in ("png", "svg", "pdf")
    ]
    return [
        ExporterSpec(
            name="html",
            summary="a self-contained page: memory over the step, recomputed ops and reasons",
            suffix=".html",
            load=_lazily("report.html", "HtmlReport"),
        ),
        *pictures,
        ExporterSpec(
            name="perfetto",
            summary="a trace for ui.perfetto.dev: runs as slices, memory as a counter",
            suffix=".perfetto.json",
            load=_lazily("report.perfetto", "PerfettoTrace"),
        ),
        ExporterSpec(
            name="dot",
            summary="the graph for Graphviz, recomputed ops coloured",
            suffix=".dot",
            load=_lazily("report.dot", "GraphPicture"),
        ),
    ]


def _lazily(module: str, name: str, **settings: object) -> Callable[[], Any]:
    """A function that imports ``checkmate.<module>`` when it is called, and returns ``name(**settings)``."""
    return lambda: getattr(import_module(f"checkmate.{module}"), name)(**settings)
