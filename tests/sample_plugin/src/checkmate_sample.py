"""A third-party solver: drop random tensors at a random moment; the cheapest of many tries wins."""

import time
from dataclasses import dataclass

import numpy as np

from checkmate import Problem, Schedule, Solution, simulate
from checkmate.plugins import SolverSpec, hookimpl
from checkmate.solving import lazy_sequence


@dataclass(frozen=True)
class Luck:
    """Drops tensors at random, ``tries`` times."""

    tries: int = 300

    def solve(self, problem: Problem) -> Solution:
        """Return the cheapest try whose peak is within the budget."""
        graph, random = problem.graph, np.random.default_rng(problem.seed)
        best, deadline = Solution.unknown(problem), time.monotonic() + problem.time_limit
        for _ in range(self.tries):
            kept = random.random(graph.n_tensors) < random.random()
            sequence = lazy_sequence(graph, kept, at=int(random.integers(graph.n_ops + 1)))
            timeline = simulate(graph, Schedule.from_sequence(graph, sequence))
            if timeline.peak <= problem.budget and timeline.cost < best.cost:
                best = Solution.found(problem, timeline.schedule)
            if time.monotonic() > deadline:
                break
        return best


@hookimpl
def checkmate_register_solvers() -> list[SolverSpec]:
    """Offer the solver ``luck``."""
    return [SolverSpec(name="luck", summary="drops tensors at random", load=Luck)]
