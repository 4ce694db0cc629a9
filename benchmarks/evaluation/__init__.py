"""The evaluation: the experiments of the Checkmate paper, repeated, and our own.

    Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020,
    arXiv:1910.02653.

``experiment`` defines an experiment, ``runner`` runs its tasks on any executor, ``results`` is the format of
the rows, ``pages`` puts them into the documentation; ``solving`` runs one solve in a process of its own. Most
other modules are one experiment each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import bench_faults
from evaluation import (
    ablation,
    deep,
    executed_batches,
    executions,
    first_step,
    fsdp,
    fused,
    host_time,
    integrality,
    keras_remat,
    keras_world,
    largest_batch,
    matrices,
    overhead,
    paper_graphs,
    peaks,
    physical_limits,
    ratios,
    readme,
    scaling,
    selfcheck,
    solvers,
    split,
    split_predicted,
    tiny,
    torch_details,
    torch_fit,
    torch_gpu,
    torch_policies,
    torch_world,
)
from evaluation.experiment import Experiment
from evaluation.results import read_results
from pages import conditions

__all__ = ["EXPERIMENTS", "tables"]

EXPERIMENTS: Mapping[str, Experiment] = {
    one.name: one
    for one in (
        overhead.EXPERIMENT,
        largest_batch.EXPERIMENT,
        ratios.EXPERIMENT,
        matrices.EXPERIMENT,
        integrality.EXPERIMENT,
        solvers.EXPERIMENT,
        scaling.EXPERIMENT,
        ablation.EXPERIMENT,
        tiny.EXPERIMENT,
        deep.EXPERIMENT,
        *executions.EXPERIMENTS,
        fused.EXPERIMENT,
        split.EXPERIMENT,
        split_predicted.EXPERIMENT,
        physical_limits.EXPERIMENT,
        *executed_batches.EXPERIMENTS,
        keras_remat.EXPERIMENT,
        keras_world.EXPERIMENT,
        keras_world.VARIES,
        first_step.EXPERIMENT,
        *peaks.EXPERIMENTS,
        *torch_details.EXPERIMENTS,
        torch_fit.EXPERIMENT,
        torch_gpu.EXPERIMENT,
        torch_policies.EXPERIMENT,
        host_time.EXPERIMENT,
        fsdp.EXPERIMENT,
        *torch_world.EXPERIMENTS,
    )
}
"""By name, in the order in which they run."""


def tables(folder: Path) -> dict[str, Callable[[], str]]:
    """The tables that pages can quote: by name, a function that makes the Markdown from results files.

    Args:
        folder: of results files, ``NAME.json`` for each experiment with rows of its own.
    """

    def table_of(experiment: Experiment) -> Callable[[], str]:
        def made_now() -> str:
            results = read_results(folder / f"{experiment.source.name}.json")
            return f"{experiment.markdown(results)}\n\n{conditions(results.sessions)}"

        return made_now

    made = {name: table_of(experiment) for name, experiment in EXPERIMENTS.items()}
    made["paper-graphs"] = lambda: paper_graphs.markdown(folder)
    made["faults"] = lambda: bench_faults.markdown(folder / "faults.json")
    made["selfcheck"] = lambda: selfcheck.markdown(folder)
    made["readme-torch"] = lambda: readme.markdown(folder)
    return made
