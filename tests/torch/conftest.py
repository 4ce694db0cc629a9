"""One thread, as on a busy machine OpenMP's barriers make small ops far slower; a solver; a clean start."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from checkmate import Problem, Schedule, Solution
from checkmate.model.lower import lazy_sequence
from checkmate_torch.planning.nested_calls.calls import n_outstanding

torch.set_num_threads(1)


@dataclass(frozen=True)
class Forgetful:
    """Keeps nothing of the forward pass: every op that backward needs runs twice, if it may."""

    def solve(self, problem: Problem) -> Solution:
        graph = problem.graph
        boundary = next(i for i, op in enumerate(graph.ops) if op.name == "loss")
        sequence = lazy_sequence(graph, np.zeros(graph.n_tensors, dtype=bool), boundary + 1)
        return Solution.found(problem, Schedule.from_sequence(graph, sequence))


@pytest.fixture(scope="session")
def forgetful() -> Forgetful:
    """The most demanding schedule: all of forward is computed again in backward."""
    return Forgetful()


@pytest.fixture(autouse=True)
def _no_call_of_another_test_is_due() -> None:
    """Results of an earlier test, in a cycle of references, are no calls of this test's steps."""
    if n_outstanding():
        gc.collect()
