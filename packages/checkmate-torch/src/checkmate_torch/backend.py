"""The Dynamo backend ``checkmate``: each graph that ``torch.compile`` captures is planned within a budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from checkmate_torch.distributed import refuse_split_graphs
from checkmate_torch.options import Options
from checkmate_torch.planning import Planner
from checkmate_torch.private import graph_break, graph_breaks

__all__ = ["checkmate_backend"]

_log = logging.getLogger(__name__)


def checkmate_backend(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., object]:
    """The entry point behind ``torch.compile(model, backend="checkmate", options={"budget": "8GiB"})``.

    Each graph that Dynamo captures is planned alone: with graph breaks the budget bounds each piece, not the
    step, and a warning says where it broke.

    Args:
        gm: the graph that Dynamo captured.
        example_inputs: its inputs, fake.
        options: the budget and settings of :func:`checkmate_torch.compile`.
        mode: must be None.

    Raises:
        ValueError: if there is a mode, or no budget.
        TypeError: if there is no setting of an option's name.
    """
    if mode is not None:
        raise ValueError(f"backend 'checkmate' has no modes, got {mode!r}")
    Options.refuse_unknown(options or ())
    if not options or "budget" not in options:
        raise ValueError("backend 'checkmate' needs a budget: options={'budget': '8GiB'}")
    reason = graph_break(gm)
    if reason is not None:
        _log.warning(
            "graph break, %d so far: the budget bounds each piece alone, not the step: %s",
            graph_breaks(),
            reason,
        )
    refuse_split_graphs()
    return Planner(Options.parse(**{"process_group": "all", **options}))(gm, example_inputs)
