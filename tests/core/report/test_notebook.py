"""What notebooks show: well-formed, every name escaped, small for any graph, without scripts or network."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from checkmate import DFGraph, Frontier, Problem, Schedule, Solution, Timeline, simulate
from checkmate.report import Account, Explanation, Kind, explain, peak_report
from checkmate.text.markup import table

from .judged import HOSTILE, by_hand, hostile, large


def shown(timeline: Timeline, name: str = "plain") -> tuple[Any, ...]:
    """Everything about a timeline that notebooks show; a name that solvers, modules and remarks have."""
    problem = Problem(graph=timeline.graph, budget=max(timeline.peak, 1))
    solution = Solution.found(problem, timeline, solver=name)
    account = Account(kinds=(Kind.ACTIVATIONS,) * timeline.graph.n_tensors)
    report = peak_report(solution, account, remarks=[name])
    why = explain(solution, [name] * timeline.graph.n_ops)
    frontier = Frontier(graph=timeline.graph, answers=(solution,))
    return solution, timeline.schedule, report, why, timeline.graph, timeline, frontier


@pytest.mark.parametrize("timeline", [by_hand(), hostile(), large(10_000)], ids=["small", "hostile", "large"])
def test_it_is_xml_without_scripts_and_small(timeline: Timeline) -> None:
    for thing in (each for name in HOSTILE for each in shown(timeline, name)):
        html = thing._repr_html_()
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(html).iter()}
        assert tags <= {"b", "div", "p", "path", "svg", "table", "td", "th", "tr"}
        assert len(html) < 200_000


def test_texts_stay_texts() -> None:
    (cell,) = ET.fromstring(table([["<b>&amp;\"'"]])).iter("td")
    assert cell.text == "<b>&amp;\"'"


def test_notebooks_show_what_is_printed() -> None:
    _, _, report, explanation, *_, frontier = shown(by_hand())
    for thing in (report, explanation, frontier):
        texts = [text.strip() for text in ET.fromstring(thing._repr_html_()).itertext()]
        assert all(" ".join(text.split()) in " ".join(str(thing).split()) for text in texts[1:] if text)


def test_without_a_schedule_and_with_an_empty_one() -> None:
    graph = DFGraph.from_nodes(cost=[], size=[], deps=[])
    for solution in (
        Solution.infeasible(Problem(graph=by_hand().graph, budget=1)),
        Solution.found(Problem(graph=graph, budget=1), simulate(graph, Schedule.of([]))),
    ):
        assert ET.fromstring(solution._repr_html_()).tag == "div"
    empty = Frontier(graph=graph, answers=())
    for thing in (Schedule.of([]), graph, simulate(graph, Schedule.of([])), empty):
        assert ET.fromstring(thing._repr_html_()).tag == "div"
    assert "nothing is recomputed" in Explanation(rows=(), cost_unit="s")._repr_html_()
