"""The public surface for type checkers: mypy and pyright check this file; it is never run.

``assert_type`` is checked exactly, and an ignore comment that ignores nothing is an error, so that each line
here fails as soon as the type that a user sees changes.
"""

from pathlib import Path
from typing import assert_type

from torch.nn import Linear
from torch.optim import SGD

import checkmate
import checkmate.torch as face
from checkmate import torch as imported_face
from checkmate.heuristics import ChenSqrtN
from checkmate.plugins import Solver, SolverSpec, hookimpl
from checkmate_tf import CompiledIteration, MemoryMeter, PlannedTraining, StepPlan
from checkmate_torch import CompiledModule, CompiledStep

graph = checkmate.DFGraph.from_nodes(cost=[1, 1.5], size=[4, 2], deps=[[], [0]])
assert_type(graph, checkmate.DFGraph)
assert_type(checkmate.read_graph(Path("graph.json")), checkmate.DFGraph)

solution = checkmate.solve(graph, "60%", solver=ChenSqrtN())
assert_type(solution, checkmate.Solution)
assert_type(solution.status, checkmate.Status)
assert_type(solution.schedule, checkmate.Schedule | None)
assert_type(checkmate.minimum_budget(graph).peak, int | None)

timeline = checkmate.simulate(graph, checkmate.Schedule.of([checkmate.Compute(0), checkmate.Free(0)]))
assert_type(timeline, checkmate.Timeline)
assert_type(timeline.peak, int)
assert_type(timeline.cost, float)

checkmate.slove(graph, "60%")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
checkmate.solve(graph, budget=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
graph.ops = ()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


class Mine:
    """Any class with ``solve`` is a solver."""

    def solve(self, problem: checkmate.Problem) -> checkmate.Solution:
        """Give up."""
        return checkmate.Solution.unknown(problem)


mine: Solver = Mine()
checkmate.solve(graph, 0.5, solver=Mine())


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """The hook keeps its type."""
    return [SolverSpec(name="mine", summary="gives up", load=Mine)]


assert_type(checkmate_register_solvers(), list[SolverSpec])

assert_type(checkmate.torch.compile(Linear(1, 1), budget="8GiB"), CompiledModule)
assert_type(checkmate.torch.plan(Linear(1, 1), (), "auto"), checkmate.Solution)
assert_type(checkmate.torch.trace(Linear(1, 1), ()).graph, checkmate.DFGraph)
assert_type(checkmate.torch.max_batch_size(str, Linear(1, 1), "8GiB", 0.3).size, int)
assert_type(checkmate.torch.compile(Linear(1, 1), "8GiB", time_limit=3.0, reserve="1MiB"), CompiledModule)
sgd = SGD(Linear(1, 1).parameters())
assert_type(
    checkmate.torch.compile_step(Linear(1, 1), max, sgd, "8GiB", max_norm=1.0, accumulate=2, max_plans=3),
    CompiledStep,
)
assert_type(checkmate.torch.plan_step(Linear(1, 1), max, sgd, (), "auto", has_aux=True), checkmate.Solution)
wrong = checkmate.torch.compile(Linear(1, 1), "8GiB", solvr=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
assert_type(face.compile(Linear(1, 1), budget="8GiB"), CompiledModule)
assert_type(imported_face.compile(Linear(1, 1), budget="8GiB"), CompiledModule)

with checkmate.tf2.memory_meter() as meter:
    assert_type(meter, MemoryMeter)
    assert_type(meter.peak, int)
assert_type(checkmate.tf2.compile(object(), "mse", "adam", budget="8GiB"), CompiledIteration)
assert_type(checkmate.tf2.plan(object(), "mse", "adam", None, None, "8GiB"), StepPlan)
assert_type(checkmate.tf2.trace(object(), "mse", "adam", None, None).graph, checkmate.DFGraph)
assert_type(checkmate.tf2.enable(object(), budget="60%"), PlannedTraining)
misspelt = checkmate.tf2.compille  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
