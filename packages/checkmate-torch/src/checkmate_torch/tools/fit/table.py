"""The answer of ``fit``: batch × sequence → peaks in bytes, and whether the step fits within a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import msgspec

from checkmate.errors import FormatError
from checkmate.report import blank_figure, save_figure
from checkmate.units import format_bytes

__all__ = ["Fit", "FitTable"]

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One cell of a :class:`FitTable`: a training step over one batch.

    Attributes:
        batch: examples in the batch.
        sequence: length of each; None = the model has no such size.
        plain_peak: bytes that plain PyTorch holds at once: parameters, gradients, optimizer state, batch,
            activations, and the temporaries of the optimizer.
        least_peak: bytes of the least peak found with recomputation; no more than ``plain_peak``. None = the
            model can't be captured as one graph, so that recomputation can't be planned.
        split_peak: the same where ops may run in pieces too; no more than ``least_peak``.
        update_peak: bytes while the optimizer updates the parameters, which recomputation can't lower.
        budget: bytes that the step may hold; None = no budget was given.
        overhead: extra cost at the budget, as a share: 0 where the plain step fits; None = it does not fit,
            or there is no budget.
        remark: the reason why there is no least peak.
    """

    batch: int
    sequence: int | None = None
    plain_peak: int
    least_peak: int | None
    split_peak: int | None = None
    update_peak: int
    budget: int | None = None
    overhead: float | None = None
    remark: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the step fits within the budget, with recomputation if need be; None = without a budget."""
        return None if self.budget is None else self.overhead is not None

    @property
    def verdict(self) -> str:
        """``"fits"``, ``"fits at +7 %"`` or ``"does not fit: least 88.1 GiB"``; empty without a budget.

        ``"fits in pieces at +7 %"`` if no schedule fits without pieces.

        >>> Fit(batch=1, plain_peak=4 * 2**30, least_peak=2**30, update_peak=2**20, budget=2**29).verdict
        'does not fit: least 1.00 GiB'
        """
        if self.budget is None:
            return ""
        if self.overhead is None:
            least = self.least_peak if self.split_peak is None else self.split_peak
            return f"does not fit: least {_size(least)}"
        if self.plain_peak <= self.budget:
            return "fits"
        is_whole = self.least_peak is not None and self.least_peak <= self.budget
        return f"fits{'' if is_whole else ' in pieces'} at +{100 * self.overhead:.2g} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitTable:
    """What :func:`checkmate.torch.fit` found.

    Attributes:
        cells: one for each batch and sequence, sequences innermost.
        model: class of the model, and the number of its parameters.
        device: name in :data:`checkmate.cost.DEVICES`; empty = none was named.
        optimizer: name of its class; empty = there is none.
        world_size: the number of ranks, each of which takes these bytes; None = the model is not sharded.
    """

    cells: tuple[Fit, ...]
    model: str = ""
    device: str = ""
    optimizer: str = ""
    world_size: int | None = None

    def __iter__(self) -> Iterator[Fit]:
        """Iterate over the cells."""
        return iter(self.cells)

    def __getitem__(self, place: tuple[int, int | None] | int) -> Fit:
        """The cell of a batch, or of a batch and a sequence.

        Raises:
            KeyError: if the table has no such cell.
        """
        batch, sequence = place if isinstance(place, tuple) else (place, None)
        for cell in self.cells:
            if (cell.batch, cell.sequence) == (batch, sequence):
                return cell
        raise KeyError(place)

    def __str__(self) -> str:
        """The table as text."""
        pieces = () if self.world_size else ("in pieces",)
        head = ("batch", "sequence", "plain peak", "least peak", *pieces, "verdict")
        rows: list[tuple[str, ...]] = [head]
        for cell in self.cells:
            sequence = "" if cell.sequence is None else str(cell.sequence)
            peaks = [_size(n) for n in (cell.plain_peak, cell.least_peak, cell.split_peak)]
            peaks = peaks[: 2 + len(pieces)]
            rows.append((str(cell.batch), sequence, *peaks, cell.verdict))
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        lines = ["  ".join(cell.rjust(n) for cell, n in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([self.title(), *lines])

    def title(self) -> str:
        """Model, optimizer, device and budget on one line."""
        budgets = {cell.budget for cell in self.cells if cell.budget is not None}
        within = f"within {format_bytes(min(budgets))}" if budgets else ""
        ranks = f"each of {self.world_size} ranks" if self.world_size else ""
        return ", ".join(filter(None, (self.model, self.optimizer, self.device, ranks, within)))

    def to_json(self) -> bytes:
        """The table as a JSON object; bytes are integers. A cell has its verdict besides its attributes."""
        cells = [asdict(cell) | {"fits": cell.fits, "verdict": cell.verdict} for cell in self.cells]
        return msgspec.json.encode({**asdict(self), "cells": cells})

    @staticmethod
    def from_json(text: bytes | str) -> FitTable:
        """Read a table that :meth:`to_json` wrote.

        Args:
            text: the JSON object.

        Raises:
            FormatError: if the text is not such an object.
        """
        known = {field.name for field in fields(Fit)}
        try:
            facts: Mapping[str, Any] = msgspec.json.decode(text)
            cells = [{k: v for k, v in cell.items() if k in known} for cell in facts["cells"]]
            return msgspec.convert({**facts, "cells": cells}, FitTable)
        except (msgspec.MsgspecError, AttributeError, KeyError, TypeError) as error:
            raise FormatError(f"this is no table of fit as JSON: {error}") from error

    def save_picture(self, path: str | os.PathLike[str]) -> None:
        """Draw the three peaks over the batch, a colour for each sequence, and the budget as a line.

        Args:
            path: of the picture; PNG, or what its suffix says: ``.svg``, ``.pdf``.

        Raises:
            MissingDistributionError: if matplotlib is not installed.
        """
        figure = blank_figure(8, 4.5)
        axes = figure.add_subplot()
        for k, sequence in enumerate(dict.fromkeys(cell.sequence for cell in self.cells)):
            cells = [cell for cell in self.cells if cell.sequence == sequence]
            of = "" if sequence is None else f", sequence {sequence}"
            for name, style in (("plain", "o-"), ("least", "o--"), ("split", "o:")):
                sizes = [(getattr(cell, f"{name}_peak") or math.nan) / _GIB for cell in cells]
                axes.plot([cell.batch for cell in cells], sizes, style, color=f"C{k}", label=name + of)
        for budget in {cell.budget for cell in self.cells if cell.budget is not None}:
            axes.axhline(budget / _GIB, color="black", linewidth=1, label=f"budget {format_bytes(budget)}")
        axes.set_xlabel("examples in the batch")
        axes.set_ylabel("peak [GiB]")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.set_title(self.title())
        axes.legend(loc="best", framealpha=0.9)
        save_figure(figure, path)


def _size(n: int | None) -> str:
    return "unknown" if n is None else format_bytes(n)
