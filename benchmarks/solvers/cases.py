"""The questions: graphs, and for each the budgets, as shares of its keep-everything peak.

Out of the box twelve training steps of 17 to 3,187 ops, and four random layered graphs of the kinds RL1 to
RL4: of as many ops as the published ones, and from our own generator, so like them but not equal to them. For
RL1 and RL2, the seeds are those of the first dozen whose floors are nearest to those of the published graphs,
43 % and 60 % of the keep-everything peak: how far a budget is from the floor decides how hard it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from checkmate import DFGraph, floor, generators, keep_all_peak, read_graph, write_graph
from solvers.records import GraphFacts

__all__ = ["GENERATED", "QUICK", "Case", "Generated", "cases_of", "facts_of", "write_files"]

_STEPS = (0.7, 0.5, 0.3)
_LAYERED = (0.9, 0.8, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A graph to be generated, and its shares."""

    graph: Callable[[], DFGraph]
    shares: tuple[float, ...] = _STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One graph, by name and file, at one share of its keep-everything peak."""

    graph: str
    file: Path
    share: float


GENERATED: Mapping[str, Generated] = {
    "chain8": Generated(graph=lambda: generators.chain(8)),
    "chain32-random": Generated(graph=lambda: generators.chain(32, cost="random", seed=1)),
    "chain64": Generated(graph=lambda: generators.chain(64)),
    "unet4": Generated(graph=lambda: generators.unet(4), shares=(0.7, 0.5, 0.4)),
    "layered60-training": Generated(graph=lambda: generators.random_layered(60, seed=1, training=True)),
    "transformer4": Generated(graph=lambda: generators.transformer(4, vocabulary=4_000)),
    "residual16": Generated(graph=lambda: generators.residual(16)),
    "transformer12": Generated(graph=lambda: generators.transformer(12, vocabulary=8_000)),
    "densenet24": Generated(graph=lambda: generators.densenet(24)),
    "residual64": Generated(graph=lambda: generators.residual(64)),
    "transformer42": Generated(graph=lambda: generators.transformer(42)),
    "transformer106": Generated(graph=lambda: generators.transformer(106)),
    "rl1": Generated(graph=lambda: generators.random_layered(100, seed=5), shares=_LAYERED),
    "rl2": Generated(graph=lambda: generators.random_layered(250, seed=7), shares=_LAYERED),
    "rl3": Generated(graph=lambda: generators.random_layered(500, seed=1), shares=_LAYERED),
    "rl4": Generated(graph=lambda: generators.random_layered(1000, seed=1), shares=_LAYERED),
}
QUICK = (
    *("chain8", "chain64", "unet4", "residual16", "transformer12", "transformer42", "transformer106"),
    *("rl1", "rl2"),
)
"""A selection: some 15 minutes with the solvers that go with it, at 10 seconds each."""


def write_files(folder: Path, generated: Mapping[str, Generated]) -> None:
    """Write generated graphs as wire-format files, named after them."""
    for name, one in generated.items():
        write_graph(folder / f"{name}.json", one.graph())


def cases_of(
    folder: Path,
    shares: Iterable[float] = (),
    *,
    known: Iterable[str] = (),
    only: Iterable[str] = (),
    generated: Mapping[str, Generated] = MappingProxyType({}),
) -> list[Case]:
    """Every graph file of a folder at every share.

    Args:
        folder: of wire-format graphs; a graph is called as its file is.
        shares: of the keep-everything peak; without any, those that ``known`` names, else those of
            ``generated``, else 0.8, 0.5 and 0.3.
        known: pairs ``graph:share``.
        only: keep the pairs ``graph:share`` in which one of these occurs; none keeps all.
        generated: what the files were made from, if they were; they come in its order, others by name.
    """
    asked, pairs = list(shares), [key.rpartition(":") for key in known]
    files = [folder / f"{name}.json" for name in generated] or sorted(folder.glob("*.json"))
    cases = []
    for file in files:
        own = generated[file.stem].shares if generated else (0.8, 0.5, 0.3)
        of_known = [float(share) for graph, _, share in pairs if graph == file.stem]
        mine = asked or (of_known if pairs else own)
        cases += [Case(graph=file.stem, file=file, share=share) for share in mine]
    wanted = list(only)
    return [c for c in cases if not wanted or any(part in f"{c.graph}:{c.share:g}" for part in wanted)]


def facts_of(file: Path) -> GraphFacts:
    """What the report says of a graph."""
    graph = read_graph(file)
    return GraphFacts(
        ops=graph.n_ops,
        tensors=graph.n_tensors,
        training=any(op.backward for op in graph.ops),
        ideal_cost=graph.ideal_cost,
        keep_all_peak=keep_all_peak(graph),
        floor=floor(graph).size,
        digest=graph.digest,
    )
