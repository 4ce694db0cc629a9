"""The evaluation: the experiments of the Checkmate paper and our own, asked again and shown side by side.

    Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020,
    arXiv:1910.02653.

``experiment`` says what an experiment is, ``runner`` runs its tasks on any executor, ``results`` keeps the
rows, ``pages`` puts them into the documentation; every other module is one experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from evaluation import (
    ablation,
    executions,
    integrality,
    largest_batch,
    matrices,
    overhead,
    paper_graphs,
    peaks,
    ratios,
    readme,
    scaling,
    torch_details,
)
from evaluation.experiment import Experiment
from evaluation.results import read_results
from faults import results as faults
from pages import conditions
from solvers import page, records

__all__ = ["EXPERIMENTS", "tables"]

EXPERIMENTS: Mapping[str, Experiment] = {
    one.name: one
    for one in (
        overhead.EXPERIMENT,
        largest_batch.EXPERIMENT,
        ratios.EXPERIMENT,
        matrices.EXPERIMENT,
        integrality.EXPERIMENT,
        scaling.EXPERIMENT,
        ablation.EXPERIMENT,
        *executions.EXPERIMENTS,
        *peaks.EXPERIMENTS,
        *torch_details.EXPERIMENTS,
    )
}
"""By name, in the order in which they run."""


def tables(folder: Path) -> dict[str, Callable[[], str]]:
    """What pages may quote: by name, what makes the Markdown from the results files of a folder.

    Args:
        folder: of results files, ``NAME.json`` for each experiment that has rows of its own.
    """

    def table_of(experiment: Experiment) -> Callable[[], str]:
        def told() -> str:
            results = read_results(folder / f"{experiment.source.name}.json")
            return f"{experiment.markdown(results)}\n\n{conditions(results.sessions)}"

        return told

    made = {name: table_of(experiment) for name, experiment in EXPERIMENTS.items()}
    made["paper-graphs"] = lambda: paper_graphs.markdown(folder)
    made["solvers"] = lambda: page.markdown(records.read_results(folder / "solvers.json"))
    made["faults"] = lambda: faults.markdown(folder / "faults.json")
    return made | readme.tables(folder)
