"""The settings of TensorFlow's entry points: those of every framework, and TensorFlow's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from checkmate.framework import Options as CommonOptions
from checkmate.framework import Settings as CommonSettings

__all__ = ["Counts", "Options", "Settings"]

Counts = Literal["live", "allocator"]
"""The bytes that a budget bounds."""


class Settings(CommonSettings, total=False):
    """Keyword settings of the entry points that solve: those of every framework, and this one.

    Attributes:
        counts: the bytes that the budget bounds. ``"live"``: those of all tensors and workspaces that are
            alive at once. ``"allocator"``: the memory that TensorFlow's allocator needs for them, which is 3
            to 30 % more, because chunks are larger than tensors and free memory is in pieces. By default
            ``"allocator"`` where that memory has a physical limit: on a GPU, and on a CPU with
            ``TF_CPU_BFC_MEM_LIMIT_IN_MB``; ``"live"`` elsewhere.
    """

    counts: Counts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(CommonOptions):
    """The settings of one entry point, read and checked.

    Attributes:
        counts: as in :class:`Settings`.
    """

    counts: Counts | None = None

    @classmethod
    def parse(cls, *, counts: Counts | None = None, **settings: Any) -> Self:
        """Read settings as users write them, so that a mistake shows before anything is traced.

        Raises:
            ValueError: if ``counts`` is neither.
        """
        if counts not in (None, *get_args(Counts)):
            raise ValueError(f"counts is {counts!r}, must be one of {', '.join(map(repr, get_args(Counts)))}")
        return super(Options, cls).parse(counts=counts, **settings)  # explicit: slots make a new class
