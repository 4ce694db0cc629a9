"""Largest batch: the most examples in a step on a device, for at most one more forward pass.

Figure 6 of Jain et al., "Checkmate", MLSys 2020, in FLOPs. A schedule σ of a network whose tensors are all in
proportion to the batch has, at batch b,

    peak(σ, b) = fixed + b · p(σ),        cost(σ) ≤ 2 · Σ forward + Σ backward                  (10)

where ``fixed`` is the bytes of parameters and their gradients, the same for every method. So we search for
the least p within the cost; the largest batch for a budget is ⌊(budget − fixed) / p⌋. Solvers get the graph
of batch 1 and the bytes for one example; each answer bounds p for every budget. In the end the schedule is
simulated on the graph that is traced at the resulting batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import zoo
from checkmate import DFGraph, Schedule, Status, Timeline, floor, simulate, solve
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from machine import SOLVING
from pages import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "PUBLISHED", "Search", "simulated", "title_of"]

_NETWORKS = ("vgg19", "mobilenet", "unet", "fcn8", "segnet", "resnet50")
_SOLVERS = ("keep-all", "chen-sqrt-n-ap", "chen-greedy", "auto")
_GIGABYTES = (16, 24, 80, 140)
"""10⁹ bytes: the paper's device, and current ones."""

PUBLISHED: Mapping[str, tuple[int | None, ...]] = {
    "vgg19": (167, 197, 266, 289),
    "mobilenet": (215, 452, 640, 1105),
    "unet": (16, 18, 35, 61),
    "fcn8": (29, 51, 49, 60),
    "segnet": (21, 33, 44, 62),
    "resnet50": (98, 129, None, 193),
}
"""Figure 6, as published or computed again from the paper's graphs, in the order of our solvers."""
_AT_LEAST = ("fcn8", "segnet", "resnet50")
"""Networks whose last figure is unproved: the paper's solver was stopped."""


