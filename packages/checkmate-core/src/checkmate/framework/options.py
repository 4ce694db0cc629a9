"""The settings that every entry point of the framework packages takes, and their defaults."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypedDict

from checkmate.framework.pricing import known_cost_model
from checkmate.framework.progress import channel, showing
from checkmate.plugins import CostModel, Solver
from checkmate.problem.problem import OnProgress, Progress, check_time_limit
from checkmate.solving.api import engine_of
from checkmate.units import Budget, parse_budget, parse_bytes

__all__ = ["AUTO", "Options", "Settings", "TracingSettings"]

AUTO = "auto"
"""The budget that stands for the memory that the device has left."""
_LARGEST = 2**62
"""The peak that a share is checked against before tracing, when the real peak is unknown."""
_log = logging.getLogger(__name__)


class TracingSettings(TypedDict, total=False):
    """Keyword settings of the entry points that trace a step without solving.

    Attributes:
        cost_model: the cost of running an op again. ``"profiled"`` (the default): seconds, each distinct op
            timed once on this device. ``"roofline"``: seconds from FLOPs, bytes and the peaks of this device,
            or of a device in the table :data:`checkmate.cost.DEVICES`, as ``"roofline-A100-80GB"``.
            ``"flops"``: floating-point operations. Or the name of an installed cost model, or a cost model.
        workspaces: whether the workspace of each distinct op is measured, which runs each of them once on
            made-up inputs. Without workspaces the peak is not bounded. None = only if the cost model is
            ``"profiled"``, which runs the ops anyway.
        reserve: further bytes that the step holds, or a size (``"1GiB"``); default 0.
        cache: whether measured costs and schedules are read from disk and kept there, in
            ``$CHECKMATE_CACHE_DIR`` or the user's cache directory; default True.
        on_progress: called with a :class:`~checkmate.Progress` when a stage of planning begins, before each
            op that is timed, and while the solver runs.
        progress: whether one line on stderr shows the same while a step is planned. None (the default): on a
            terminal and in a notebook, on one rank; elsewhere one warning is logged if planning takes more
            than 10 s. ``CHECKMATE_PROGRESS=0`` in the environment turns both off.
    """

    cost_model: str | CostModel
    workspaces: bool | None
    reserve: int | str
    cache: bool
    on_progress: OnProgress | None
    progress: bool | None


class Settings(TracingSettings, total=False):
    """Keyword settings of the entry points that solve: the settings of :class:`TracingSettings`, and these.

    Attributes:
        solver: name of an installed solver, or a solver; default ``"auto"``.
        time_limit: seconds for the solver, for each plan; default 10.
    """

    solver: str | Solver
    time_limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of one entry point, read and checked.

    Attributes:
        budget: bytes of everything that the step holds at once; a share of the step's peak without
            recomputation; or ``"auto"``, the memory that the device has left.

    The other fields are those of :class:`Settings`.
    """

    budget: Budget = AUTO
    solver: str | Solver = "auto"
    time_limit: float = 10.0
    cost_model: str | CostModel = "profiled"
    workspaces: bool = True
    reserve: int = 0
    cache: bool = True
    on_progress: OnProgress | None = field(default=None, repr=False)
    progress: bool | None = field(default=None, repr=False)
    default_cost_model: ClassVar[str] = "profiled"
    default_time_limit: ClassVar[float] = 10.0
    """Both defaults apply where the user sets none; tests replace them: few are about timing."""
    _spelled: ClassVar[Mapping[str, str]] = {}
    """Field → the name of its setting as users write it, where the two differ."""

    @classmethod
    def refuse_unknown(cls, names: Iterable[str]) -> None:
        """Refuse settings that do not exist, before anything else is wrong with the call.

        Args:
            names: as users write them.

        Raises:
            TypeError: names the nearest setting, or all of them.
        """
        known = [cls._spelled.get(each.name, each.name) for each in fields(cls)]
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"the settings are {known}"
                raise TypeError(f"there is no setting {name!r}: {hint}")

    @classmethod
    def parse(cls, **settings: Any) -> Self:
        """Read settings as users write them, so that a mistake shows before anything is traced.

        Raises:
            BudgetError: if the budget, or another number of bytes, can't be read.
            CostError: if the cost model is of a device that is in no table.
            PluginError: if there is no solver, or no cost model, of this name.
            TypeError: if there is no such setting (names the nearest), or the solver or cost model is of
                another type.
            ValueError: unless the time limit is a positive number.
        """
        cls.refuse_unknown(name for name in settings if name not in cls._spelled)
        budget = settings.get("budget", AUTO)
        if budget != AUTO:  # an int is read like its text: 60 may mean a percentage
            parse_budget(str(budget) if type(budget) is int else budget, whole=_LARGEST)
        check_time_limit(time_limit := settings.get("time_limit", cls.default_time_limit))
        if (solver := settings.get("solver", "auto")) != "auto":
            engine_of(solver)
        model = known_cost_model(settings.get("cost_model", cls.default_cost_model))
        workspaces = settings.get("workspaces", True)
        read = {
            "time_limit": time_limit,
            "cost_model": model,
            "workspaces": model == "profiled" if workspaces is None else bool(workspaces),
            "reserve": parse_bytes(settings.get("reserve", 0)),
            "cache": bool(settings.get("cache", True)),
        }
        return cls(**settings | read)

    def listener(self, stage: str = "") -> OnProgress | None:
        """Sends each report to ``on_progress`` and, after ``stage``, to the line; None if both are off."""
        shown = channel(self.progress)
        if self.on_progress is None and shown is None:
            return None

        def listener(report: Progress) -> None:
            if self.on_progress is not None:
                self.on_progress(report)
            if shown is not None:
                shown(report, stage)

        return listener

    def report(self, step: str) -> None:
        """Report that a stage, such as ``"counting bytes"``, begins within a longer stage."""
        if (listener := self.listener()) is not None:
            listener(Progress(None, 0.0, 0.0, step))

    @contextmanager
    def planning(self, step: str) -> Iterator[None]:
        """Log and report that a stage, such as ``"tracing"``, begins; the line is erased after the block."""
        _log.info("%s", step)
        with showing():
            self.report(step)
            yield
