"""How solvers scale: from 30 to 10,000 ops, each solver up to the size at which it finds no schedule.

Times are CPU seconds. One task is a *ladder*, one solver on graphs of one kind from small to large; ladders
run one after another. A solver that finds no schedule for two graphs gets no larger graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from checkmate import DFGraph, floor, generators, keep_all_peak
from evaluation.experiment import Experiment
from evaluation.results import Results, Task
from evaluation.solving import solved
from pages import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "PUBLISHED", "Published"]


class Published(NamedTuple):
    """The largest graph that a paper reports as solved, on its own machine."""

    method: str
    ops: int
    took: str


PUBLISHED: Mapping[str, Published] = {
    "Checkmate": Published("MILP in stages, Gurobi on 24 cores", 450, "up to an hour"),
    "MOCCASIN": Published("retention intervals, CP-SAT", 1000, "minutes to an hour"),
    "FastSA": Published("annealing of sequences, one core", 8330, "3 to 30 s"),
}
"""Jain et al., MLSys 2020, arXiv:1910.02653, the ops roughly; Bartan et al., ICML 2023, arXiv:2304.14463;
Imanishi et al., "A fast heuristic to optimize time-space tradeoff for large models", NeurIPS 2023."""
_SOLVERS = (
    *("auto", "local-search", "retention-intervals", "evict-dtr", "chen-greedy"),
    *("checkmate-milp", "lp-rounding"),
)
_KINDS: Mapping[str, Callable[[int], DFGraph]] = {
    "chain": lambda n: generators.chain(n, cost="random", seed=1),
    "transformer": lambda n: generators.transformer(n, vocabulary=2_000),
    "layered": lambda n: generators.random_layered(n, seed=1, training=True),
}
_STEPS: Mapping[str, tuple[int | str, ...]] = {
    "chain": (15, 50, 166, 500, 1666, 5000),
    "transformer": (2, 3, 10, 33, 110, 333),
    "layered": (15, 50, 166, 500, 1666, 5000),
    "traced": ("resnet50", "gpt2", "densenet121"),
}
"""Sizes of each kind, from small to large: layers, blocks or forward ops; names in the zoo."""
_SHARES: Mapping[str, tuple[float, ...]] = {"transformer": (0.5, 0.3)}
_QUICK_SOLVERS, _QUICK_STEPS = ("auto", "retention-intervals", "checkmate-milp"), 3
_FAILURES = 2
_FIELDS = ("ops", "ended", "note", "cost", "bound", "first_s", "near_s", "final_s", "seconds", "held")
"""Of a solve, in the results file."""
_LIMIT_S, _QUICK_LIMIT_S, _LATE_S = 10.0, 1.0, 10.0
"""Seconds; the last are those after the limit at which a solver is killed."""


def tasks(quick: bool) -> Sequence[Task]:
    """One ladder for each solver, kind and budget."""
    kinds = ("transformer",) if quick else (kind for kind in _STEPS if kind != "traced" or find_spec("torch"))
    return [
        {
            "kind": kind,
            "steps": list(_STEPS[kind][: _QUICK_STEPS if quick else None]),
            "share": share,
            "solver": solver,
            "time_limit": _QUICK_LIMIT_S if quick else _LIMIT_S,
        }
        for kind in kinds
        for share in _SHARES.get(kind, (0.5,))[: 1 if quick else None]
        for solver in (_QUICK_SOLVERS if quick else _SOLVERS)
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """Run one ladder."""
    points: list[Mapping[str, Any]] = []
    for step in task["steps"]:
        graph = _graph(task["kind"], step)
        if floor(graph).size > task["share"] * keep_all_peak(graph):
            continue  # no schedule exists
        if sum(point["cost"] is None for point in points) < _FAILURES:
            found = solved(
                graph, task["share"], task["solver"], time_limit=task["time_limit"], late_s=_LATE_S
            )
            points.append({name: value for name, value in found.items() if name in _FIELDS})
    return {"points": points}


@cache
def _graph(kind: str, step: int | str) -> DFGraph:
    if isinstance(step, int):
        return _KINDS[kind](step)
    import zoo

    return zoo.graph(step, level="op")


def markdown(results: Results) -> str:
    """Ours over time, the other solvers beside it, the largest graph of each, and published figures."""
    cases, solvers = _cases(results), results.distinct("solver")
    kinds = list(dict.fromkeys(case.kind for case in cases))
    parts = (
        "`auto`: CPU seconds to the first schedule, to one within 1 % of the last one's cost, and to that; "
        "cost relative to computing every op once; proved gap.",
        table(
            [*_CASE, "first s", "1 % s", "final s", "cost", "gap"],
            [[*case.name, *_steps(case.points["auto"])] for case in cases if "auto" in case.points],
        ),
        "Cost over the least that any of the solvers found (1 is best), and CPU seconds to it in "
        "parentheses. “–”: no schedule found; empty: not run, after two graphs without a schedule.",
        table([*_CASE, *solvers], [[*case.name, *map(case.beside, solvers)] for case in cases]),
        "The largest graph for which each found a schedule, in ops:",
        table(["solver", *kinds], [[s, *(_largest(cases, kind, s) for kind in kinds)] for s in solvers]),
        "The largest graphs of other systems, as published, and `auto` on our graphs of at least that size:",
        table(
            [
                "system",
                "method",
                "ops",
                "time",
                "ops, ours",
                "solved",
                "first s, ours",
                "final s, ours",
                "gap, ours",
            ],
            [[system, *them, *_ours(cases, them.ops)] for system, them in PUBLISHED.items()],
        ),
    )
    return "\n\n".join(parts)


def draw(results: Results) -> Figure | None:
    """Seconds to the first schedule, and to one within 1 % of the last one's cost, over ops."""
    from matplotlib.figure import Figure

    cases = _cases(results)
    kinds = list(dict.fromkeys(case.kind for case in cases))
    if not kinds:
        return None
    figure = Figure(figsize=(3.2 * len(kinds) + 0.8, 6.2), layout="constrained")
    panels = figure.subplots(2, len(kinds), squeeze=False, sharex="col", sharey=True)
    labels = {"first_s": "CPU s to the first schedule", "near_s": "CPU s to within 1 % of the last"}
    for row, (field, label) in zip(panels, labels.items(), strict=True):
        row[0].set_ylabel(label)
        for panel, kind in zip(row, kinds, strict=True):
            _lines(panel, [case for case in cases if case.kind == kind], results.distinct("solver"), field)
    for panel, kind in zip(panels[0], kinds, strict=True):
        panel.set_title(kind)
    for panel in panels[1]:
        panel.set_xlabel("ops")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _lines(panel: Axes, cases: list[_Case], solvers: list[str], field: str) -> None:
    """A line for each solver, interrupted where it found no schedule."""
    for solver in solvers:
        mine = [(case.ops, case.points[solver]) for case in cases if solver in case.points]
        ops = [n for n, _ in mine]
        seconds = [float("nan") if (s := point[field]) is None else max(s, 1e-3) for _, point in mine]
        width = 2.2 if solver == "auto" else 1.0
        panel.plot(ops, seconds, marker="o", markersize=3, linewidth=width, label=solver)
    panel.set(xscale="log", yscale="log")
    panel.grid(alpha=0.25)


