"""Networks as graph files, and a table of their sizes.

python benchmarks/zoo -o DIR [--networks vgg16 unet …] [--level layer op] [--frontend torch keras]
                      [--batch N] [--small]

No network is run, and no memory is allocated for it. Networks whose packages are not installed are skipped
and listed. ``checkmate solve`` and other commands read the files, also where the front end is not installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from checkmate import DFGraph, floor, keep_all_peak, write_graph

sys.path[0] = str(Path(__file__).parents[1])  # benchmarks/, instead of this folder

import zoo  # noqa: E402

_HEAD = ("network", "ops", "tensors", "keep-all MiB", "floor MiB", "fixed MiB", "forward GFLOP", "parameters")


def main() -> None:
    """Write the graphs one by one, a row for each."""
    options = _options()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    left_out = []
    print(f"{_HEAD[0]:<26}", *(f"{word:>13}" for word in _HEAD[1:]))
    for name in options.networks:
        for frontend in options.frontend:
            if frontend not in zoo.NETWORKS[name].frontends:
                continue
            if lacking := zoo.missing(name, frontend):
                left_out.append(f"{name} in {frontend}: needs {', '.join(lacking)}")
                continue
            count = zoo.parameter_count(name, frontend=frontend, small=options.small)
            for level in options.level:
                graph = zoo.graph(
                    name, level=level, frontend=frontend, batch=options.batch, small=options.small
                )
                label = f"{name}-{level}-{frontend}"
                if options.out:
                    write_graph(options.out / f"{label}.json", graph)
                print(_row(label, graph, count), flush=True)
    for line in left_out:
        print(f"left out: {line}, not installed here")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/zoo", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-o", "--out", type=Path, help="folder for the graph files; without it only the table"
    )
    parser.add_argument(
        "--networks", nargs="+", choices=zoo.NETWORKS, default=list(zoo.NETWORKS), metavar="NAME"
    )
    parser.add_argument("--level", nargs="+", choices=("layer", "op"), default=["layer"])
    parser.add_argument("--frontend", nargs="+", choices=("torch", "keras"), default=["torch", "keras"])
    parser.add_argument("--batch", type=int, help="examples in a step; default: the paper's")
    parser.add_argument("--small", action="store_true", help="small images and few blocks")
    return parser.parse_args()


def _row(label: str, graph: DFGraph, parameters: int) -> str:
    forward = sum(op.cost for op in graph.ops if not op.backward)
    sizes = (keep_all_peak(graph), floor(graph).size, graph.base_size)
    numbers = [
        *(graph.n_ops, graph.n_tensors),
        *(f"{size / 2**20:.1f}" for size in sizes),
        *(f"{forward / 1e9:.2f}", parameters),
    ]
    return " ".join([f"{label:<26}", *(f"{number:>13}" for number in numbers)])


if __name__ == "__main__":
    main()
