"""Judged schedules to draw: random ones, one known by hand, one with hostile names, a large one."""

from __future__ import annotations

from hypothesis import strategies as st

from checkmate import DFGraph, Op, Schedule, Tensor, Timeline, simulate
from checkmate.testing.strategies import graphs, valid_schedules

HOSTILE = [
    "</script><script>document.documentElement.dataset.owned='yes'</script>",
    "<!--<script>",
    "\"'`\\N\\\\ &amp; ]]> $\\frac{1}{0}$",
    "line\nfeed\r\0\x1b[31m\u2028\u202egnp\ud800",
    "μ²→🔥 层",
    "",
]


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    graph = draw(graphs())
    return simulate(graph, draw(valid_schedules(graph)))


def by_hand() -> Timeline:
    """Forward a, b; backward c reads b, d reads a and c; a (8 bytes) is away while b and c run."""
    graph = DFGraph(
        ops=(
            Op(name="a", inputs=(0,), outputs=(1,), cost=2.0),
            Op(name="b", inputs=(1,), outputs=(2,), cost=1.0, workspace=3),
            Op(name="c", inputs=(2,), outputs=(3,), cost=1.0, workspace=20, backward=True),
            Op(name="d", inputs=(1, 3), outputs=(4,), cost=4.0, backward=True),
        ),
        tensors=tuple(Tensor(name=n, size=s) for n, s in [("x", 5), ("A", 8), ("B", 4), ("C", 2), ("D", 1)]),
        inputs=(0,),
        outputs=(4,),
        fixed_size=10,
        cost_unit="s",
        name="by hand",
    )
    return simulate(graph, Schedule.from_sequence(graph, [0, 1, 2, 0, 3]))


def hostile() -> Timeline:
    n = len(HOSTILE)
    graph = DFGraph.from_nodes(
        cost=[1.0] * n,
        size=[4] * n,
        deps=[[], *([i] for i in range(n - 1))],
        names=HOSTILE,
        cost_unit="<b>&\n",
        name=HOSTILE[0],
    )
    return simulate(graph, Schedule.from_sequence(graph, [*range(n - 2), 0, 1, n - 2, n - 1]))


def large(n: int) -> Timeline:
    """A chain and its mirror, 2n ops; every tenth is recomputed once. Names are long."""
    names = [f"{'encoder.layers.attention.' * 4}{i}" for i in range(2 * n)]
    deps = [[i - 1] if i else [] for i in range(n)] + [[n + i - 1, n - 1 - i] for i in range(n)]
    graph = DFGraph.from_nodes(
        cost=[1.0] * (2 * n),
        size=[1 + i % 97 for i in range(2 * n)],
        deps=deps,
        names=names,
        backward=[False] * n + [True] * n,
    )
    again = [w for i in range(n) for w in ([n - 1 - i] if i % 10 == 9 else []) + [n + i]]
    order = [*range(n), *again]
    return simulate(graph, Schedule.from_sequence(graph, order))
