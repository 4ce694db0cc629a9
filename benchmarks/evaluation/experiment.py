"""An experiment: questions that can be asked one by one, anywhere, and what their answers say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from machine import SOLVING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evaluation.results import Results

__all__ = ["Experiment", "Task"]

Task = Mapping[str, Any]
"""One question, as JSON values: what tells it from all others of its experiment, and nothing else."""


def no_picture(_: Results) -> None:
    """There is nothing to draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A figure or table: the questions, how one is answered, what is shown of the answers.

    Attributes:
        name: that users type; names the files, too.
        title: of the page.
        about: one line.
        tasks: all questions; with True, the few that a quick run asks.
        measure: the answer to one of them, as JSON values. Called in whichever process has time for it, so
            it takes all that it needs from the task, and writes nothing.
        markdown: what the page says of the answers: tables, and what others have published beside them.
        draw: the picture, if there is one to draw.
        packages: whose versions stand in the results.
        seeds: of the random choices of solvers and data; those of generated graphs are fixed.
        needs: modules without which there is nothing to measure here.
        alone: true where wall time is what is measured: its tasks run one after another.
        rows_of: the experiment whose rows it shows in another light; None: it has rows of its own.
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
        """Whose rows it shows, and whose name their file has."""
        return self.rows_of or self

    def seen_as(self, **shown: Any) -> Self:
        """Another figure or table of the same rows: nothing is asked twice.

        Args:
            shown: name, title, about, markdown, and what else is another than here.
        """
        return replace(self, **{"draw": no_picture, **shown}, rows_of=self.source)
