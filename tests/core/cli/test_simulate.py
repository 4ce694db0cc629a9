"""``checkmate simulate``: the verdict of the judge, in JSON and for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from checkmate import DFGraph, write_schedule
from checkmate.model.schedule import Compute, Free, Schedule

Checkmate = Callable[..., Result]


def test_a_table_for_people(checkmate: Checkmate, graph: Path, schedule: Path) -> None:
    judged = checkmate("simulate", graph, schedule)
    assert judged.exit_code == 0
    assert "32 B (32 bytes)" in judged.stdout
    assert "1 recomputations" in judged.stdout


@pytest.mark.parametrize("flags", [["--json"], []])
def test_an_invalid_schedule_is_exit_1_and_says_why(
    checkmate: Checkmate, graph: Path, chain: DFGraph, tmp_path: Path, flags: list[str]
) -> None:
    out = tmp_path / "schedule.json"
    write_schedule(out, Schedule.of([Compute(0), Compute(1), Free(1), Compute(2)]), chain)
    result = checkmate("simulate", graph, out, *flags)
    assert result.exit_code == 1
    assert result.stderr.startswith("Not valid: step 3")
    assert len(result.stderr.splitlines()) == 1
    if not flags:
        assert result.stdout == ""
        return
    assert json.loads(result.stdout) == {
        "valid": False,
        "reason": "MISSING_INPUT",
        "peak": None,
        "cost": None,
        "overhead": None,
        "steps": 4,
        "step": 3,
        "subject": "op 2 '2', input tensor 1 '1'",
    }


def test_a_schedule_of_another_graph_is_exit_2(checkmate: Checkmate, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    other = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
    write_schedule(out, Schedule.of([Compute(0)]), other)
    result = checkmate("simulate", graph, out)
    assert result.exit_code == 2
    assert "of another graph" in result.stderr


def test_an_empty_schedule_of_an_empty_graph_is_valid(checkmate: Checkmate, tmp_path: Path) -> None:
    from checkmate import write_graph

    empty = DFGraph(ops=(), tensors=(), fixed_size=5)
    write_graph(tmp_path / "g.json", empty)
    write_schedule(tmp_path / "s.json", Schedule.of([]), empty)
    facts = json.loads(checkmate("simulate", tmp_path / "g.json", tmp_path / "s.json", "--json").stdout)
    assert facts == {"valid": True, "reason": None, "peak": 5, "cost": 0.0, "overhead": 0.0, "steps": 0}
