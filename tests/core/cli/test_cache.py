"""``checkmate cache`` counts and deletes cached entries; afterwards a solver is asked again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from checkmate import ScheduleCache
from checkmate.cost import MeasuredOps, OpProfile

Checkmate = Callable[..., Result]


def test_what_is_kept_is_counted_and_cleared(checkmate: Checkmate, graph: Path) -> None:
    solving = ("solve", graph, "--budget", "100%", "--solver", "heuristics", "--cache")
    assert checkmate(*solving).exit_code == 0
    runs = {"a": [1.0], "b": [1.0, 9.0, 9.0]}
    for device in ("abacus", "loom"):
        table = MeasuredOps({"device": device})
        table.add({name: OpProfile.of_runs(seconds, 8) for name, seconds in runs.items()})
    (table.file.parent / "notes.json").write_text("of another program")
    facts = json.loads(checkmate("cache", "info", "--json").stdout)
    assert facts["unsteady"] == 2
    assert [(kept["kind"], kept["entries"]) for kept in facts["kept"]] == [("schedules", 1), ("timings", 4)]
    for kept in facts["kept"]:
        files = [file for file in Path(kept["directory"]).iterdir() if file.name != "notes.json"]
        assert kept["bytes"] == sum(file.stat().st_size for file in files) > 0
    assert "2 timings" in checkmate("cache", "info").stdout

    assert json.loads(checkmate("cache", "clear", "--json").stdout)["kept"] == facts["kept"]
    assert (len(ScheduleCache()), MeasuredOps({"device": "loom"}).known()) == (0, {})
    assert [file.name for file in table.file.parent.iterdir()] == ["notes.json"]
    assert {kept["bytes"] for kept in json.loads(checkmate("cache", "info", "--json").stdout)["kept"]} == {0}
