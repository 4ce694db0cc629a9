"""Large files: time and memory grow with the file, not with its square, whatever it holds."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import pytest

from checkmate import DFGraph, FormatError, Op, Schedule, Tensor, read_graph, simulate
from checkmate.analysis import liveness
from checkmate.heuristics.prune import pruned
from checkmate.model.graph import CSR

pytestmark = pytest.mark.slow

HEAD = b'{"format":"checkmate.graph","version":1,"tensors":[],"ops":[],"inputs":[],"outputs":[]'


class Counted(int):
    """A number whose comparisons are counted."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


class Rows:
    """Rows of counted numbers, as the judge reads them."""

    def __init__(self, rows: CSR) -> None:
        self.row = lambda i: type("Row", (), {"tolist": lambda _: [*map(Counted, rows.row(i).tolist())]})()


def comparisons(reused: int) -> int:
    """The comparisons of tensors until a graph is made, judged and pruned, whose last op reuses as many."""
    Counted.compared = 0
    tensors = tuple(map(Counted, range(reused)))
    graph = DFGraph(
        ops=(
            Op(name="", inputs=(), outputs=tensors, cost=1),
            Op(name="", inputs=tensors, outputs=(reused,), cost=1, reuses=tensors[::-1]),
        ),
        tensors=(Tensor(name="", size=1),) * (reused + 1),
        outputs=(reused,),
    )
    graph.__dict__["reuses"] = Rows(graph.reuses)
    peak = simulate(graph, Schedule.from_sequence(graph, [0, 1])).peak
    assert peak == liveness(graph).peak == reused
    assert pruned(graph, [0, 1], 2**40, fixed_order=True) == [0, 1]
    return Counted.compared


def test_an_op_that_reuses_many_inputs_is_judged_in_time_that_grows_with_them() -> None:
    assert comparisons(800) < 3 * comparisons(400) < 60 * 400


def test_places_of_long_keys_take_no_memory_until_one_is_shown() -> None:
    levels = b'{"' + b"k" * 10_000 + b'":'
    content = HEAD + b',"x":' + 400 * levels + b"0" + 400 * b"}" + b',"y":1,"y":2}'
    tracemalloc.start()
    with pytest.raises(FormatError, match=r"twice in one object - at `\$\.y`"):
        read_graph(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * len(content)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_long_key_beside_a_long_list_takes_seconds_at_most(encoding: str) -> None:
    """In a process that ends after 15 s of CPU time; with a text for each place it took minutes."""
    program = f"""
import math, resource, sys, msgspec
from checkmate import DFGraph, read_graph, read_schedule
resource.setrlimit(resource.RLIMIT_CPU, (15, 15))
key, numbers = "k" * 2**22, [0] * 2**19
if {encoding!r} == "json":
    content = {HEAD!r} + b',"' + key.encode() + b'":' + msgspec.json.encode(numbers) + b',"x":1,"x":2}}'
    read = lambda: read_graph(content)
else:
    graph = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
    head = {{"format": "checkmate.schedule", "version": 1, "graph": graph.digest, "steps": []}}
    content = msgspec.msgpack.encode(head | {{"meta": {{key: [*numbers, math.nan]}}}})
    read = lambda: read_schedule(content, graph)
try:
    read()
except ValueError as error:
    print(str(error)[-20:])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("`")
