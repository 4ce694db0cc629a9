"""On a machine that gives us a twentieth of its time, an easy budget stays easy, and answers stay true.

The clock runs twenty times faster than the CPU; CPU time is real.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from checkmate import InfeasibleBudgetError, generators, keep_all_peak, minimum_budget, solve
from checkmate.files.serialize import graph_bytes, read_graph

FASTER = 20
DEEP = generators.transformer(20)  # 607 ops
WIDE = generators.random_layered(300, training=True)


@pytest.fixture(autouse=True)
def _busy(monkeypatch: pytest.MonkeyPatch) -> None:
    started, real = time.monotonic(), time.monotonic
    clock: Callable[[], float] = lambda: started + FASTER * (real() - started)  # noqa: E731
    monkeypatch.setattr(time, "monotonic", clock)


@pytest.mark.parametrize("graph", [DEEP, WIDE], ids=["transformer", "random"])
@pytest.mark.parametrize("limit", [1.0, 10.0])
def test_half_the_memory_is_met(graph, limit: float) -> None:
    assert solve(graph, "50%", time_limit=limit).schedule is not None


@pytest.mark.parametrize("solver", ["auto", "heuristics"])
def test_the_rules_are_patient_too(solver: str) -> None:
    assert solve(DEEP, "60%", solver=solver, time_limit=2).schedule is not None


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize("graph", [DEEP, WIDE], ids=["transformer", "random"])
def test_the_least_budget_that_is_named_works(graph, fixed_order: bool) -> None:
    """That of an error, that of minimum_budget, and the next solve agree; of a graph read again, too."""
    with pytest.raises(InfeasibleBudgetError) as refused:
        solve(graph, 1, fixed_order=fixed_order, time_limit=3)
    named = refused.value.minimum
    assert named is not None
    assert named < keep_all_peak(graph)
    least = minimum_budget(graph, fixed_order=fixed_order, time_limit=1)
    assert least.peak is not None
    assert least.peak <= named
    again = read_graph(graph_bytes(graph))
    for budget in (named, least.peak):
        met = solve(again, budget, fixed_order=fixed_order, time_limit=1)
        assert met.schedule is not None
    with pytest.raises(InfeasibleBudgetError) as later:
        solve(again, 1, fixed_order=fixed_order, time_limit=1)
    assert later.value.minimum is not None
    assert later.value.minimum <= least.peak
