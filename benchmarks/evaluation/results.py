"""The results of an experiment: one row for each task, and the conditions of each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Results", "Row", "Task", "key_of", "read_results"]

Task = Mapping[str, Any]
"""One question, as JSON values that distinguish it from the other tasks of its experiment."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One task.

    Attributes:
        task: the question.
        result: the answer; empty after an error.
        error: the reason why there is no answer.
        seconds: the time that the answer took, in its process.
    """

    task: dict[str, Any]
    result: dict[str, Any] = {}
    error: str = ""
    seconds: float = 0.0

    def __getitem__(self, name: str) -> Any:
        """A field of the answer or else of the question; None where neither has it."""
        return self.result.get(name, self.task.get(name))

    @property
    def failure(self) -> str:
        """The reason why there is no answer, or the answer of a method that failed; else empty."""
        return self.error or self.result.get("failed") or ""


class Results(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="checkmate.evaluation"):
    """A results file.

    Attributes:
        experiment: its name.
        quick: whether the tasks are those of a quick run.
        sessions: facts about each run that added rows, as :func:`machine.session` returns them, in order.
        rows: in the order of the tasks.
        version: of this format.
    """

    experiment: str
    quick: bool = False
    sessions: tuple[dict[str, Any], ...] = ()
    rows: tuple[Row, ...] = ()
    version: int = 1

    def where(self, **fields: Any) -> Iterator[Row]:
        """The rows with an answer in which all of these fields have these values."""
        return (r for r in self.rows if not r.error and all(r[name] == v for name, v in fields.items()))

    def distinct(self, name: str) -> list[Any]:
        """The values of a field, in the order in which they first occur."""
        return list(dict.fromkeys(row[name] for row in self.rows if row[name] is not None))


def key_of(task: Task) -> str:
    """A string that is equal for equal tasks."""
    return msgspec.json.encode(dict(task), order="sorted").decode()


def read_results(file: Path) -> Results:
    """Read a results file.

    Raises:
        msgspec.ValidationError: if it is another kind of file; the message names the place.
    """
    return msgspec.json.decode(file.read_bytes(), type=Results)
