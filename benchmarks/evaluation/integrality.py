"""Integrality gap and solve time, with frontier-advancing stages and without them (appendix of the paper).

    Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020,
    arXiv:1910.02653.

The paper's program is solved in three forms: every stage may compute every op; stages advance a frontier;
the second form with our strengthened rows (:mod:`checkmate_solvers.literature.stages`). The linear
relaxation of each is solved first, then the program. Seconds are CPU time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checkmate import DFGraph, Schedule, generators, keep_all_peak, simulate
from checkmate.units import parse_budget
from checkmate_solvers.engines import Highs
from checkmate_solvers.literature.stages import Needed, PaperProgram, Shape
from checkmate_solvers.milp import Milp, Outcome
from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task
from pages import table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["EXPERIMENT", "PUBLISHED"]

PUBLISHED: Mapping[str, float] = {"unpartitioned": 21.56, "partitioned": 1.18}
"""The paper, on a chain of 8 layers, n = 17, in 4 units of memory: optimum / relaxation."""
_FORMS: Mapping[str, Mapping[str, bool]] = {
    "unpartitioned": {"partitioned": False, "strengthened": False},
    "partitioned": {"partitioned": True, "strengthened": False},
    "strengthened": {"partitioned": True, "strengthened": True},
}
_GRAPHS: Mapping[str, Callable[[], DFGraph]] = {
    **{f"chain {n}": lambda n=n: generators.chain(n) for n in (2, 3, 4, 5, 6, 8, 12)},  # type: ignore[misc]
    "chain 8, random costs": lambda: generators.chain(8, cost="random", seed=1),
    "layered 10": lambda: generators.random_layered(10, seed=1, training=True),
    "residual 1": lambda: generators.residual(1),
    "U-Net 1": lambda: generators.unet(1),
}
_CASES = (
    *((f"chain {layers}", 4) for layers in (2, 3, 4, 5, 6, 8)),
    *(("chain 8", units) for units in (5, 6, 8)),
    ("chain 12", 6),
    ("chain 8, random costs", "50%"),
    ("layered 10", "70%"),
    ("residual 1", "70%"),
    ("U-Net 1", "70%"),
)
_QUICK = (("chain 2", 4), ("chain 3", 4), ("chain 8", 4))
_LIMIT_S, _QUICK_LIMIT_S = 60.0, 4.0


def tasks(quick: bool) -> Sequence[Task]:
    """Each form of the program of each case."""
    return [
        {"graph": graph, "budget": budget, "form": form, "time_limit": _QUICK_LIMIT_S if quick else _LIMIT_S}
        for graph, budget in (_QUICK if quick else _CASES)
        for form in _FORMS
    ]


def measure(task: Task) -> Mapping[str, Any]:
    """Size, relaxation and optimum of one form; costs relative to computing every op once."""
    graph = _GRAPHS[task["graph"]]()
    budget = parse_budget(task["budget"], keep_all_peak(graph))
    needed = Needed(graph, budget)
    shape = Shape(graph=needed.graph, room=needed.room, partitioned=_FORMS[task["form"]]["partitioned"])
    model = PaperProgram(shape, strengthened=_FORMS[task["form"]]["strengthened"])
    rows, columns = model.program.matrix.shape
    first_runs = needed.graph.ideal_cost if shape.partitioned else 0.0

    def relative(outcome: Outcome) -> float | None:
        """The lower bound on the cost that an outcome proves; None without one."""
        bound = (first_runs + outcome.bound * shape.cost_unit) / needed.graph.ideal_cost
        return bound if abs(bound) != float("inf") else None

    relaxed, lp_s = _timed(model.program.relaxed(), _LIMIT_S)
    whole, ilp_s = _timed(model.program, task["time_limit"])
    return {
        "ops": graph.n_ops,
        "variables": columns,
        "rows": rows,
        "entries": model.program.matrix.nnz,
        "lp": relative(relaxed),
        "lp_s": lp_s,
        "cost": _judged(graph, budget, needed, model, whole),
        "bound": relative(whole),
        "finished": whole.finished,
        "ilp_s": ilp_s,
    }


def _timed(program: Milp, time_limit: float) -> tuple[Outcome, float]:
    started = time.process_time()
    outcome = Highs().solve(program, time_limit=time_limit, gap=0.0)
    return outcome, round(time.process_time() - started, 4)


def _judged(
    graph: DFGraph, budget: int, needed: Needed, model: PaperProgram, outcome: Outcome
) -> float | None:
    """The cost of the schedule; None without one, or if its simulated peak exceeds the budget."""
    if outcome.values is None:
        return None
    timeline = simulate(graph, Schedule.from_sequence(graph, needed.sequence(model.plan(outcome.values))))
    return timeline.cost / needed.graph.ideal_cost if timeline.peak <= budget else None


def markdown(results: Results) -> str:
    """Published figures, then gaps, sizes and times."""
    cases = list(dict.fromkeys((row["graph"], row["budget"]) for row in results.rows))
    gaps, sizes = [], []
    for graph, budget in cases:
        of = {row["form"]: row for row in results.where(graph=graph, budget=budget)}
        if of.keys() != _FORMS.keys():
            continue
        best = _best(of.values())
        ops = next(iter(of.values()))["ops"]
        said = "–" if best is None else f"{best:.4f}{'' if _proved(of.values()) else ' at most'}"
        relaxed = [f"{row['lp']:.4f}" for row in of.values()]
        gaps.append([graph, ops, budget, said, *relaxed, *(_ratio(row, best) for row in of.values())])
        shapes = [f"{row['variables']:,} × {row['rows']:,}" for row in of.values()]
        sizes.append([graph, ops, budget, *shapes, *(_seconds(row) for row in of.values())])
    head = ["graph", "ops", "budget"]
    return "\n\n".join(
        (
            "The paper's own case, a chain of 8 layers (17 ops) in 4 units of memory, published gaps "
            "beside ours; gap = best cost / relaxation, so 1 is best:",
            _beside(results),
            "All cases. Costs, and under the name of each form its relaxation, are relative to computing "
            "every op once; a gap of 1 means that the relaxation proves the cost.",
            table([*head, "best cost", *_FORMS, *(f"gap, {form}" for form in _FORMS)], gaps),
            "Variables × rows of the program, and CPU seconds to its proved optimum; “>”: the time limit "
            "ended the solve, with the cost and bound by then in parentheses.",
            table([*head, *_FORMS, *(f"s, {form}" for form in _FORMS)], sizes),
        )
    )


def _beside(results: Results) -> str:
    """The published figures and ours."""
    lines = []
    own = list(results.where(graph="chain 8", budget=4))
    best = _best(own)
    for row in own:
        gap = PUBLISHED.get(row["form"])
        once = row["ops"]  # each costs 1
        lines.append(
            [
                row["form"],
                "–" if gap is None else f"{gap:.2f}",
                _ratio(row, best),
                f"{row['lp'] * once:.3f}",
                "–" if best is None else f"{best * once:.0f}",
                _seconds(row),
            ]
        )
    return table(["form", "gap, paper", "gap, ours", "relaxation", "best cost", "HiGHS, CPU s"], lines)


def draw(results: Results) -> Figure | None:
    """Gap and CPU time over the length of the chain, in four units of memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.5), layout="constrained")
    panels = figure.subplots(1, 2)
    chains = [row for row in results.where(budget=4) if row["lp"]]
    for form in _FORMS:
        mine = sorted((row for row in chains if row["form"] == form), key=lambda row: int(row["ops"]))
        _lines(panels, form, mine, chains)
    for panel, label in zip(panels, ("best cost / relaxation", "CPU s to the proved optimum"), strict=True):
        panel.set(yscale="log", xlabel="ops of the chain", ylabel=label)
        panel.grid(alpha=0.25)
    panels[0].legend(title="in 4 units of memory")
    panels[1].set_title("triangles: ended by the time limit", fontsize="small")
    return figure


