"""Runs tasks on any executor and keeps their rows; an interrupted run resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Any

import msgspec

from evaluation.experiment import Experiment
from evaluation.results import Results, Row, Task, key_of, read_results
from results_file import write_results

__all__ = ["answered", "run"]


def run(
    experiment: Experiment,
    tasks: Sequence[Task],
    file: Path,
    *,
    executor: Executor | None = None,
    session: Mapping[str, Any] | None = None,
    quick: bool = False,
    on_row: Callable[[Row], None] = lambda _: None,
) -> Results:
    """Answer the tasks that have no answer in the file; the file is written after every row.

    Args:
        experiment: the experiment of the tasks.
        tasks: in the order of the rows.
        file: JSON, created if it is missing. Rows of other tasks are dropped; tasks whose rows have an
            error are repeated.
        executor: runs the tasks; None: this process, one after another.
        session: facts about this run, recorded if it adds a row.
        quick: whether these are the tasks of a quick run.
        on_row: called with each row, old ones first.

    Returns:
        the contents of the file.

    Raises:
        ValueError: if the file belongs to another experiment.
        msgspec.ValidationError: if the file is no results file.
    """
    before = _before(experiment.name, file)
    asked = {key_of(task): task for task in tasks}
    kept = {key_of(row.task): row for row in before.rows if not row.error}
    rows = {key: row for key, row in kept.items() if key in asked}
    for row in rows.values():
        on_row(row)
    missing = [task for key, task in asked.items() if key not in rows]
    sessions = before.sessions if rows else ()  # those of rows that are dropped don't stay
    results = Results(experiment=experiment.name, quick=quick, sessions=sessions, rows=(*rows.values(),))
    if missing and session is not None:
        results = msgspec.structs.replace(results, sessions=(*sessions, dict(session)))
    for row in _answers(experiment.name, missing, executor):
        rows[key_of(row.task)] = row
        results = msgspec.structs.replace(results, rows=tuple(rows[key] for key in asked if key in rows))
        write_results(file, results)
        on_row(row)
    return results


def _before(experiment: str, file: Path) -> Results:
    """The results in the file, or none yet."""
    before = read_results(file) if file.exists() else Results(experiment=experiment)
    if before.experiment != experiment:
        raise ValueError(f"{file} holds {before.experiment!r}, not {experiment!r}: choose another file")
    return before


def answered(experiment: str, task: str) -> str:
    """Answer one task; argument and result are JSON, so that any process of any machine can run it.

    Args:
        experiment: name of the experiment.
        task: JSON of the task.
    """
    from evaluation import EXPERIMENTS  # imports all experiments; none imports this module

    question = msgspec.json.decode(task)
    start = time.perf_counter()
    try:
        row = Row(task=question, result=dict(EXPERIMENTS[experiment].measure(question)))
    except Exception as error:  # noqa: BLE001  # an exception is the answer to its task
        row = Row(task=question, error=f"{type(error).__name__}: {error}")
    done = msgspec.structs.replace(row, seconds=round(time.perf_counter() - start, 4))
    return msgspec.json.encode(done).decode()


def _answers(experiment: str, tasks: Sequence[Task], executor: Executor | None) -> Iterator[Row]:
    """Rows in the order in which they end; Ctrl-C cancels tasks that have not started."""
    if executor is None:
        for task in tasks:
            yield msgspec.json.decode(answered(experiment, key_of(task)), type=Row)
        return
    pending = {executor.submit(answered, experiment, key_of(task)): task for task in tasks}
    try:
        for done in as_completed(pending):
            if error := done.exception():
                yield Row(task=dict(pending[done]), error=f"{type(error).__name__}: {error}")
            else:
                yield msgspec.json.decode(done.result(), type=Row)
    finally:
        for future in pending:
            future.cancel()
