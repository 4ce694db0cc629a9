"""Forged entries of the schedule cache: impossible ones are refused, and nothing hangs."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from checkmate import DFGraph, ScheduleCache, Solution, generators, simulate, solve
from faults.fault import Fault, FaultClass, in_time
from faults.files import mutated

__all__ = ["CLASSES"]

_SOLVER = "evict-belady"
_BUDGETS = ("60%", "70%", "80%")


@cache
def _graphs() -> tuple[DFGraph, ...]:
    return generators.unet(2), generators.residual(3), generators.chain(8)


@cache
def _answer(graph: DFGraph, budget: str) -> Solution:
    return solve(graph, budget, solver=_SOLVER)


def _set(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        for key in path[:-1]:
            entry = entry[key]
        entry[path[-1]] = value

    return change


_LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "another graph's digest": _set("graph", value="0" * 64),
    "no digest": lambda entry: entry.pop("graph"),
    "negative seconds": _set("meta", "seconds", value=-1.0),
    "seconds that are no number": _set("meta", "seconds", value="long"),
    "another question's budget": _set("meta", "question", "budget", value=1),
    "another question's graph": _set("meta", "question", "graph", value="0" * 64),
    "another solver": _set("meta", "question", "solver", "name", value="auto"),
    "no question": lambda entry: entry["meta"].pop("question"),
    "infeasible": _set("meta", "status", value="infeasible"),
    "unknown, with a schedule": _set("meta", "status", value="no such status"),
    "a bound above the cost": _set("meta", "bound", value=1e300),
    "a bound that is no number": _set("meta", "bound", value="low"),
    "optimal, with no bound": lambda entry: entry["meta"].update(status="optimal", bound=0.0),
    "no step": _set("steps", value=[]),
    "the first step only": lambda entry: entry.update(steps=entry["steps"][:1]),
    "steps backwards": lambda entry: entry.update(steps=entry["steps"][::-1]),
    "another version": _set("version", value=99),
}


def _forgeries(random: Random, count: int, folder: Path) -> Iterator[Fault]:
    names = [*_LIES, *_PLACES]
    for k in range(count):
        graph, budget, place = random.choice(_graphs()), random.choice(_BUDGETS), folder / str(k)
        name = names[k % len(names)] if k < 4 * len(names) else "mutated"
        seed = random.random()
        yield Fault(
            f"{name}, {graph.name} at {budget}", lambda a=(graph, budget, place, name, seed): _happen(*a)
        )


def _happen(graph: DFGraph, budget: str, place: Path, name: str, seed: float) -> str | None:
    store = ScheduleCache(place)
    honest = _answer(graph, budget)
    solve(graph, budget, solver=_SOLVER, cache=store)
    (file,) = place.glob("*.json")
    whole = file.read_bytes()
    if name in _LIES:
        entry = json.loads(whole)
        before = json.dumps(entry)
        _LIES[name](entry)
        if json.dumps(entry) == before:
            return "the entry has no such place: this forgery is out of date"
        file.write_text(json.dumps(entry))
    elif name in _PLACES:
        _PLACES[name](file, whole)
    else:
        file.write_bytes(mutated(Random(seed), whole))
    log = logging.getLogger("checkmate")
    level = log.level
    log.setLevel(logging.ERROR)  # each forgery causes a warning
    try:
        with in_time():
            found = solve(graph, budget, solver=_SOLVER, cache=store)
    finally:
        log.setLevel(level)
    if name != "mutated" and "cache" in found.origin:
        return "it was believed"
    assert found.schedule is not None
    replay = simulate(graph, found.schedule)
    sound = (
        (replay.peak, replay.cost) == (found.peak, found.cost)
        and replay.peak <= honest.problem.budget
        and found.bound <= found.cost
        and math.isfinite(found.seconds)
        and found.seconds >= 0
    )
    return None if sound else f"an answer that is not sound: {found!r}"


def _link_to(target: Path, file: Path) -> None:
    file.unlink()
    file.symlink_to(target)


def _folder(file: Path, _whole: bytes) -> None:
    file.unlink()
    file.mkdir()


def _pipe(file: Path, _whole: bytes) -> None:
    file.unlink()
    os.mkfifo(file)


_PLACES: dict[str, Callable[[Path, bytes], None]] = {
    "empty": lambda file, _whole: file.write_bytes(b"") and None,
    "cut off": lambda file, whole: file.write_bytes(whole[: len(whole) // 2]) and None,
    "a folder": _folder,
    "a pipe": _pipe,
    "a link to nothing": lambda file, _whole: _link_to(file.parent / "nothing", file),
    "a link to itself": lambda file, _whole: _link_to(file, file),
    "a link to endless zeros": lambda file, _whole: _link_to(Path("/dev/zero"), file),
    "a sparse file of a terabyte": lambda file, _whole: os.truncate(file, 2**40),
}

CLASSES = (
    FaultClass(
        name="forged entries of the schedule cache",
        must="the entry is refused, the answer is right, nothing hangs",
        count=400,
        make=_forgeries,
    ),
)
