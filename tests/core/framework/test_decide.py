"""The decision within a budget: 'auto' in bytes, and the framework's own order where that one fits."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from checkmate import DFGraph, InfeasibleBudgetError, Status, keep_all_peak
from checkmate.framework import Options, decide, in_bytes
from checkmate.generators import chain
from checkmate.heuristics import PlainOrder


def test_auto_is_what_is_held_and_nine_tenths_of_what_is_free(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "checkmate.framework"):
        assert in_bytes(Options.parse(), "device", 24, lambda: 1000).budget == 924
    assert "924 B, of which 24 B are held already; 10% of the free memory stays free" in caplog.text


def test_a_budget_in_bytes_asks_for_no_memory() -> None:
    options = Options.parse(budget="1KiB")
    assert in_bytes(options, "device", 24, lambda: pytest.fail("asked")) is options


def test_the_framework_s_own_order_is_taken_where_it_fits_and_the_base_order_does_not() -> None:
    """Op 0 makes 4 bytes, read by op 2 alone; op 1 needs 8 bytes of workspace: running it first saves 4."""
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 1, 1], deps=[[], [], [0, 1]])
    graph = replace(graph, ops=(graph.ops[0], replace(graph.ops[1], workspace=8), graph.ops[2]))
    plain = PlainOrder(order=(1, 0, 2))
    budget = plain.peak(graph)
    assert budget < keep_all_peak(graph)
    taken = decide(graph, budget, Options.parse(cache=False), plain=plain)
    assert taken.schedule is not None
    assert taken.schedule.sequence.tolist() == [1, 0, 2]
    assert taken.overhead == 0


def test_without_a_schedule_it_raises_or_says_so() -> None:
    graph, options = chain(8), Options.parse(cache=False, solver="heuristics")
    with pytest.raises(InfeasibleBudgetError):
        decide(graph, 1, options)
    assert decide(graph, 1, options, throw=False).status is Status.INFEASIBLE
