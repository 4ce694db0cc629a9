"""An experiment: tasks that any process can answer one by one, and the tables and pictures of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from machine import SOLVING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evaluation.results import Results, Task

__all__ = ["Experiment"]


def no_picture(_: Results) -> None:
    """Draw nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure or table: its tasks, the way to answer one, and the presentation of the answers.

    Attributes:
        name: that users type; the name of the results file and the picture, too.
        title: of the page.
        about: one line.
        tasks: all tasks; with True, the few of a quick run.
        measure: answers one task, as JSON values. It may run in any process, so it reads nothing but the
            task, and writes nothing.
        markdown: the tables of the answers, published figures beside them.
        draw: the picture; None if there is none.
        packages: whose versions are recorded.
        seeds: of the random choices of solvers and data; those of generated graphs are fixed.
        needs: modules that the experiment cannot run without.
        alone: true where wall time is measured: tasks run one after another.
        rows_of: the experiment whose rows this one presents; None if it has rows of its own.
    """

    name: str
    title: str
    about: str
    tasks: Callable[[bool], Sequence[Task]]
    measure: Callable[[Task], Mapping[str, Any]]
    markdown: Callable[[Results], str]
    draw: Callable[[Results], Figure | None] = no_picture
    packages: tuple[str, ...] = SOLVING
    seeds: tuple[int, ...] = (0,)
    needs: tuple[str, ...] = ()
    alone: bool = False
    rows_of: Experiment | None = None

    @property
    def source(self) -> Experiment:
        """The experiment that has the rows, and whose name the results file has."""
        return self.rows_of or self

    def seen_as(self, **shown: Any) -> Self:
        """Another figure or table of the same rows.

        Args:
            shown: name, title, about, markdown, and any other field that differs.
        """
        return replace(self, **{"draw": no_picture, **shown}, rows_of=self.source)
