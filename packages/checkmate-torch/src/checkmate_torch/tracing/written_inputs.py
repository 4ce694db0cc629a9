"""Ops that may write the new value of an input into that input, instead of into a new tensor.

    p′ = f(p, …)                ↦ f_(p, …)
    y, p′, q′ = norm(x, p, q)   ↦ y = norm_(x, p, q)

Each version of the input, p and those between p and p′, must have one reader: the op that makes the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from torch.fx import Node
from torch.fx.node import Argument

from checkmate_torch.ops.in_place import Overwrite, overwrites
from checkmate_torch.ops.recompute_rules import is_batch_norm_training, is_new_statistic

__all__ = ["overwrite_of", "written_early"]

_Chain = tuple[Node, ...]
"""The ops that make the versions of an input, the last one first."""


def written_early(new_values: Iterable[tuple[Node, Argument]]) -> frozenset[Node]:
    """The ops that may write into inputs; ``new_values``: placeholders, and the nodes of their new values.

    A batch norm writes both of its statistics or none.
    """
    chains = Counter(filter(None, (_chain(input_, value) for input_, value in new_values)))
    found = (
        chain
        for chain, n in chains.items()
        if n == (2 if any(is_batch_norm_training(op) for op in chain) else 1)
    )
    return frozenset(op for chain in found for op in chain)


def overwrite_of(op: Node) -> Overwrite | None:
    """The call that computes an op of one result and overwrites its first argument."""
    return next((call for call in overwrites(op) if call.operand is op.args[0]), None)


def _chain(input_: Node, value: Argument) -> _Chain:
    """The ops from an input to its new value; none if one of them may not write into its operand."""
    chain: list[Node] = []
    while isinstance(value, Node) and value is not input_ and len(value.users) == 1:
        op = cast(Node, value.args[0]) if is_new_statistic(value) else value
        if op is not value:
            operand = op.args[cast(int, value.args[1])]  # the statistics have equal places in both lists
        elif overwrite_of(op) is None:
            return ()
        else:
            operand = op.args[0]
        chain.append(op)
        value = operand
    return tuple(chain) if value is input_ and len(input_.users) == 1 else ()
