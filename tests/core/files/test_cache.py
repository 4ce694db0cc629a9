"""The schedule cache: it saves solves, checks every entry, and fails no solve."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.core.graphs import CHAIN

from checkmate import (
    DFGraph,
    Problem,
    Schedule,
    ScheduleCache,
    Solution,
    Status,
    keep_all_peak,
    simulate,
    solve,
)
from checkmate.files.cache import identity_of
from checkmate.files.serialize import schedule_bytes
from checkmate.heuristics import BestHeuristic, KeepAll, StaticEviction
from checkmate.testing.strategies import graphs


@dataclass(frozen=True)
class Counting:
    """Keeps everything, and counts its calls."""

    level: int = 1

    def solve(self, problem: Problem) -> Solution:
        ASKED.append(problem)
        return KeepAll().solve(problem)


@dataclass(frozen=True)
class Holds:
    """Any settings, also those that can't be compared."""

    what: object

    def solve(self, problem: Problem) -> Solution:
        ASKED.append(problem)
        return KeepAll().solve(problem)


ASKED: list[Problem] = []


@pytest.fixture(autouse=True)
def _nobody_was_asked() -> None:
    ASKED.clear()


@pytest.fixture
def cache(tmp_path: Path) -> ScheduleCache:
    return ScheduleCache(tmp_path / "a" / "cache")


def entry(cache: ScheduleCache) -> Path:
    (file,) = cache.directory.glob("*.json")
    return file


@given(graph=graphs())
def test_a_second_answer_is_the_first(graph: DFGraph, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = ScheduleCache(tmp_path_factory.mktemp("cache"))
    budget = max(1, keep_all_peak(graph) * 3 // 4)
    first, second = (solve(graph, budget, solver="heuristics", cache=cache, throw=False) for _ in range(2))
    assert second.schedule == first.schedule
    assert (second.status, second.bound, second.solver) == (first.status, first.bound, first.solver)
    assert len(cache) == (first.schedule is not None)
    if first.schedule is not None:
        assert second.seconds == first.seconds
        assert second.origin == {**first.origin, "cache": str(entry(cache))}
        assert simulate(graph, first.schedule).peak == second.peak


def test_it_is_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    for off in (None, False):
        solve(CHAIN, "100%", solver=Counting(), cache=off)
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        solve(CHAIN, "100%", solver=Counting(), cache=True)
    assert len(ASKED) == 3
    assert len(ScheduleCache()) == 1
    assert ScheduleCache().directory == tmp_path / "schedules"


@dataclass(frozen=True)
class Interrupted:
    """Returns its best schedule after Ctrl-C."""

    def solve(self, problem: Problem) -> Solution:
        return replace(KeepAll().solve(problem), origin={"interrupted": "Ctrl-C"})


def test_an_interrupted_answer_is_not_kept(cache: ScheduleCache) -> None:
    assert solve(CHAIN, "100%", solver=Interrupted(), cache=cache).interrupted
    assert len(cache) == 0


def test_an_empty_cache_is_a_cache(cache: ScheduleCache) -> None:
    assert cache
    assert (len(cache), cache.clear()) == (0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 41},
        {"seed": 1},
        {"fixed_order": True},
        {"threads": 2},
        {"time_limit": 11},
        {"solver": Counting(2)},
        {"graph": DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=[[], [0]])},
    ],
)
def test_another_question_is_not_in_the_cache(cache: ScheduleCache, change: dict[str, Any]) -> None:
    question: dict[str, Any] = {"graph": CHAIN, "budget": 40, "solver": Counting()}
    for asked in (question, question | change, question):
        solve(**asked, cache=cache)
    assert len(ASKED) == 2
    assert len(cache) == 2


def test_names_of_ops_do_not_count(cache: ScheduleCache) -> None:
    deps: list[list[int]] = [[], [0]]
    for name in ("one", "two"):
        solve(
            DFGraph.from_nodes(cost=[1, 1], size=[4, 4], deps=deps, name=name),
            "100%",
            solver=Counting(),
            cache=cache,
        )
    assert len(ASKED) == 1


def test_a_version_of_the_plugin_is_part_of_the_question(cache: ScheduleCache) -> None:
    problem = Problem(graph=CHAIN, budget=40)
    solution = KeepAll().solve(problem)
    cache.store(solution, {"name": "x", "plugin": "'x' (x 1.0)"})
    assert cache.find(problem, {"name": "x", "plugin": "'x' (x 1.0)"}, lambda _: solution) is not None
    assert cache.find(problem, {"name": "x", "plugin": "'x' (x 1.1)"}, lambda _: solution) is None


