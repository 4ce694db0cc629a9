"""A traced training step, as the frontends of the framework packages return it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from checkmate.errors import CheckmateError
from checkmate.files.serialize import write_graph
from checkmate.model.graph import DFGraph
from checkmate.report import Account

__all__ = ["ProgramError", "TracedStep", "named_factory"]


class ProgramError(CheckmateError, TypeError):
    """An object that can't be traced: neither a step of the framework nor a factory of one."""


def named_factory(option: str, text: str) -> Callable[..., Any]:
    """The factory that an option such as ``--tf MODULE:FACTORY`` names; modules may be in the current folder.

    Raises:
        ProgramError: if there is none.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        factory: Callable[..., Any] = resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise ProgramError(f"{option} {text}: {error}; write MODULE:FACTORY") from error
    return factory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TracedStep:
    """A training step that was traced and not run.

    Attributes:
        graph: the step, in the cost model's unit; ``checkmate.solve`` and all other tools take it.
        account: what each byte is held for.
    """

    graph: DFGraph
    account: Account

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph in the wire format.

        Args:
            path: the file; msgpack if its name ends in ``.msgpack``, else JSON.
        """
        write_graph(path, self.graph)

    def __repr__(self) -> str:
        """The repr of the graph."""
        return f"<{type(self).__name__} of {self.graph!r}>"
