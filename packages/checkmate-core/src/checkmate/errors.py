"""The errors of Checkmate, in one tree: ``except CheckmateError`` catches all of them.

Each error also subclasses the builtin exception that matches it. Its message says what happened, to which op,
tensor or file, and what to do next.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

from checkmate.text.printable import excerpt, format_bytes, quoted

__all__ = [
    "DISTRIBUTIONS",
    "BudgetError",
    "CheckmateError",
    "CostError",
    "FormatError",
    "GraphError",
    "InfeasibleBudgetError",
    "InvalidScheduleError",
    "MissingDistributionError",
    "NoPlanError",
    "PlanError",
    "PluginError",
    "ProfilerBusyError",
    "Reason",
    "SolverError",
    "UnsupportedModelError",
    "UnsupportedScheduleError",
    "install_hint",
]

DISTRIBUTIONS = ("checkmate-core", "checkmate-solvers", "checkmate-torch", "checkmate-tf")
"""The distributions of this project, each a folder in ``packages`` of its repository."""


class CheckmateError(Exception):
    """The root of every error of this project."""


class GraphError(CheckmateError, ValueError):
    """A graph that is not a valid DFGraph; the message names the op or tensor at fault."""


class FormatError(CheckmateError, ValueError):
    """A file in no known wire format; the message names the place (``$.ops[3].cost``)."""


class PlanError(CheckmateError, ValueError):
    """A plan that can't be executed, or invalid matrices; the message names the stage and the op."""


class CostError(CheckmateError, ValueError):
    """A cost model that has invalid settings, or can't price this graph."""


class BudgetError(CheckmateError, ValueError):
    """A budget or size that can't be read as bytes, or is out of range."""


class NoPlanError(CheckmateError, LookupError):
    """A report was asked for before there is a plan."""


class PluginError(CheckmateError, LookupError):
    """A plugin that is not installed, is offered twice, or failed to load."""


class ProfilerBusyError(CheckmateError, RuntimeError):
    """A measurement was started while another profiler or memory meter is running."""


class SolverError(CheckmateError, RuntimeError):
    """A solver failed, or its answer did not pass the judge."""


class UnsupportedModelError(CheckmateError, NotImplementedError, ValueError):
    """A model that can't be planned as it is; the message names the reason and the way out."""


class UnsupportedScheduleError(CheckmateError, NotImplementedError):
    """A valid schedule that an executor can't run; the message names the ops and the way out.

    An executor may refuse a schedule only if the first runs of its ops are not in base order, or if it
    recomputes an op in vain, so that no later op reads the outputs.
    """


class MissingDistributionError(CheckmateError, ImportError):
    """A part of Checkmate that ships in another distribution is not installed."""


class Reason(StrEnum):
    """Why the judge rejected a schedule: a closed list."""

    MISSING_INPUT = "an input of the op is not resident"
    NOT_RESIDENT = "the freed tensor is not resident"
    FREED_INPUT = "a graph input may never be freed"
    RECOMPUTED_ONCE_ONLY = "an op that may run only once was computed again"
    LOST_OUTPUT = "a graph output is not resident at the end"
    UNKNOWN_OP = "the graph has no such op"
    UNKNOWN_TENSOR = "the graph has no such tensor"


class InvalidScheduleError(CheckmateError, ValueError):
    """The judge rejected a schedule.

    Attributes:
        step: index of the offending step; ``len(schedule)`` when the fault shows at the end.
        subject: the op or tensor at fault, as ``op 3 'conv1'`` or ``tensor 7 'x'``.
        reason: a member of :class:`Reason`.
    """

    def __init__(self, step: int, subject: str, reason: Reason) -> None:
        super().__init__(f"step {step}, {subject}: {reason.name}: {reason.value}")
        self.step = step
        self.subject = subject
        self.reason = reason


class InfeasibleBudgetError(CheckmateError, ValueError):
    """No schedule within the budget was found.

    Attributes:
        budget: the budget asked for, in bytes.
        minimum: the least budget, in bytes, for which a schedule is known; None if none is known.
        floor: a proved lower limit, in bytes, of every schedule.
        bottleneck: name of the op whose working set is that floor; None if the graph outputs set it.
        proved: True = infeasibility is proved; False = only no schedule was found.
        reason: why the solver found no schedule, if it gave a reason.
        whole: the plain step's peak, in bytes, of which a budget may be a share; None if unknown.
        advice: what helps besides a larger budget, as a sentence; "" = a smaller batch or op.
    """

    def __init__(
        self,
        *,
        budget: int,
        minimum: int | None,
        floor: int,
        bottleneck: str | None,
        proved: bool,
        reason: str = "",
        whole: int | None = None,
        advice: str = "",
    ) -> None:
        """Name the budget, the least budget known to work, and the op that sets the floor."""
        verdict = "is proved infeasible" if proved else "was not met by any schedule that was found"
        known = "; no budget is known to work"
        way_out = advice or "Raise the budget, or make the batch or that op smaller."
        if minimum is not None:
            known = f"; the least budget known to work is {_bytes(minimum)}{_share(minimum, whole)}"
            if minimum <= budget:
                verdict, known = (
                    "was not met by this solver",
                    f", but {_bytes(minimum)} is known to be enough",
                )
                way_out = "Ask another solver, as 'auto', or give it more time."
        verdict += f" ({excerpt(reason)})" if reason else ""
        what = "the graph outputs set" if bottleneck is None else f"op {quoted(bottleneck, 1000)} sets"
        super().__init__(
            f"a budget of {_bytes(budget)} {verdict}{known}. "
            f"No schedule can need less than {_bytes(floor)}: {what} that floor. {way_out}"
        )
        self.budget = budget
        self.minimum = minimum
        self.floor = floor
        self.bottleneck = bottleneck
        self.proved = proved
        self.reason = reason
        self.whole = whole
        self.advice = advice


def install_hint(requirement: str) -> str:
    """The command that installs a requirement: this project's distributions from a clone, others by name.

    The distributions of this project are not on the package index, where others could take their names.
    Several requirements are separated by spaces, as in ``"checkmate-torch[demo] numba"``.

    >>> install_hint("numba")
    'pip install numba'
    >>> print(install_hint("checkmate-tf"))
    pip install ./packages/checkmate-tf in a clone of Checkmate (on the package index, the name is not ours)
    """
    names = requirement.split()
    places = [f"./packages/{name}" if name.partition("[")[0] in DISTRIBUTIONS else name for name in names]
    where = " in a clone of Checkmate (on the package index, the name is not ours)" if places != names else ""
    return f"pip install {shlex.join(places)}{where}"


def _share(size: int, whole: int | None) -> str:
    """The share of the plain step's peak, rounded up, so that it is enough as a budget."""
    if not whole:
        return ""
    tenths = -(-1000 * size // whole)
    return f", {tenths // 10}.{tenths % 10}% of the plain step's peak"


def _bytes(size: int) -> str:
    return f"{size} bytes" + (f" ({format_bytes(size)})" if size >= 1024 else "")
