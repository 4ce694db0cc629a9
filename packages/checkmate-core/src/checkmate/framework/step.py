"""A traced training step, as the frontends of the framework packages return it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from checkmate.errors import CheckmateError
from checkmate.files.serialize import write_graph
from checkmate.model.graph import DFGraph
from checkmate.report import Account

__all__ = ["ProgramError", "TracedStep"]


class ProgramError(CheckmateError, TypeError):
    """An object that can't be traced: neither a step of the framework nor a factory of one."""


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
