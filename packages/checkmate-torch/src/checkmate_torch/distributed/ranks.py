"""Decide once for all ranks: rank 0 decides, and the others adopt its decision if all graphs are equal.

    every rank → store   its question, with the digest of its graph
    rank 0     ← store   all questions; if they are equal, rank 0 answers, else it names the ranks that differ
    rank 0     → store   the answer in a wire format, or an error
    every rank ← store   the answer, which the simulator replays there too

The messages go through the key-value store of the process group and never through its collectives. So they
can't mix with the collectives of the training, every wait ends, and a rank that is alone gets an error.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias

import msgspec
import torch.distributed as dist

from checkmate import (
    CheckmateError,
    DFGraph,
    InfeasibleBudgetError,
    Problem,
    Solution,
    read_graph,
)
from checkmate.cost import OpProfile
from checkmate.solving import claim_bytes, graph_bytes, judged, read_claim
from checkmate_torch.private import active_ddp, store_of

__all__ = [
    "GroupChoice",
    "RankError",
    "Ranks",
    "checked_group",
    "decided_together",
    "largest_of",
    "numbers_of_first",
    "priced_together",
    "profiled_together",
]

GroupChoice: TypeAlias = "dist.ProcessGroup | Literal['all', 'alone']"
"""The ranks that plan together: those of a process group, all that train together, or this one alone."""

_WORK_S = 900.0
"""Seconds that rank 0 may take to time ops, besides the solver's time limit."""
_log = logging.getLogger(__name__)


class RankError(CheckmateError, RuntimeError):
    """The ranks can't agree on a plan: their graphs differ, one of them asks for none, or rank 0 failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranks:
    """The ranks that plan together, as one of them sees them.

    Attributes:
        rank: rank of this process in the group.
        names: the rank of each member in the whole job, for messages.
        store: a ``torch.distributed.Store``, which carries their messages.
    """

    rank: int
    names: tuple[int, ...]
    store: Any  # its stub knows neither bytes nor the timeout

    @classmethod
    def of(cls, choice: GroupChoice) -> Self | None:
        """The ranks that a choice means now; None = this process plans alone.

        Inside a DDP module, ``"all"`` means the ranks of its process group.
        """
        if choice == "alone" or not (dist.is_available() and dist.is_initialized()):
            return None
        ddp = active_ddp()
        of_all = ddp.process_group if ddp else None  # the default group
        group = of_all if isinstance(choice, str) else choice
        if dist.get_world_size(group) < 2:
            return None
        return cls(
            rank=dist.get_rank(group),
            names=tuple(dist.get_process_group_ranks(group)),
            store=store_of(group),
        )


def checked_group(choice: object) -> GroupChoice:
    """The user's choice; raise TypeError unless it is a process group, ``"all"`` or ``"alone"``."""
    if choice in ("all", "alone") or (dist.is_available() and isinstance(choice, dist.ProcessGroup)):
        return choice
    raise TypeError(
        f"process_group is {choice!r}, must be 'all', 'alone', or a torch.distributed ProcessGroup"
    )


def priced_together(ranks: Ranks | None, graph: DFGraph, price: Callable[[DFGraph], DFGraph]) -> DFGraph:
    """Price a graph with the costs and workspaces of rank 0, on every rank.

    Measured costs differ from run to run, so only rank 0 measures. The ranks may hold different numbers of
    bytes besides their graphs; the largest counts.

    Raises:
        RankError: if the ranks trace different graphs, or not all of them trace one.
    """
    if ranks is None:
        return price(graph)
    resident = sum(graph.tensors[t].size for t in graph.inputs)
    question = _Question(
        asks=f"a plan for {graph!r} with {resident} bytes of parameters and inputs",
        digest=_structure(graph),
        size=graph.fixed_size,
    )

    def answer(asked: Sequence[_Question]) -> bytes:
        largest = max(each.size for each in asked)
        return graph_bytes(price(replace(graph, fixed_size=largest)))

    return read_graph(_agreed(ranks, question, answer, _WORK_S))


def profiled_together(
    ranks: Ranks | None, names: Sequence[str], profile: Callable[[], list[OpProfile | None]]
) -> list[OpProfile | None]:
    """The profiles that rank 0 takes of some kernels, on every rank; RankError if their names differ."""
    if ranks is None or not names:
        return profile()
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    question = _Question(asks=f"the times of {len(names)} fused kernels", digest=digest, size=0)
    reply = _agreed(ranks, question, lambda _: msgspec.msgpack.encode(profile()), _WORK_S)
    return msgspec.msgpack.decode(reply, type=list[OpProfile | None])


def decided_together(ranks: Ranks | None, problem: Problem, solve: Callable[[int], Solution]) -> Solution:
    """The solution of rank 0, judged on every rank. If their budgets differ, the smallest counts.

    ``solve`` solves the problem, whose graph is priced, for a budget in bytes.

    Raises:
        RankError: if not all ranks ask about this graph.
        InfeasibleBudgetError: if rank 0 raised it.
    """
    if ranks is None:
        return solve(problem.budget)
    graph = problem.graph
    question = _Question(asks=f"a schedule for {graph!r}", digest=graph.digest, size=problem.budget)

    def answer(asked: Sequence[_Question]) -> bytes:
        return claim_bytes(solve(min(each.size for each in asked)))

    claim, meta = read_claim(_agreed(ranks, question, answer, problem.time_limit + _WORK_S), graph)
    solution = judged(claim, meta["solver"], replace(problem, budget=meta["budget"]))
    return replace(solution, seconds=claim.seconds)


