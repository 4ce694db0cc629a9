"""Forged entries of the schedule cache: impossible ones are refused, and nothing hangs."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from checkmate import DFGraph, ScheduleCache, Solution, generators, simulate, solve
from faults.fault import Fault, in_time
from faults.files import mutated

__all__ = ["forgery"]

_SOLVER = "evict-belady"
_GRAPHS = (generators.unet(2), generators.residual(3), generators.chain(8))
_QUESTION = ("meta", "question")
_GONE = object()

_LIES: dict[str, tuple[tuple[str, ...], Any]] = {
    "another graph's digest": (("graph",), "0" * 64),
    "no digest": (("graph",), _GONE),
    "negative seconds": (("meta", "seconds"), -1.0),
    "seconds that are no number": (("meta", "seconds"), "long"),
    "another question's budget": ((*_QUESTION, "budget"), 1),
    "another question's graph": ((*_QUESTION, "graph"), "0" * 64),
    "another solver": ((*_QUESTION, "solver", "name"), "auto"),
    "no question": (_QUESTION, _GONE),
    "infeasible": (("meta", "status"), "infeasible"),
    "unknown, with a schedule": (("meta", "status"), "no such status"),
    "a bound above the cost": (("meta", "bound"), 1e300),
    "a bound that is no number": (("meta", "bound"), "low"),
    "optimal, with no bound": (("meta",), lambda meta: {**meta, "status": "optimal", "bound": 0.0}),
    "no step": (("steps",), []),
    "the first step only": (("steps",), lambda steps: steps[:1]),
    "steps backwards": (("steps",), lambda steps: steps[::-1]),
    "another version": (("version",), 99),
}
"""The place of a value in the entry, and the value that it gets."""
_PLACES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.touch(),
    "a folder": lambda file: file.mkdir(),
    "a pipe": os.mkfifo,
    "a link to nothing": lambda file: file.symlink_to(file.parent / "nothing"),
    "a link to itself": lambda file: file.symlink_to(file),
    "a link to endless zeros": lambda file: file.symlink_to("/dev/zero"),
    "a sparse file of a terabyte": lambda file: (file.touch(), os.truncate(file, 2**40)),
}
"""What is made where the entry was."""


@cache
def _answer(graph: DFGraph, budget: str) -> Solution:
    return solve(graph, budget, solver=_SOLVER)


def _forged(name: str, random: Random, whole: bytes) -> bytes:
    if name == "cut off":
        return whole[: len(whole) // 2]
    if name not in _LIES:
        return mutated(random, whole)
    node = entry = json.loads(whole)
    (*way, last), value = _LIES[name]
    for key in way:
        node = node[key]
    before = node.pop(last)
    if value is not _GONE:
        node[last] = value(before) if callable(value) else value
    if entry == json.loads(whole):
        raise LookupError(f"{name}: the entry says that already; this forgery is out of date")
    return json.dumps(entry).encode()


def forgery(random: Random, place: Path) -> Fault:
    """An entry that a solve left, changed or replaced, and the same solve again."""
    graph, budget = random.choice(_GRAPHS), random.choice(("60%", "70%", "80%"))
    name = random.choice((*_LIES, *_PLACES, "cut off", *["mutated"] * 70))

    def happen() -> str | None:
        store, honest = ScheduleCache(place), _answer(graph, budget)
        solve(graph, budget, solver=_SOLVER, cache=store)
        (file,) = place.glob("*.json")
        whole = file.read_bytes()
        if name in _PLACES:
            file.unlink()
            _PLACES[name](file)
        else:
            file.write_bytes(_forged(name, random, whole))
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
        is_sound = (
            (replay.peak, replay.cost) == (found.peak, found.cost)
            and replay.peak <= honest.problem.budget
            and found.bound <= found.cost
            and math.isfinite(found.seconds)
            and found.seconds >= 0
        )
        return None if is_sound else f"an answer that is not sound: {found!r}"

    return Fault(f"{name}, {graph.name} at {budget}", happen)
