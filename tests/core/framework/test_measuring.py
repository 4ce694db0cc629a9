"""The measuring loop: each distinct op is measured once in a process, and once on a machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from checkmate import ProfilerBusyError, Progress
from checkmate.cost import OpProfile
from checkmate.framework import by_bytes, measured_ops, pricing

MACHINE = {"device": "abacus"}
OPS = {f"layout {k}": k for k in range(70)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty disk and an empty memory."""
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pricing, "_memory", {})
    return tmp_path


def profile(ops: Iterable[int]) -> Iterator[OpProfile]:
    return (OpProfile(seconds=float(op), workspace=op) for op in ops)


def measure(
    ops: Mapping[str, int] = OPS, *, on_disk: bool = True, seen: list[str] | None = None, stop_at: int = -1
) -> Mapping[str, OpProfile]:
    """Measure ops; list what is announced; interrupt at the op of this number."""

    def report(progress: Progress) -> None:
        if seen is not None:
            seen.append(progress.step)
            if len(seen) - 1 == stop_at:
                raise KeyboardInterrupt

    return measured_ops(MACHINE, ops, profile, name=str, on_disk=on_disk, on_progress=report)


def test_each_layout_has_its_profile_and_is_announced_once() -> None:
    seen: list[str] = []
    found = measure(seen=seen)
    assert {layout: found[layout].workspace for layout in OPS} == OPS
    assert seen == [f"timing op {k + 1} of 70: {k}" for k in range(70)]
    measure(seen=seen)
    assert len(seen) == 70


def test_the_next_process_reads_the_disk(cache: Path) -> None:
    first = dict(measure())
    pricing._memory.clear()
    seen: list[str] = []
    assert dict(measure(seen=seen)) == first
    assert not seen
    assert len(list(cache.rglob("*.json"))) == 1


def test_the_off_switch_leaves_the_disk_alone(cache: Path) -> None:
    measure(on_disk=False)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("stop_at", [0, 1, 31, 32, 50])
def test_an_interrupt_keeps_the_ops_measured_before(stop_at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(seen=[], stop_at=stop_at)
    pricing._memory.clear()
    seen: list[str] = []
    measure(seen=seen)
    assert len(seen) == 70 - stop_at


@pytest.mark.parametrize("busy", [0, 1, 2, 9])
def test_ops_whose_runs_differ_are_measured_again_by_later_processes_twice_at_most(
    cache: Path, busy: int
) -> None:
    """The machine is busy in the first processes; then the fastest of all runs counts."""
    counts = []
    for process in range(5):
        pricing._memory.clear()
        runs = [3.0 - process, 9.0, 9.0] if process < busy else [2.5, 2.5, 2.6]
        timed: list[str] = []

        def profile(
            ops: Iterable[str], runs: list[float] = runs, timed: list[str] = timed
        ) -> list[OpProfile]:
            timed.extend(ops)
            return [OpProfile.of_runs(runs, 8) for _ in timed]

        found = measured_ops(MACHINE, {"a": "a"}, profile, name=str, on_disk=True)
        counts.append(len(timed))
    assert counts == [1] * min(busy + 1, 3) + [0] * (4 - min(busy, 2))
    assert found["a"].seconds == (1.0 if busy > 2 else 2.5)


def test_an_old_file_without_the_number_of_measurings_is_read(cache: Path) -> None:
    measure({"a": 7})
    (file,) = cache.rglob("*.json")
    content = json.loads(file.read_text())
    content["ops"] = {layout: profile[:2] for layout, profile in content["ops"].items()}
    file.write_text(json.dumps(content))
    pricing._memory.clear()
    assert measure({"a": 7}, stop_at=0)["a"] == OpProfile(seconds=7.0, workspace=7)


def test_inside_a_profiler_known_ops_do_though_their_runs_differed(cache: Path) -> None:
    unsteady = OpProfile.of_runs([1.0, 2.0, 3.0], 8)
    measured_ops(MACHINE, {"a": 0}, lambda ops: [unsteady for _ in ops], name=str, on_disk=True)
    pricing._memory.clear()

    def busy(ops: Iterable[int]) -> Iterator[OpProfile]:
        raise ProfilerBusyError("another profiler is running")

    assert measured_ops(MACHINE, {"a": 0}, busy, name=str, on_disk=True)["a"] == unsteady


def test_inside_a_profiler_the_error_names_the_way_out() -> None:
    def busy(ops: Iterable[int]) -> Iterator[OpProfile]:
        raise ProfilerBusyError("another profiler is running")

    with pytest.raises(ProfilerBusyError, match="run one step of the compiled model before"):
        measured_ops(MACHINE, OPS, busy, name=str, on_disk=False)


def test_an_op_that_cannot_run_is_charged_by_its_bytes() -> None:
    assert by_bytes(2 * 10**10) == OpProfile(seconds=2.0, workspace=0)