def largest_of(ranks: Ranks | None, asks: str, number: int) -> int:
    """The largest of the numbers that the ranks pass, on every rank; RankError if not all of them ask."""
    if ranks is None:
        return number
    question = _Question(asks=asks, digest=hashlib.sha256(asks.encode()).hexdigest(), size=number)

    def answer(asked: Sequence[_Question]) -> bytes:
        return msgspec.msgpack.encode(max(each.size for each in asked))

    return msgspec.msgpack.decode(_agreed(ranks, question, answer, _WORK_S), type=int)


def numbers_of_first(ranks: Ranks | None, asks: str, find: Callable[[], Sequence[int]]) -> Sequence[int]:
    """The numbers that rank 0 finds, on every rank; RankError if not all of them ask."""
    if ranks is None:
        return find()
    question = _Question(asks=asks, digest=hashlib.sha256(asks.encode()).hexdigest(), size=0)
    reply = _agreed(ranks, question, lambda _: msgspec.msgpack.encode(find()), _WORK_S)
    return msgspec.msgpack.decode(reply, type=list[int])


class _Question(msgspec.Struct, frozen=True):
    """A rank's question: in words, as a digest that must be equal on all ranks, and the rank's own bytes."""

    asks: str
    digest: str
    size: int


class _Answer(msgspec.Struct, frozen=True):
    """Rank 0's answer: a wire format, or an error."""

    content: bytes = b""
    error: str = ""
    infeasible: dict[str, Any] | None = None


def _agreed(
    ranks: Ranks, question: _Question, answer: Callable[[Sequence[_Question]], bytes], work_s: float
) -> bytes:
    """The answer of rank 0 to the question that all ranks ask."""
    store, patience = ranks.store, ranks.store.timeout
    round_ = f"checkmate/{store.add(f'checkmate/rounds/{ranks.rank}', 1)}"
    keys = [f"{round_}/{rank}" for rank in range(len(ranks.names))]
    store.set(keys[ranks.rank], _packed(question))
    if ranks.rank == 0:
        try:
            reply = _Answer(content=answer(_asked_by_all(ranks, keys, patience)))
        except BaseException as error:
            store.set(f"{round_}/answer", _packed(_failure(error)))
            raise
        store.set(f"{round_}/answer", _packed(reply))
        return reply.content
    me, first = ranks.names[ranks.rank], ranks.names[0]
    if _missing(store, keys[:1], patience):
        raise _silence(me, question, first, patience)
    _log.info("rank %d waits for the answer of rank %d", me, first)
    if _missing(store, [f"{round_}/answer"], patience + timedelta(seconds=work_s)):
        raise RankError(f"rank {first} gave no answer to rank {me}: see what happened there")
    reply = msgspec.msgpack.decode(zlib.decompress(store.get(f"{round_}/answer")), type=_Answer)
    if reply.infeasible is not None:
        raise InfeasibleBudgetError(**reply.infeasible)
    if reply.error:
        raise RankError(reply.error)
    return reply.content


_WAY_OUT = (
    "All ranks must meet the same kinds of inputs (shapes, dtypes, modes) in the same order: pad batches, "
    "drop the last one where it is smaller, declare a largest size (dynamic=True, and "
    "torch._dynamo.mark_dynamic), or let each rank plan for itself with process_group='alone'."
)


def _silence(rank: int, question: _Question, others: object, patience: timedelta) -> RankError:
    """The error where one rank asks and others don't."""
    asks = f"rank {rank} asks for {question.asks}"
    return RankError(f"{asks}, but rank {others} asked for nothing within {patience}. {_WAY_OUT}")


def _asked_by_all(ranks: Ranks, keys: Sequence[str], patience: timedelta) -> list[_Question]:
    """The questions of all ranks, whose digests are equal."""
    first = ranks.names[0]
    absent = _missing(ranks.store, keys, patience)
    asked = [
        msgspec.msgpack.decode(zlib.decompress(ranks.store.get(key)), type=_Question)
        for key in keys
        if key not in absent
    ]
    if absent:
        late = ", ".join(str(name) for name, key in zip(ranks.names, keys, strict=True) if key in absent)
        raise _silence(first, asked[0], late, patience)
    for name, question in zip(ranks.names, asked, strict=True):
        if question.digest != asked[0].digest:
            raise RankError(
                f"rank {first} and rank {name} differ: rank {first} asks for {asked[0].asks}, "
                f"rank {name} for {question.asks}. {_WAY_OUT}"
            )
    return asked


def _missing(store: Any, keys: Sequence[str], patience: timedelta) -> set[str]:
    """The keys that were not written in time."""
    try:
        store.wait(list(keys), patience)
    except RuntimeError:  # its subclass depends on the store
        return {key for key in keys if not store.check([key])}
    return set()


def _failure(error: BaseException) -> _Answer:
    """The answer to the other ranks after an error on rank 0."""
    if isinstance(error, InfeasibleBudgetError):
        return _Answer(infeasible=vars(error))
    if isinstance(error, RankError):
        return _Answer(error=str(error))
    return _Answer(error=f"rank 0 failed to plan for all ranks: {type(error).__name__}: {error}")


def _packed(message: msgspec.Struct) -> bytes:
    """The message as bytes; compressed, because some stores take at most 8 MiB at once."""
    return zlib.compress(msgspec.msgpack.encode(message))


def _structure(graph: DFGraph) -> str:
    """A hash of the graph with its names but without fixed bytes: it must be equal on all ranks."""
    names = "\n".join(op.name for op in graph.ops)
    return hashlib.sha256(f"{replace(graph, fixed_size=0).digest}\n{names}".encode()).hexdigest()