@pytest.mark.parametrize("what", [object(), lambda: 0, [1], {"a": 1}, (1, [2])])
def test_a_solver_without_identity_is_not_cached(cache: ScheduleCache, what: object) -> None:
    for _ in range(2):
        solve(CHAIN, "100%", solver=Holds(what), cache=cache)
    assert (len(ASKED), len(cache)) == (2, 0)


def test_the_identity_of_solvers() -> None:
    values = [
        Holds(1),
        Holds(1.0),
        Holds("1"),
        Holds(True),
        Holds(None),
        Holds((1,)),
        Holds(((1,),)),
        Holds(()),
    ]
    values += [Holds(Counting(1)), Holds(Counting(2)), Holds(Status.UNKNOWN), Holds("Status.UNKNOWN")]
    texts = [json.dumps(identity_of(value)) for value in values]
    assert len(set(texts)) == len(values)
    assert identity_of(StaticEviction(rule="dtr")) != identity_of(StaticEviction(rule="belady"))
    assert identity_of(BestHeuristic()) == identity_of(BestHeuristic())

    @dataclass(frozen=True)
    class Local:
        pass

    assert identity_of(Local()) is None
    assert identity_of(Holds(Local())) is None
    twin = type("Counting", (), {"__module__": "elsewhere"})
    assert identity_of(Holds(dataclass(frozen=True)(twin)())) != identity_of(Holds(Counting()))
    assert identity_of(object()) is None


def test_an_entry_can_be_read_by_people(cache: ScheduleCache) -> None:
    solution = solve(CHAIN, "60%", solver="evict-dtr", cache=cache, seed=3)
    wire = json.loads(entry(cache).read_text())
    assert (wire["format"], wire["graph"]) == ("checkmate.schedule", CHAIN.digest)
    meta = wire["meta"]
    assert (meta["solver"], meta["status"], meta["cost"]) == (
        "evict-dtr",
        solution.status.value,
        solution.cost,
    )
    assert meta["question"]["budget"] == 24
    assert meta["question"]["solver"]["name"] == "evict-dtr"
    assert "checkmate-core" in meta["question"]["solver"]["plugin"]


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(file: Path) -> None:
        wire = json.loads(file.read_text())
        change(wire)
        file.write_text(json.dumps(wire))

    return edit


