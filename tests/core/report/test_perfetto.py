"""The trace for Perfetto: valid events, in order, with the numbers of the judge."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from checkmate import DFGraph, Schedule, Timeline, simulate
from checkmate.report.perfetto import PerfettoTrace, perfetto_trace

from .judged import HOSTILE, by_hand, hostile, timelines


def of(trace: dict[str, Any], kind: str, name: str | None = None) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == kind and name in (None, e["name"])]


@given(timelines())
def test_events_are_in_order_and_the_counter_is_the_judges_memory(timeline: Timeline) -> None:
    trace = perfetto_trace(timeline, budget=123)
    times = [event["ts"] for event in trace["traceEvents"]]
    assert times == sorted(times)
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in trace["traceEvents"])
    assert [e["args"]["bytes"] for e in of(trace, "C", "memory")] == timeline.memory.tolist()
    assert {e["args"]["bytes"] for e in of(trace, "C", "budget")} == {123}


@given(timelines())
def test_slices_are_the_runs_one_after_the_other(timeline: Timeline) -> None:
    slices = of(perfetto_trace(timeline), "X")
    assert [e["args"]["op"] for e in slices] == timeline.schedule.sequence.tolist()
    for before, after in pairwise(slices):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"])
    for event in slices:
        assert event["args"]["memory"] == timeline.memory[event["args"]["step"]]


def test_known_by_hand() -> None:
    trace = perfetto_trace(by_hand(), budget=41)
    assert [(e["name"], e["cat"], e["ts"], e["dur"]) for e in of(trace, "X")] == [
        ("a", "forward", 0.0, 2e6),
        ("b", "forward", 2e6, 1e6),
        ("c", "backward", 3e6, 1e6),
        ("a", "recomputed", 4e6, 2e6),
        ("d", "backward", 6e6, 4e6),
    ]
    assert [e["args"]["name"] for e in of(trace, "M", "thread_name")] == ["forward", "backward", "recomputed"]
    assert {"peak": 41, "budget": 41, "clock": "true to scale: costs are in s"}.items() <= trace[
        "otherData"
    ].items()
    assert {e["args"]["budget"] for e in of(trace, "X")} == {41}
    counts = [(e["ts"], e["args"]["bytes"]) for e in of(trace, "C", "memory")]
    assert counts[:4] == [(0.0, 23), (2e6, 30), (3e6, 19), (3e6, 41)]


@pytest.mark.parametrize(
    ("cost", "unit", "duration"), [(4.0, "ns", 4e-3), (4.0, "ms", 4e3), (5e9, "flop", 5e5), (0.0, "s", 1.0)]
)
def test_the_clock_fits_the_unit(cost: float, unit: str, duration: float) -> None:
    graph = DFGraph.from_nodes(cost=[cost, cost], size=[1, 1], deps=[[], [0]], cost_unit=unit)
    trace = perfetto_trace(simulate(graph, Schedule.from_sequence(graph, [0, 1])))
    assert [e["dur"] for e in of(trace, "X")] == [pytest.approx(duration)] * 2
    assert trace["otherData"]["budget"] is None


def test_the_file_is_json_with_any_names(tmp_path: Path) -> None:
    PerfettoTrace().write(hostile(), tmp_path / "t.perfetto.json")
    text = (tmp_path / "t.perfetto.json").read_text(encoding="utf-8")
    slices = of(json.loads(text), "X")
    assert slices[0]["name"] == HOSTILE[0]
    assert slices[-1]["name"] == f"op {len(HOSTILE) - 1}"
    assert "\\ud800" in text.replace("\\\\", "\\")
    assert "\x1b" not in slices[3]["name"]
