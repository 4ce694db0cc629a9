"""Solvers side by side: cost, bound, gap, when they got there, and how much memory they held.

    python benchmarks/solvers/run.py -o benchmarks/results/solvers.json
    python benchmarks/solvers/run.py --graphs DIR --budgets 0.8 0.5 0.3 --solvers auto checkmate-milp
    python benchmarks/solvers/run.py --summary benchmarks/results/solvers.json

Without --graphs it generates its own. Budgets are shares of the keep-everything peak. Every solve has a fresh
process, pinned to one core, imports and compilation done before the clock starts; if one crashes or never
ends, its row says so. With -o, JSON is written after every row, text and pictures beside it at the end; an
interrupted run goes on with --resume.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/: what they share, and this package

from machine import session
from results_file import write_results
from solvers.cases import GENERATED, QUICK, Generated, cases_of, facts_of, write_files
from solvers.measure import Limits, Solve, measured, solves_of
from solvers.page import markdown
from solvers.pictures import draw
from solvers.records import Results, Settings, read_results
from solvers.summary import findings
from solvers.table import line, text

SOLVERS = (
    *("auto", "checkmate-milp", "retention-intervals", "lp-rounding", "cut-milp", "min-cut", "local-search"),
    *("chain-dp", "revolve", "heuristics", "evict-belady", "evict-dtr", "chen-sqrt-n", "chen-sqrt-n-ap"),
    *("chen-greedy", "chen-greedy-ap", "checkpoint-last", "first-fit"),
)
QUICK_SOLVERS = (
    *("auto", "checkmate-milp", "retention-intervals", "lp-rounding", "evict-dtr"),
    *("chen-sqrt-n-ap", "chen-greedy", "chen-greedy-ap"),
)


def main(arguments: Sequence[str]) -> int:
    """Measure, or say what was measured; returns the exit code."""
    asked = _parser().parse_args(arguments)
    if asked.summary:
        print("\n".join(map(str, findings(read_results(asked.summary)))))
        return 0
    if asked.markdown:
        print(markdown(read_results(asked.markdown)))
        return 0
    asked.solvers = asked.solvers or (QUICK_SOLVERS if asked.quick else SOLVERS)
    if asked.graphs is not None:
        return _measure(asked, arguments, {})
    generated = {name: one for name, one in GENERATED.items() if name in QUICK or not asked.quick}
    with tempfile.TemporaryDirectory() as folder:
        asked.graphs = Path(folder)
        write_files(asked.graphs, generated)
        return _measure(asked, arguments, generated)


def _measure(asked: argparse.Namespace, arguments: Sequence[str], generated: Mapping[str, Generated]) -> int:
    """Every row that is not there yet."""
    known = json.loads(asked.known.read_text()) if asked.known else {}
    cases = cases_of(asked.graphs, asked.budgets, known=known, only=asked.only, generated=generated)
    if not cases:
        print("no case: no *.json in the folder, or --only leaves none", file=sys.stderr)
        return 2
    settings = Settings(time_limit=asked.time_limit, fixed_order=asked.fixed_order)
    facts = {case.graph: facts_of(case.file) for case in cases}
    results = Results(settings=settings)
    if asked.resume and asked.output and asked.output.exists():
        results = read_results(asked.output)
        if results.settings != settings or any(
            graph in facts and facts[graph].digest != old.digest for graph, old in results.graphs.items()
        ):
            print(
                f"{asked.output} has rows of other settings or graphs: name another file",
                file=sys.stderr,
            )
            return 2
    rows = {row.key: row for row in results.rows if row.outcome != "not installed"}
    solves = [s for s in solves_of(cases, asked.solvers, asked.seeds) if s.key not in rows]
    results = msgspec.structs.replace(
        results,
        sessions=(*results.sessions, session("benchmarks/solvers/run.py", arguments, asked.seeds)),
        graphs=results.graphs | facts,
        known=results.known | {key: value["best"] for key, value in known.items()},
        rows=tuple(rows.values()),
    )
    return _rows(asked, results, solves)


def _rows(asked: argparse.Namespace, results: Results, solves: list[Solve]) -> int:
    """Run, print a line for each, keep all; Ctrl-C and --stop-after end it early, with what there is."""
    end = time.monotonic() + 60 * asked.stop_after
    code = 0
    longest = len(solves) * (results.settings.time_limit + asked.late) / 60
    print(
        f"{len(solves)} solves, at most {longest:.0f} minutes and most likely a fraction of that; "
        f"{len(results.rows)} rows kept",
        file=sys.stderr,
    )
    limits = Limits(late_s=asked.late, memory=int(asked.memory * 2**30))
    try:
        for row in measured(solves, results.graphs, results.settings, limits):
            results = msgspec.structs.replace(results, rows=(*results.rows, row))
            print(f"{row.graph:<18}{line(results, row)}", flush=True)
            if asked.output:
                write_results(asked.output, results)
            if time.monotonic() > end:
                break
    except KeyboardInterrupt:
        code = 130
    left = {solve.key for solve in solves} - {row.key for row in results.rows}
    if left:
        print(f"{len(left)} solves are still to do: --resume", file=sys.stderr)
    if asked.output:
        write_results(asked.output, results)
        asked.output.with_suffix(".txt").write_text(text(results) + "\n", encoding="utf-8")
        try:
            pictures = draw(results, asked.output.with_suffix(""))
        except ModuleNotFoundError as error:
            print(f"no pictures: {error}", file=sys.stderr)
        else:
            print(f"written beside {asked.output}: {', '.join(p.name for p in pictures)}", file=sys.stderr)
    said = [str(finding) for finding in findings(results) if finding.reached is not None]
    print("\n".join(["", *said]))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    say = parser.add_argument
    say("--graphs", type=Path, help="folder of checkmate.graph files; default: generated graphs")
    say("--budgets", type=float, nargs="*", default=[], help="shares of the keep-everything peak")
    say("--solvers", nargs="+", help="names of solvers, or module:Class; default: all of ours")
    say("--time-limit", type=float, default=10.0, help="seconds for each solve")
    say("--late", type=float, default=20.0, help="seconds after the limit at which a solver is killed")
    say("--memory", type=float, default=8.0, help="GiB that a process may hold")
    say("--seeds", type=int, nargs="+", default=[0])
    say(
        "--known",
        type=Path,
        help="JSON of best known costs: its pairs are run, if --budgets says nothing else",
    )
    say("--only", nargs="*", default=[], help='cases "graph:share" that contain one of these')
    say("--fixed-order", action="store_true", help="first runs of ops keep the base order")
    say("--quick", action="store_true", help=f"fewer solvers; of the generated graphs {', '.join(QUICK)}")
    say("--stop-after", type=float, default=float("inf"), help="minutes after which no solve starts")
    say("--resume", action="store_true", help="keep the rows of the output file, run the others")
    say("-o", "--output", type=Path, help="JSON file; .txt and .png go beside it")
    say("--summary", type=Path, metavar="RESULTS", help="print what a results file says of the goals")
    say("--markdown", type=Path, metavar="RESULTS", help="print a results file as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
