"""The HTML report as text: well-formed, self-contained, safe against any name, of bounded size."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from checkmate import DFGraph, Problem, Schedule, Solution, Timeline, keep_all_peak, simulate
from checkmate.problem.reading import Phase, Reading
from checkmate.report import html_report
from checkmate.report.html import HtmlReport
from checkmate.report.svg import GROUPS, MemoryDrawing
from checkmate.units import format_bytes

from .judged import HOSTILE, by_hand, hostile, large, timelines

VOID = {"meta"}


class Page(HTMLParser):
    """A page's elements, the text in each kind of element, and whether every one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open[-1:]:
            self.inside[tag] = self.inside.get(tag, "") + data


def written(tmp_path: Path, answer: Solution | Timeline, **options: Any) -> str:
    path = tmp_path / "report.html"
    html_report(answer, path, **options)
    return path.read_text(encoding="utf-8")


def embedded(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match
    data: dict[str, Any] = json.loads(match[1])
    return data


def found(timeline: Timeline, budget: int) -> Solution:
    return Solution.found(Problem(graph=timeline.graph, budget=budget), timeline.schedule, solver="<me>")


def test_a_solution_in_figures_with_reasons(tmp_path: Path) -> None:
    text = written(tmp_path, found(by_hand(), 42))
    page = Page(text)
    values = re.findall(r"<div><dt>(.*?)</dt><dd>(.*?)</dd></div>", text)
    assert {
        "status": "feasible",
        "solver": "&lt;me&gt;",
        "cost": "10 s",
        "overhead": "25.00%",
        "peak": "41 B",
        "budget": "42 B",
        "proved bound": "8 s",
        "gap": "20.00%",
        "recomputed": "1 runs",
    }.items() <= dict(values).items()
    cells = page.inside["td"]
    assert "kept, the peak would be 49 B: over the budget" in cells
    assert "workspace 20 B, fixed 10 B, input 5 B, activation 4 B, gradient 2 B" in page.inside["p"]
    assert page.inside["title"] == "by hand"


def test_the_plain_steps_peak_and_the_measured_one_stand_beside_the_predicted(tmp_path: Path) -> None:
    timeline = by_hand()
    plain = format_bytes(keep_all_peak(timeline.graph))
    for answer in (timeline, found(timeline, 42)):
        text = written(tmp_path, answer)
        assert f"<dt>plain step&#x27;s peak</dt><dd>{plain}</dd>" in text
        assert "<dt>measured peak</dt>" not in text
        text = written(tmp_path, answer, plain_peak=99, measured=40)
        assert "<dt>plain step&#x27;s peak</dt><dd>99 B</dd>" in text
        assert "<dt>measured peak</dt><dd>40 B</dd>" in text


def test_a_timeline_alone_knows_no_solver(tmp_path: Path) -> None:
    HtmlReport().write(by_hand(), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<dt>solver</dt>" not in text
    assert "<dt>budget</dt>" not in text
    assert 'class="budget" d="M62' not in text
    assert embedded(text)["budget"] is None
    HtmlReport().write(by_hand(), tmp_path / "r.html", budget=45)
    assert embedded((tmp_path / "r.html").read_text(encoding="utf-8"))["budget"] == 45


def test_no_schedule_still_gives_a_page(tmp_path: Path) -> None:
    problem = Problem(graph=by_hand().graph, budget=5)
    page = Page(written(tmp_path, Solution.infeasible(problem), title="too small"))
    assert "infeasible" in page.inside["dd"]
    assert page.inside["h1"] == "too small"
    assert "script" not in page.inside


def test_an_empty_schedule_gives_a_page(tmp_path: Path) -> None:
    graph = DFGraph.from_nodes(cost=[], size=[], deps=[])
    Page(written(tmp_path, simulate(graph, Schedule.from_sequence(graph, []))))


def test_where_nothing_costs_anything_the_axis_counts_runs(tmp_path: Path) -> None:
    graph = DFGraph.from_nodes(cost=[0, 0], size=[1, 1], deps=[[], [0]], outputs=[0, 1])
    text = written(tmp_path, simulate(graph, Schedule.from_sequence(graph, [0, 1])))
    assert "ops run" in Page(text).inside["text"]
    assert "Nothing: every op runs at most once." in text


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    text = written(tmp_path, found(by_hand(), 42))
    assert not re.search(r"https?:|//[a-z]|@import|url\(|\bsrc=|\bhref=|fetch|XMLHttp|import\(", text)
    (policy,) = (a["content"] for tag, a in Page(text).elements if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_any_names_are_text(tmp_path: Path) -> None:
    plain, text = written(tmp_path, by_hand()), written(tmp_path, hostile(), title=HOSTILE[1])
    assert [t for t, _ in Page(text).elements].count("script") == [t for t, _ in Page(plain).elements].count(
        "script"
    )
    assert text.count("</script>") == 2
    assert "<!--" not in text
    assert not set(text) & set("\0\x1b\r\u2028\u202e")
    data = embedded(text)
    assert HOSTILE[0] in data["names"]
    assert all(name.isprintable() for name in data["names"])


@given(timelines())
def test_the_data_are_the_judges(timeline: Timeline) -> None:
    drawing = MemoryDrawing(Reading(timeline), None)
    if len(timeline.schedule):
        assert drawing.shown.tolist() == list(range(len(drawing.reading.ops)))
        assert len(drawing.edges) == len(drawing.shown) + 1
        assert drawing.edges == sorted(drawing.edges)
        Page(drawing.svg())


@pytest.mark.parametrize("n", [2_500, pytest.param(50_000, marks=pytest.mark.slow)])
def test_large_schedules_are_drawn_in_groups_that_hide_no_excess(tmp_path: Path, n: int) -> None:
    timeline = large(n)
    reading = Reading(timeline)
    text = written(tmp_path, timeline, budget=timeline.peak - 1)
    assert len(text) < 1_500_000
    data = embedded(text)
    assert len(data["step"]) == GROUPS
    assert data["memory"][data["peak"]] == max(data["memory"]) == timeline.peak
    assert f"{len(reading.ops):,} runs are drawn in 2,000 groups" in text
    assert re.search(r"… and \d+ more", text)
    drawing = MemoryDrawing(reading, None)
    ends = [*drawing.bounds.tolist()[1:]]
    for a, b, run, share in zip(
        drawing.bounds.tolist(), ends, drawing.shown, drawing.recomputed, strict=False
    ):
        assert reading.memory[run] == reading.memory[a:b].max()
        assert share == np.mean(reading.phases[a:b] == Phase.RECOMPUTE)