def foreign(file: Path) -> None:
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
    file.write_bytes(schedule_bytes(Schedule.from_sequence(graph, [0]), graph))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "noise": lambda file: file.write_bytes(os.urandom(64)),
    "text": lambda file: file.write_text("my notes"),
    "deep": lambda file: file.write_bytes(b'{"format":"checkmate.schedule","version":1,"x":' + b"[" * 99_999),
    "another graph": foreign,
    "newer version": edited(lambda wire: wire.update(version=2)),
    "no meta": edited(lambda wire: wire.pop("meta")),
    "no status": edited(lambda wire: wire["meta"].pop("status")),
    "unknown status": edited(lambda wire: wire["meta"].update(status="splendid")),
    "bound is text": edited(lambda wire: wire["meta"].update(bound="8")),
    "bound is no number": edited(lambda wire: wire["meta"].update(bound=None)),
    "bound above the cost": edited(lambda wire: wire["meta"].update(bound=12.0)),
    "an optimum that is none": edited(lambda wire: wire["meta"].update(status="optimal", bound=9.0)),
    "infeasible": edited(lambda wire: (wire["meta"].update(status="infeasible"), wire.update(steps=[]))),
    "unknown": edited(lambda wire: (wire["meta"].update(status="unknown"), wire.update(steps=[]))),
    "infeasible with steps": edited(lambda wire: wire["meta"].update(status="infeasible")),
    "no steps": edited(lambda wire: wire.update(steps=[])),
    "a step too few": edited(lambda wire: wire["steps"].pop(0)),
    "an op that is not there": edited(lambda wire: wire["steps"].append(["compute", 99])),
    "over the budget": edited(lambda wire: wire.update(steps=[["compute", i] for i in range(8)])),
    "another budget's": edited(lambda wire: wire["meta"]["question"].update(budget=25)),
    "negative seconds": edited(lambda wire: wire["meta"].update(seconds=-1.0)),
    "seconds without end": lambda file: file.write_bytes(
        re.sub(rb'"seconds":[^,}]*', b'"seconds":1e999', file.read_bytes())
    ),
    "origin is a list": edited(lambda wire: wire["meta"].update(origin=["me"])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_entry_is_ignored_reported_and_replaced(
    cache: ScheduleCache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    def ask() -> Solution:
        return solve(CHAIN, 24, solver="heuristics", cache=cache)

    good = ask()
    file = entry(cache)
    DAMAGE[damage](file)
    with caplog.at_level(logging.WARNING, "checkmate"):
        again = ask()
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert record.exc_info is None
    assert again.schedule == good.schedule
    assert "cache" not in again.origin
    caplog.clear()
    third = ask()
    assert not caplog.records
    assert third.origin["cache"] == str(file)
    assert [path.name for path in cache.directory.iterdir()] == [file.name]


def test_a_schedule_in_another_order_is_no_answer_where_order_is_fixed(
    cache: ScheduleCache, caplog: pytest.LogCaptureFixture
) -> None:
    diamond = DFGraph.from_nodes(cost=[1, 1, 1, 1], size=[1] * 4, deps=[[], [0], [0], [1, 2]])
    solve(diamond, "100%", solver="keep-all", cache=cache, fixed_order=True)
    swapped = schedule_bytes(Schedule.from_sequence(diamond, [0, 2, 1, 3]), diamond)
    edited(lambda wire: wire.update(steps=json.loads(swapped)["steps"]))(entry(cache))
    solve(diamond, "100%", solver="keep-all", cache=cache, fixed_order=True)
    assert "base order" in caplog.text


def test_a_cache_entry_that_is_not_a_file_does_no_harm(
    cache: ScheduleCache, caplog: pytest.LogCaptureFixture
) -> None:
    solve(CHAIN, "100%", solver=Counting(), cache=cache)
    file = entry(cache)
    file.unlink()
    os.mkfifo(file)  # reading it would block forever
    solve(CHAIN, "100%", solver=Counting(), cache=cache)
    assert "not a regular file" in caplog.text
    assert solve(CHAIN, "100%", solver=Counting(), cache=cache).origin["cache"] == str(file)
    file.unlink()
    file.mkdir()
    assert solve(CHAIN, "100%", solver=Counting(), cache=cache).cost == 8.0
    assert [path.name for path in cache.directory.iterdir()] == [file.name]


@pytest.mark.parametrize("obstacle", ["file", "below a file", "read-only"])
def test_a_directory_that_can_not_be_written_costs_a_warning(
    tmp_path: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place"
    if obstacle == "read-only":
        place.mkdir(mode=0o500)
        if os.access(place, os.W_OK):
            place = Path("/proc/checkmate")  # even root can't write there
            if not Path("/proc").is_dir():
                pytest.skip("this user may write anywhere")
    else:
        place.write_text("in the way")
        place = place / "below" if obstacle == "below a file" else place
    cache = ScheduleCache(place)
    assert solve(CHAIN, "100%", solver="keep-all", cache=cache).cost == 8.0
    assert "can't be cached in" in caplog.text
    assert str(place) in caplog.text
    assert len(cache) == 0


def test_only_schedules_are_kept(cache: ScheduleCache) -> None:
    for budget, status in ((24, Status.UNKNOWN), (8, Status.INFEASIBLE)):
        assert solve(CHAIN, budget, solver="keep-all", cache=cache, throw=False).status is status
    assert not cache.directory.exists()


def test_clear_deletes_only_files_of_the_cache(cache: ScheduleCache) -> None:
    solve(CHAIN, "100%", solver="keep-all", cache=cache)
    solve(CHAIN, "60%", solver="evict-dtr", cache=cache)
    notes = cache.directory / "notes.json"
    notes.write_text("mine")
    left, young = (cache.directory / f"{name}.checkmate-part" for name in ("abc", "def"))
    left.write_text("left by a crash")
    os.utime(left, (0, 0))
    young.write_text("being written")
    assert len(cache) == 2
    assert cache.clear() == 2
    assert sorted(cache.directory.iterdir()) == sorted([notes, young])


HAMMER = """
import logging, sys
from checkmate import DFGraph, ScheduleCache, solve
class Count(logging.Handler):
    def emit(self, record):
        print(record.getMessage())
logging.getLogger("checkmate").addHandler(Count(logging.WARNING))
deps = [[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]]
chain = DFGraph.from_nodes(cost=[1] * 8, size=[8] * 8, deps=deps)
cache = ScheduleCache(sys.argv[1])
for k in range(150):
    for budget in (24, 32, 40):
        solver = "keep-all" if budget == 40 else "evict-dtr"
        assert solve(chain, budget, solver=solver, cache=cache).peak <= budget
    if k % 3 == int(sys.argv[2]):
        cache.clear()
"""


def test_processes_share_a_directory(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(tmp_path), str(k)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(2)
    ]
    reports = [writer.communicate(timeout=120)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], reports
    assert reports == ["", ""]  # no reader got a part of a file
    assert not list(tmp_path.glob("*.checkmate-part"))


def test_importing_checkmate_looks_for_no_directory() -> None:
    code = "import sys, checkmate; print('platformdirs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
