"""The use of each byte: memory at a moment is a sum over kinds, and each tensor of the graph has one kind.

inputs              parameters, buffers and other variables, optimizer state, constants, the batch
forward             activations; outputs, which the caller holds; the loss, where it is computed outside
backward            gradients of parameters; gradients of activations, incoming ones included; updates
always              the reserve, and other tensors of the model: gradients so far, unused parameters
while an op runs    its workspace
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from checkmate.errors import InfeasibleBudgetError
from checkmate.model.graph import DFGraph
from checkmate.simulate import Timeline
from checkmate.units import format_bytes

__all__ = ["Account", "Kind"]


class Kind(StrEnum):
    """The use of a byte, in words that hold for every framework."""

    PARAMETERS = "parameters"
    GATHERED_PARAMETERS = "gathered parameters"
    GATHER_BUFFERS = "buffers of all-gathers"
    BUFFERS = "buffers"
    VARIABLES = "variables that are not trained"
    OPTIMIZER = "optimizer state"
    CONSTANTS = "constants"
    BATCH = "batch"
    ACTIVATIONS = "activations"
    OUTPUTS = "outputs"
    LOSS = "loss outside of the model"
    GRADIENTS = "gradients of parameters"
    ACTIVATION_GRADIENTS = "gradients of activations"
    EARLIER_GRADIENTS = "gradients so far"
    OTHER_CALLS = "held by other calls of the step"
    UPDATES = "updates"
    GATHERED_GRADIENTS = "gradients before their reduction"
    SCATTER_BUFFERS = "buffers of reduce-scatters"
    BUCKETS = "buckets of DDP"
    RANDOM_STATES = "random states"
    CUDA_GRAPH = "copies for the CUDA graph"
    SMALL = "small tensors"
    CHUNKS = "rounding and gaps of the allocator"
    RESERVE = "reserve"
    LIBRARIES = "workspaces of libraries"
    WORKSPACE = "workspace of the op"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The kinds of a traced step's bytes.

    Attributes:
        kinds: the kind of each tensor of the graph.
        fixed: bytes that are resident throughout beside the graph's tensors, by kind; together they are
            ``graph.fixed_size``.

    >>> from checkmate import Schedule, simulate
    >>> graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]], fixed_size=3)
    >>> account = Account(kinds=(Kind.ACTIVATIONS, Kind.GRADIENTS), fixed={Kind.RESERVE: 3})
    >>> for kind, size in account.at_peak(simulate(graph, Schedule.from_sequence(graph, [0, 1]))).items():
    ...     f"{kind}: {size}"
    'activations: 4'
    'reserve: 3'
    'gradients of parameters: 2'
    """

    kinds: tuple[Kind, ...] = ()
    fixed: Mapping[Kind, int] = field(default_factory=dict)

    def at_peak(self, timeline: Timeline) -> dict[Kind, int]:
        """Bytes of each kind at the peak of a schedule, largest first; together ``timeline.peak``."""
        graph, op = timeline.graph, timeline.peak_op
        sizes = self.summed((t, graph.tensors[t].size) for t in self.held_at_peak(timeline))
        sizes[Kind.WORKSPACE] = graph.ops[op].workspace if op is not None else 0
        return _largest_first(sizes)

    def held_at_peak(self, timeline: Timeline) -> list[int]:
        """The tensors held at the peak of a schedule; a tensor with two copies appears twice.

        A running op allocates all of its outputs, even if an older copy is resident, some in place of inputs.
        """
        op, step = timeline.peak_op, max(timeline.peak_step, 0)
        made = timeline.graph.ops[op].outputs if op is not None else ()
        return [*(timeline.resident_at(step) - timeline.reused_at(step)), *made]

    def without_activations(self, graph: DFGraph) -> dict[Kind, int]:
        """Bytes of each kind that no schedule can free: inputs, returned gradients, fixed bytes."""
        held = {*graph.inputs, *(t for t in graph.outputs if self.kinds[t] is Kind.GRADIENTS)}
        return _largest_first(self.summed((t, graph.tensors[t].size) for t in held))

    def explained(
        self, error: InfeasibleBudgetError, graph: DFGraph, whole: int | None = None
    ) -> InfeasibleBudgetError:
        """The error for a step of this account; ``whole`` is the peak that budgets are shares of, in bytes.

        If the bytes that no schedule can free exceed the budget, they become its reason.
        """
        needed = self.without_activations(graph)
        known = vars(error) | ({} if whole is None else {"whole": whole})
        if error.budget < sum(needed.values()):
            parts = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in needed.items())
            held = format_bytes(sum(needed.values()))
            known["reason"] = f"{held} are held before any activation: {parts}"
        return InfeasibleBudgetError(**known)

    def summed(self, tensors: Iterable[tuple[int, int]]) -> dict[Kind, int]:
        """Bytes of each kind, of the given (tensor, size) pairs and of everything fixed."""
        sizes = dict(self.fixed)
        for t, size in tensors:
            sizes[self.kinds[t]] = sizes.get(self.kinds[t], 0) + size
        return sizes


def _largest_first(sizes: Mapping[Kind, int]) -> dict[Kind, int]:
    return dict(sorted(((kind, size) for kind, size in sizes.items() if size), key=lambda item: -item[1]))
