"""Training steps of :mod:`zoo.torch_sizes` on a GPU: plain, with the library's own checkpoints, and planned.

Peaks are from ``torch.cuda.max_memory_allocated``, in forward, loss and backward of the third step. Losses,
gradients, parameters, buffers and states after three steps are compared bit by bit with a plain run; where
they differ, also with a second plain run, and with ``torch.compile(backend="aot_eager")``.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from checkmate_torch.selfcheck.answers import Setup, finite
from checkmate_torch.selfcheck.bits import References
from checkmate_torch.selfcheck.loop import Loop, Outcome, difference, forget_all, setup_on
from steps.allocator_trace import recorded
from steps.process import SKIPPED, Row, answer, failed
from steps.torch_step import facts_of
from zoo.torch_sizes import NETWORKS

__all__ = ["measure"]


def measure(task: Row) -> Row:
    """All ways to train one network, in this process.

    Args:
        task: ``network``, ``device``, ``ways``: ``own`` for the library's checkpoints, or an entry point and
            a budget, as ``enable 70%``, and ``graph`` for a step as one CUDA graph, ``masked`` for one that
            reads no masks; ``n`` examples, by default the usual number; ``bits``: whether results are
            compared; ``cost_model``, ``time_limit`` of the solver and ``spend_s`` for timing a way, in
            seconds; ``left_s``: seconds for all ways, of which the last are skipped; ``record``: ways of
            which a step's allocations are recorded, and the times of its ops.
    """
    begun = time.perf_counter()
    setup = setup_on(torch.device(task["device"]))
    steps = _Steps(task, setup)
    found = {"plain": steps.plain, "reserve": setup.reserve}
    longest = time.perf_counter() - begun
    for way in task["ways"]:
        start = time.perf_counter()
        if start - begun + longest > task.get("left_s", float("inf")):
            found[way] = {"failed": SKIPPED}
            continue
        forget_all()
        try:
            found[way] = steps.facts(way)
        except Exception as error:  # noqa: BLE001 - the inability of a way is its answer
            found[way] = failed(error)
        found[way]["seconds"] = time.perf_counter() - start
        longest = max(longest, found[way]["seconds"])
    return found


class _Steps:
    """The ways to train a network; each is compared with the plain one."""

    def __init__(self, task: Row, setup: Setup) -> None:
        self.task, self.setup = task, setup
        network = NETWORKS[task["network"]]
        self.network = replace(network, batch=task.get("n") or network.batch)
        self._references = References(self.network, setup)
        plain = self._references.plain()  # before another loop holds memory
        warm = self._loop()
        warm.step()
        self.plain = self._measured(warm, plain) | self._recorded("plain", warm)
        self._own_peak: int | None = None

    def facts(self, way: str) -> Row:
        """The fields of a way: ``own``, or an entry point and a budget, as ``enable 70%``."""
        loop = self._loop()
        if way == "own":
            self.network.checkpoint(loop.model)
            found = self._measured(loop, loop.train())
            self._own_peak = found["peak"]
            return found
        entry, budget, *flags = way.split()
        settings = {"cost_model": self.task["cost_model"], "time_limit": self.task["time_limit"]}
        settings |= {"cuda_graph": True} if "graph" in flags else {}
        settings |= {"read_masks": False} if "masked" in flags else {}
        loop.plan(entry, self._budget(budget), **settings)
        start = time.perf_counter()
        outcome = loop.train()
        plan_s = time.perf_counter() - start
        found = self._measured(loop, outcome) | facts_of(loop.last_plan.solution) | {"plan_s": plan_s}
        if "graph" in flags:
            found["uncaptured_s"] = self._uncaptured_seconds(loop)
        return found | self._recorded(way, loop)

    def _recorded(self, way: str, loop: Loop) -> Row:
        """The allocations of a step on a GPU, and the planned times of its ops, if the task asks for them."""
        if way not in self.task.get("record", ()):
            return {}
        found: Row = {}
        if self.setup.large:
            found["allocations"] = recorded(loop.step, self.setup.device)
        if way != "plain":
            ops = loop.last_plan.solution.problem.graph.ops
            found["ops"] = {op.name: [op.cost, op.workspace] for op in ops}
        return {"recorded": found}

    def _uncaptured_seconds(self, loop: Loop) -> float:
        """Median seconds of the same step as it runs without a graph: where a number changes before each."""
        (group,) = loop.optimizer.param_groups
        rates = [group["lr"], group["lr"] * 1.5]
        seconds = []
        for k in range(11):
            group["lr"] = rates[k % 2]
            seconds.append(_one_step_seconds(loop))
        return statistics.median(seconds[1:])

    def _budget(self, said: str) -> int | str:
        """Bytes: a share of the plain peak, ``own`` for the peak of the library's checkpoints."""
        if said == "own":
            if self._own_peak is None:
                raise ValueError("no peak of the library's checkpoints is known")
            return self._own_peak
        return said if said == "least" else int(float(said.rstrip("%")) / 100 * self.plain["peak"])

    def _loop(self) -> Loop:
        return Loop(self.network, self.setup)

    def _measured(self, loop: Loop, outcome: Outcome) -> Row:
        facts: Row = {"peak": outcome.peak, "live": outcome.live, "reserved": outcome.reserved}
        if outcome is not self._references.plain() and self.task["bits"]:
            facts |= self._compared(outcome)
        return facts | {"step_s": _step_seconds(loop, self.task["spend_s"])}

    def _compared(self, outcome: Outcome) -> Row:
        references = self._references
        far, name = difference(outcome, references.plain())
        facts: Row = {"difference": finite(far), "of": name}
        if far:
            over_traced = difference(outcome, references.traced())[0]
            facts |= {"noise": references.noise(), "over_aot_eager": finite(over_traced)}
        return facts


def _step_seconds(loop: Loop, spent_s: float) -> float:
    """Median seconds of a step, of at least five steps.

    Args:
        loop: has run its first steps already.
        spent_s: seconds for all steps.
    """
    seconds: list[float] = []
    end = time.perf_counter() + spent_s
    while len(seconds) < 5 or time.perf_counter() < end:
        seconds.append(_one_step_seconds(loop))
    return statistics.median(seconds)


def _one_step_seconds(loop: Loop) -> float:
    start = time.perf_counter()
    loop.step()
    if loop.setup.large:
        torch.cuda.synchronize(loop.setup.device)
    return time.perf_counter() - start


if __name__ == "__main__":
    answer(measure)