def _lines(panels: Sequence[Axes], form: str, mine: Sequence[Row], chains: Sequence[Row]) -> None:
    """The gap and the seconds of one form; solves that the time limit ended get a triangle."""
    ops = [row["ops"] for row in mine]
    bests = [_best(row for row in chains if row["ops"] == n) or float("nan") for n in ops]
    gaps = [best / row["lp"] for best, row in zip(bests, mine, strict=True)]
    panels[0].plot(ops, gaps, marker="o", label=form)
    line = panels[1].plot(ops, [max(row["ilp_s"], 1e-3) for row in mine], marker="o", label=form)
    late = [row for row in mine if not row["finished"]]
    x, y = ([row[name] for row in late] for name in ("ops", "ilp_s"))
    panels[1].plot(x, y, "^", ms=10, color=line[0].get_color())


def _best(rows: Any) -> float | None:
    """The least cost over all forms: every form allows the schedules of the next."""
    costs = [row["cost"] for row in rows if row["cost"] is not None]
    return min(costs, default=None)


def _proved(rows: Any) -> bool:
    """Whether no schedule in the stages of some form is cheaper."""
    return any(row["finished"] for row in rows)


def _ratio(row: Row, best: float | None) -> str:
    return "–" if best is None or not row["lp"] else f"{best / row['lp']:.2f}"


def _seconds(row: Row) -> str:
    """Seconds to the optimum; or the limit, with the cost and bound by then."""
    if row["finished"]:
        return f"{row['ilp_s']:.2f}"
    reached = "nothing found" if row["cost"] is None else f"{row['cost']:.4f}"
    bound = "" if row["bound"] is None else f", ≥ {row['bound']:.4f}"
    return f"> {row['ilp_s']:.0f} ({reached}{bound})"


EXPERIMENT = Experiment(
    name="integrality",
    title="Integrality gap and solve time",
    about="the paper's program with frontier-advancing stages and without (paper, appendix)",
    tasks=tasks,
    measure=measure,
    markdown=markdown,
    draw=draw,
    packages=("checkmate-core", "checkmate-solvers", "numpy", "scipy"),
)
