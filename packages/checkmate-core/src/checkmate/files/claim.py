"""A claim: a solver's answer to a problem before the judge has checked it, as a value and as bytes.

The bytes are a schedule in the wire format; its ``meta`` holds the rest. They are kept on disk and sent
between processes. Reading them gives a claim again, never a solution: :func:`checkmate.solving.judged` makes
a solution of it, or raises an error that says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any, Self

import msgspec
import numpy as np

from checkmate.errors import FormatError
from checkmate.files.serialize import read_schedule_with_meta, schedule_bytes
from checkmate.model.graph import DFGraph
from checkmate.model.schedule import Schedule
from checkmate.problem.solution import Solution, Status
from checkmate.text.printable import excerpt

__all__ = ["Claim", "claim_bytes", "read_claim"]

_NOTHING = Schedule(np.array([], dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A solver's answer, unchecked; its fields mean what they mean in ``Solution``."""

    status: Status
    schedule: Schedule | None = None
    bound: float = 0.0
    seconds: float = 0.0
    origin: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, solution: Solution) -> Self:
        """The claim in a solution, copied, so that its solver can't change it later.

        Raises:
            Exception: of any kind, if a field of the solution has another type than declared.
        """
        schedule = solution.schedule
        bound: object = solution.bound
        if not isinstance(bound, Real):
            raise TypeError(f"its lower bound is not a number: {bound!r}")
        return cls(
            status=Status(solution.status),
            schedule=Schedule(schedule.codes) if schedule is not None else None,
            bound=float(bound),
            seconds=float(solution.seconds),
            origin={excerpt(str(key)): excerpt(str(value)) for key, value in solution.origin.items()},
        )


class _Meta(msgspec.Struct):
    status: Status
    bound: float | None  # JSON has no infinity
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    origin: dict[str, str] = {}


def claim_bytes(solution: Solution, **hints: object) -> bytes:
    """The claim in ``solution``, as JSON; ``hints`` are added to its ``meta``, for readers.

    >>> from checkmate import solve
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    >>> read_claim(claim_bytes(solve(graph, 6, solver="keep-all")), graph)[0].status
    <Status.OPTIMAL: 'optimal'>
    """
    meta = {
        "solver": solution.solver,
        "status": solution.status.value,
        "budget": solution.problem.budget,
        "peak": solution.peak,
        "cost": solution.cost,
        "bound": solution.bound,
        "seconds": solution.seconds,
        "origin": dict(solution.origin),
        **hints,
    }
    return schedule_bytes(solution.schedule or _NOTHING, solution.problem.graph, meta)


def read_claim(content: bytes, graph: DFGraph) -> tuple[Claim, Mapping[str, Any]]:
    """The claim that the bytes make about ``graph``, and their whole ``meta``.

    Raises:
        FormatError: if they hold no claim, or a claim about another graph.
    """
    schedule, meta = read_schedule_with_meta(content, graph)
    try:
        found = msgspec.convert(meta, _Meta)
    except msgspec.ValidationError as error:
        raise FormatError(f"{error} (below `$.meta`)") from error
    nothing = found.status in (Status.INFEASIBLE, Status.UNKNOWN) and not len(schedule)
    claim = Claim(
        status=found.status,
        schedule=None if nothing else schedule,
        bound=math.inf if found.bound is None else found.bound,
        seconds=found.seconds,
        origin=found.origin,
    )
    return claim, meta