def tasks(quick: bool) -> Sequence[Task]:
    """Each solver on each network: one answer holds for all budgets."""
    networks, seconds = (("vgg19", "unet"), 1.0) if quick else (_NETWORKS, 10.0)
    return [
        {"network": network, "solver": solver, "time_limit": seconds}
        for network in networks
        for solver in _SOLVERS
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """For each budget the largest batch found, simulated, and the least that is proved too large."""
    search = Search.of(task["network"], solver=task["solver"], time_limit=task["time_limit"])
    graph, batches = search.graph, []
    for gigabytes in _GIGABYTES:
        room = gigabytes * 10**9 - graph.fixed_size
        best, impossible = search.largest(room)
        found = {"gigabytes": gigabytes, "batch": best, "impossible": impossible}
        if best and search.schedule is not None:
            timeline = simulated(zoo.graph(task["network"], batch=best), search.schedule, gigabytes * 10**9)
            found |= {"peak": timeline.peak, "overhead": timeline.overhead}
        batches.append(found)
    return {
        "batches": batches,
        "fixed": graph.fixed_size,
        "most_overhead": search.most_cost / graph.ideal_cost - 1,
        "solves": search.solves,
        "ops": graph.n_ops,
        "digest": graph.digest,
    }


@dataclass(slots=True, kw_only=True)
class Search:
    """Bounds on the bytes for each example, from all answers of one solver.

    Attributes:
        works: the fewest bytes with a schedule; infinite: none yet.
        fails: one more than the most bytes without a schedule.
        proved: bytes that are proved necessary.
        constant: bytes of the graph that don't grow with the batch (the loss); each example counts them.
        schedule: the schedule within ``works``.
    """

    graph: DFGraph
    solver: str
    time_limit: float
    works: float = math.inf
    fails: float = 0.0
    proved: float = 0.0
    constant: int = 0
    schedule: Schedule | None = None
    solves: int = 0

    def __post_init__(self) -> None:
        """Start from the floor: no schedule has a lower peak."""
        self.proved = self.fails = float(floor(self.graph).size - self.graph.fixed_size)

    @classmethod
    def of(cls, network: str, *, solver: str, time_limit: float, small: bool = False) -> Self:
        """The search for a network of the zoo."""
        one, two = (zoo.graph(network, batch=batch, small=small) for batch in (1, 2))
        constant = sum(2 * a.size - b.size for a, b in zip(one.tensors, two.tensors, strict=True))
        return cls(graph=one, solver=solver, time_limit=time_limit, constant=constant)

    @property
    def most_cost(self) -> float:
        """One more forward pass, up to the arithmetic of floats."""
        forward = math.fsum(op.cost for op in self.graph.ops if not op.backward)
        return (self.graph.ideal_cost + forward) * (1 + 1e-12)

    def largest(self, room: int) -> tuple[int, int]:
        """The largest batch found and the least proved impossible, for the bytes of all examples."""
        if room <= 0:
            return 0, 1
        low, high = int(room // self.works), _first_over(room, self.fails)
        while high - low > 1:
            self._ask(room // ((low + high) // 2))
            low, high = int(room // self.works), min(high, _first_over(room, self.fails))
        return low, _first_over(room, self.proved - self.constant)

    def _ask(self, bytes_each: int) -> None:
        """Solve for one example, and update the bounds."""
        found = solve(
            self.graph,
            self.graph.fixed_size + bytes_each,
            solver=self.solver,
            time_limit=self.time_limit,
            throw=False,
        )
        self.solves += 1
        if found.schedule is not None and found.cost <= self.most_cost:
            self.works, self.schedule = float(found.peak - self.graph.fixed_size), found.schedule
            return
        self.fails = max(self.fails, bytes_each + 1.0)
        if found.status is Status.INFEASIBLE or found.bound > self.most_cost:
            self.proved = max(self.proved, bytes_each + 1.0)


def simulated(graph: DFGraph, schedule: Schedule, budget: int) -> Timeline:
    """Simulate a schedule found for one example on the graph of a batch.

    Raises:
        ArithmeticError: if it exceeds the budget: the tensors are not in proportion to the batch.
    """
    timeline = simulate(graph, schedule)
    if timeline.peak > budget:
        raise ArithmeticError(f"{timeline.peak} bytes, over a budget of {budget}: more than in proportion")
    return timeline


def _first_over(room: int, least: float) -> int:
    """The least batch whose examples have fewer than ``least`` bytes each."""
    return int(room // least) + 1


def markdown(results: Results) -> str:
    """The paper's budget, published figures beside ours; then larger budgets."""
    rows, networks = list(results.where()), results.distinct("network")
    beside = []
    for network in networks:
        ours = [_at(rows, network, solver, _GIGABYTES[0]) for solver in _SOLVERS]
        cells = [f"{_published(network, k)} / {_found(one)}" for k, one in enumerate(ours)]
        gain = ours[-1]["batch"] / (ours[0]["batch"] or math.inf)
        beside.append([title_of(network), *cells, ours[-1]["impossible"], f"{gain:.1f}×" if gain else "–"])
    head = ["network", *_SOLVERS, "proved impossible from", "auto / keep-all"]
    text = (
        f"Largest batch in {_GIGABYTES[0]} GB, published / here, with the overhead of its schedule in "
        "parentheses; “proved impossible from”: no schedule for this batch exists within the cost."
        f"\n\n{table(head, beside)}"
    )
    further = [
        [f"{title_of(network)}, {gigabytes} GB"]
        + [_at(rows, network, solver, gigabytes)["batch"] or "–" for solver in _SOLVERS]
        + [_at(rows, network, _SOLVERS[-1], gigabytes)["impossible"]]
        for network in networks
        for gigabytes in _GIGABYTES[1:]
    ]
    return f"{text}\n\nOur largest batches on larger devices:\n\n{table(head[:-1], further)}"


def draw(results: Results) -> Figure:
    """At the paper's budget, for each network a bar for each solver, relative to keeping everything."""
    from matplotlib.figure import Figure

    rows, networks = list(results.where()), results.distinct("network")
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for k, solver in enumerate(_SOLVERS):
        places = [place + (k - 1.5) * 0.2 for place in range(len(networks))]
        found = [_at(rows, network, solver, _GIGABYTES[0])["batch"] for network in networks]
        least = [_at(rows, network, _SOLVERS[0], _GIGABYTES[0])["batch"] for network in networks]
        heights = [batch / max(one, 1) for batch, one in zip(found, least, strict=True)]
        bars = axes.bar(places, heights, width=0.2, label=solver)
        axes.bar_label(bars, [str(batch) for batch in found], fontsize=8)
    axes.set_xticks(range(len(networks)), [title_of(network) for network in networks])
    axes.set_ylabel(f"largest batch in {_GIGABYTES[0]} GB,\nrelative to keep-all")
    axes.legend()
    return figure


def _at(rows: Sequence[Row], network: str, solver: str, gigabytes: int) -> Mapping[str, Any]:
    """The result of a solver for a budget; batch 0 without an answer."""
    for row in rows:
        if row["network"] == network and row["solver"] == solver:
            return next(found for found in row["batches"] if found["gigabytes"] == gigabytes)
    return {"batch": 0, "impossible": "–"}


def _found(one: Mapping[str, Any]) -> str:
    """The batch, and the overhead of its schedule."""
    return f"{one['batch']} (+{100 * one['overhead']:.1f} %)" if one["batch"] else "–"


def _published(network: str, solver: int) -> str:
    batch = PUBLISHED[network][solver]
    if batch is None:
        return "–"
    return f"≥ {batch}" if network in _AT_LEAST and solver == len(_SOLVERS) - 1 else str(batch)


def title_of(network: str) -> str:
    """The network's name in prose."""
    return zoo.NETWORKS[network].title


EXPERIMENT = Experiment(
    name="largest-batch",
    title="Largest batch",
    about="the largest batch on a device, for at most one more forward pass (paper, figure 6)",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    packages=(*SOLVING, "torch"),
    needs=("torch",),
)
