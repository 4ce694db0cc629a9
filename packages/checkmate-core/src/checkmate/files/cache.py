"""The schedule cache: a map from questions to claimed answers, one file each.

    question = (graph digest, budget, fixed order, seed, time limit, threads, solver)
    file     = sha256(question).json

A file is a schedule in the wire format; its ``meta`` repeats the question and holds the solver's claim. Files
are not trusted: one that answers another question than its name says, or whose answer the judge rejects, is
reported, ignored, and replaced by the next answer. Only schedules are kept: INFEASIBLE and UNKNOWN can't be
checked by a replay, so the solver is asked again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec

from checkmate.errors import FormatError, GraphError, SolverError
from checkmate.files.claim import Claim, claim_bytes, read_claim
from checkmate.files.disk import cache_directory, delete_entries, entries, read_file, replace_file
from checkmate.problem.problem import Problem
from checkmate.problem.solution import Solution

__all__ = ["ScheduleCache", "default_directory", "identity_of"]

Identity = Mapping[str, object]
"""A solver as JSON values: its name and the version of its code, or its class and fields."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, init=False)
class ScheduleCache:
    """Schedules on disk; several processes may share a directory.

    Args:
        directory: the folder of the files, made with the first file. None = :func:`default_directory`.

    A question holds the version of the solver's code: a new version gets new entries. After a change of the
    code without a new version, call :meth:`clear`. A failing disk is logged as a warning; the solve goes on.

    >>> import tempfile
    >>> from checkmate import DFGraph, solve
    >>> cache = ScheduleCache(tempfile.mkdtemp())
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> solve(graph, 6, solver="keep-all", cache=cache).cost, len(cache)
    (2.0, 1)
    >>> cache.clear()
    1
    """

    directory: Path

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Store the path; the disk is not touched."""
        object.__setattr__(self, "directory", default_directory() if directory is None else Path(directory))

    def find(self, problem: Problem, solver: Identity, judge: Callable[[Claim], Solution]) -> Solution | None:
        """The known answer of ``solver`` to ``problem``, or None.

        Args:
            problem: the question.
            solver: from :func:`identity_of`, or a name with versions.
            judge: makes a solution of a claim, or raises ``SolverError``.

        Returns:
            the judged solution; ``origin["cache"]`` names the file, ``seconds`` is the first solve's time.
        """
        question = _question(problem, solver)
        file = self._file(question)
        try:
            claim, meta = read_claim(read_file(file), problem.graph)
            if meta.get("question") != question:
                raise FormatError("it answers another question - at `$.meta.question`")
            solution = judge(claim)
            if solution.timeline is None:
                raise FormatError("it has no schedule - at `$.meta.status`")
        except FileNotFoundError:
            return None
        except (FormatError, GraphError, SolverError, OSError) as error:
            _log.warning("the cached schedule %s is ignored: %s", file, error)
            return None
        origin = {**solution.origin, "cache": str(file)}
        return dataclasses.replace(solution, seconds=claim.seconds, origin=origin)

    def store(self, solution: Solution, solver: Identity) -> None:
        """Keep a solution that has a schedule, under its own problem; one without a schedule is ignored.

        The file is replaced atomically: readers see the old one or the new one.
        """
        if solution.schedule is None:
            return
        question = _question(solution.problem, solver)
        content = claim_bytes(solution, question=question)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._file(question), content, follow=False)
        except OSError as error:
            _log.warning("the schedule can't be cached in %s: %s", self.directory, error)

    def clear(self) -> int:
        """Delete every entry, and partial files older than an hour; return the number of entries.

        Raises:
            OSError: if the directory may not be changed.
        """
        return delete_entries(self.directory)

    def __len__(self) -> int:
        """Number of entries, valid or not."""
        return len(entries(self.directory))

    def __bool__(self) -> bool:
        """True, even of an empty cache."""
        return True

    def _file(self, question: Identity) -> Path:
        key = hashlib.sha256(msgspec.json.encode(question, order="sorted")).hexdigest()
        return self.directory / f"{key}.json"


def default_directory() -> Path:
    """``schedules`` in Checkmate's cache directory, see :func:`~checkmate.files.disk.cache_directory`."""
    return cache_directory() / "schedules"


def identity_of(solver: object) -> Identity | None:
    """The identity of a solver in any process, or None if it has none.

    A solver has one if it is a frozen dataclass, its fields are plain values (numbers, texts, enums, tuples
    and frozen dataclasses of them), and its classes can be imported: code in ``__main__`` or within a
    function has no version and often changes.

    >>> from checkmate.heuristics import KeepAll
    >>> identity_of(KeepAll())["class"]
    'checkmate.heuristics.simple.KeepAll'
    """
    try:
        return _identity(solver)
    except TypeError:
        return None


def _identity(value: object) -> dict[str, Any]:
    """Class, version and fields of a frozen dataclass."""
    kind = type(value)
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise TypeError(f"{value!r} is not a frozen dataclass")
    package = sys.modules.get(kind.__module__.partition(".")[0])
    return {
        "class": _place(kind),
        "version": str(getattr(package, "__version__", "")),
        "fields": {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)},  # type: ignore[arg-type]
    }


def _plain(value: object) -> Any:
    """The value in JSON; equal texts mean equal values."""
    if isinstance(value, Enum):
        return [_place(type(value)), value.name]
    if type(value) in (NoneType, bool, int, float, str):
        return repr(value)
    if type(value) is tuple:
        return {"": [_plain(item) for item in value]}
    return _identity(value)


def _place(kind: type) -> str:
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise TypeError(f"{kind.__qualname__} can't be imported")
    return f"{kind.__module__}.{kind.__qualname__}"


def _question(problem: Problem, solver: Identity) -> dict[str, Any]:
    question = {
        "graph": problem.graph.digest,
        "budget": problem.budget,
        "fixed_order": bool(problem.fixed_order),
        "seed": str(problem.seed),
        "threads": int(problem.threads),
        "time_limit": str(float(problem.time_limit)),
        "solver": {**solver, "checkmate-core": metadata.version("checkmate-core")},
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(question))
    return plain