_CASE = ("graph", "ops", "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One graph and budget, and the point of each solver that ran."""

    graph: str
    ops: int
    share: float
    points: dict[str, Mapping[str, Any]]

    @property
    def kind(self) -> str:
        """The kind of graph and the budget, for headings."""
        return f"{self.graph}, {self.share:.0%}"

    @property
    def name(self) -> list[Any]:
        """The first three columns."""
        return [self.graph, f"{self.ops:,}", f"{self.share:.0%}"]

    def beside(self, solver: str) -> str:
        """Cost of a solver over the least, and its seconds to it."""
        if solver not in self.points:
            return ""
        cost = self.points[solver]["cost"]
        costs = [point["cost"] for point in self.points.values() if point["cost"] is not None]
        return "–" if cost is None else f"{cost / min(costs):.4f} ({_s(self.points[solver]['final_s'])})"


def _cases(results: Results) -> list[_Case]:
    found: dict[tuple[str, float, int], dict[str, Mapping[str, Any]]] = {}
    for row in results.where():
        for point in row["points"]:
            found.setdefault((row["kind"], row["share"], point["ops"]), {})[row["solver"]] = point
    order = sorted(found, key=lambda key: (list(_STEPS).index(key[0]), -key[1], key[2]))
    return [_Case(graph=g, share=share, ops=ops, points=found[g, share, ops]) for g, share, ops in order]


def _steps(point: Mapping[str, Any]) -> list[str]:
    cost, bound = point["cost"], point["bound"]
    if cost is None:
        return ["–"] * 5
    times = [_s(point[field]) for field in ("first_s", "near_s", "final_s")]
    return [*times, f"{cost:.4f}", f"{(cost - bound) / cost:.3%}"]


def _largest(cases: list[_Case], kind: str, solver: str) -> str:
    ops = [c.ops for c in cases if c.kind == kind and c.points.get(solver, {}).get("cost") is not None]
    return f"{max(ops):,}" if ops else "–"


def _ours(cases: list[_Case], ops: int) -> list[str]:
    """The worst figures of ``auto`` over the smallest graph of each kind with at least this number of ops."""
    nearest: dict[str, _Case] = {}
    for case in cases:
        if case.ops >= ops and "auto" in case.points:
            nearest.setdefault(case.kind, case)
    points = [case.points["auto"] for case in nearest.values()]
    points = [point for point in points if point["cost"] is not None]
    if not points:
        return ["–"] * 5
    sizes = sorted({case.ops for case in nearest.values()})
    span = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}–{sizes[-1]:,}"
    times = [f"≤ {_s(max(point[field] for point in points))}" for field in ("first_s", "final_s")]
    return [
        span,
        f"{len(points)} of {len(nearest)}",
        *times,
        f"≤ {max((p['cost'] - p['bound']) / p['cost'] for p in points):.2%}",
    ]


def _s(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.1f}"


EXPERIMENT = Experiment(
    name="scaling",
    title="How solvers scale",
    about="time and cost of each solver from 30 to 10,000 ops",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    alone=True,
)
"""The experiment."""
