"""Counterexamples as Python code: the printed expression, pasted into a test, makes an equal object.

>>> from checkmate import DFGraph, Op, Problem, Schedule, Tensor
>>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
>>> eval(graph_code(graph)) == graph
True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.model.schedule import Schedule
from checkmate.problem.problem import Problem

__all__ = ["graph_code", "problem_code", "schedule_code"]


def graph_code(graph: DFGraph) -> str:
    """The graph as an expression; defaults are left out.

    >>> print(graph_code(DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])))
    DFGraph(
        ops=(
            Op(name='0', inputs=(), outputs=(0,), cost=1.0),
            Op(name='1', inputs=(0,), outputs=(1,), cost=1.0),
        ),
        tensors=(
            Tensor(name='0', size=4),
            Tensor(name='1', size=2),
        ),
        outputs=(1,),
    )
    """
    rows = [
        _rows("ops", (_call(op) for op in graph.ops)),
        _rows("tensors", (_call(tensor) for tensor in graph.tensors)),
        *(f"    {text},\n" for text in _settings(graph, skip=("ops", "tensors"))),
    ]
    return f"DFGraph(\n{''.join(rows)})"


def problem_code(problem: Problem) -> str:
    """The problem as an expression, its graph included; ``on_progress`` is left out."""
    graph = graph_code(problem.graph).replace("\n", "\n    ")
    rows = [f"graph={graph}", *_settings(problem, skip=("graph", "on_progress"))]
    return "Problem(\n" + "".join(f"    {row},\n" for row in rows) + ")"


def schedule_code(schedule: Schedule) -> str:
    """The schedule as an expression: its codes, ``op`` for a compute and ``~tensor`` for a free.

    >>> schedule_code(Schedule([0, 1, ~0]))
    'Schedule([0, 1, ~0])'
    """
    return f"Schedule([{', '.join(str(c) if c >= 0 else f'~{~c}' for c in schedule.codes.tolist())}])"


def _rows(name: str, rows: Iterable[str]) -> str:
    return f"    {name}=(\n" + "".join(f"        {row},\n" for row in rows) + "    ),\n"


def _call(part: Op | Tensor) -> str:
    return f"{type(part).__name__}({', '.join(_settings(part))})"


def _settings(value: Op | Tensor | DFGraph | Problem, skip: Iterable[str] = ()) -> list[str]:
    """``name=value`` of each field that differs from its default."""
    return [
        f"{f.name}={getattr(value, f.name)!r}"
        for f in fields(value)
        if f.name not in skip and getattr(value, f.name) != f.default
    ]
