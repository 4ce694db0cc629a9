"""Reports: every byte of the peak counts once, as the simulator and the meter count it."""

from __future__ import annotations

import errno
import pickle  # noqa: TID251 - this test alone reads the file, which it has just written
import pickletools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

import checkmate
from checkmate import Compute, DFGraph, Schedule, simulate
from checkmate.plugins import exporter_for, installed_plugins
from checkmate.report import Kind
from checkmate.testing import ExporterConformance
from checkmate_torch import (
    CompiledModule,
    MemoryMeter,
    NoPlanError,
    compile,
    measured_snapshot,
    memory_meter,
    predicted_snapshot,
)
from checkmate_torch.costs.meter import resident_bytes
from zoo.small_torch import Case, gpt2


@pytest.fixture(scope="module")
def case() -> Case:
    return gpt2(layers=3, width=32, length=32, batch=8, vocabulary=64, dropout=0.1)


@pytest.fixture(scope="module")
def compiled(case: Case) -> CompiledModule:
    whole = compile(case.module, "60%", solver="heuristics", reserve="3KiB", loss_bytes=0)
    whole(*case.inputs).backward()
    return whole


@pytest.fixture(scope="module")
def meter(case: Case, compiled: CompiledModule) -> MemoryMeter:
    case.module.zero_grad()
    with memory_meter(case.module, case.inputs) as meter:
        compiled(*case.inputs).backward()
    return meter


def test_every_byte_of_the_peak_is_of_one_kind(case: Case, compiled: CompiledModule) -> None:
    report = compiled.report()
    assert sum(report.by_kind.values()) == report.peak == compiled.plans[0].solution.peak
    assert list(report.by_kind.values()) == sorted(report.by_kind.values(), reverse=True)
    case.module.zero_grad()
    assert report.by_kind[Kind.PARAMETERS] == resident_bytes(case.module)
    assert report.by_kind[Kind.BATCH] == resident_bytes(case.inputs)
    assert report.by_kind[Kind.RESERVE] == 3 * 1024
    assert report.by_kind[Kind.RANDOM_STATES] > 0
    assert Kind.BUFFERS not in report.by_kind


def test_kinds_of_a_model_with_everything() -> None:
    """With buffers, an unread parameter, earlier gradients and an output."""
    module = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16))
    module.register_parameter("unused", nn.Parameter(torch.zeros(256)))
    module(torch.randn(4, 8)).sum().backward()
    compiled = compile(module, "100%", solver="keep-all")
    compiled(torch.randn(4, 8))
    plan = compiled.plans[0]
    sizes = plan.account.at_peak(plan.solution.timeline)
    assert sizes[Kind.PARAMETERS] == 4 * (8 * 16 + 2 * 16 + 256)
    assert sizes[Kind.EARLIER_GRADIENTS] == 4 * (8 * 16 + 2 * 16)
    assert sizes[Kind.BUFFERS] == 2 * 4 * 16 + 8
    assert sizes[Kind.BATCH] == 4 * 4 * 8
    assert sizes[Kind.OUTPUTS] >= 4 * 4 * 16
    assert sum(sizes.values()) == plan.solution.peak


def test_inputs_and_gradients_have_their_names_in_the_model(compiled: CompiledModule) -> None:
    traced = compiled.plans[0].traced
    names = {traced.graph.tensors[t].name for t in traced.graph.inputs}
    assert {name for name, _ in compiled.named_parameters()} | {"input 0", "input 1"} >= names
    assert "token.weight" in names
    assert "gradient of norm.weight" in {tensor.name for tensor in traced.graph.tensors}


def test_the_table_shows_the_values_of_the_report(compiled: CompiledModule, meter: MemoryMeter) -> None:
    report = compiled.report(meter)
    text = str(report)
    assert report.measured == meter.peak
    assert "measured peak" in text
    assert "measured peak" not in str(compiled.report())
    assert report.op in text
    assert report.plain_peak == compiled.plans[0].plain_peak
    for kind in report.by_kind:
        assert kind in text


def test_the_explanation_names_every_recomputation(compiled: CompiledModule) -> None:
    explanation, timeline = compiled.explain(), compiled.plans[0].solution.timeline
    assert sum(row.again for row in explanation.rows) == timeline.recomputes > 0
    assert sum(row.paid for row in explanation.rows) == pytest.approx(
        timeline.cost - timeline.graph.ideal_cost
    )
    assert [row.paid for row in explanation.rows] == sorted(
        (row.paid for row in explanation.rows), reverse=True
    )
    assert any(row.module.startswith("blocks.") for row in explanation.rows)
    assert any("over the budget" in row.reason for row in explanation.rows)
    assert explanation.rows[0].op in str(explanation)


def test_a_report_needs_a_plan() -> None:
    with pytest.raises(NoPlanError, match="nothing planned yet: run one training step first"):
        compile(nn.Linear(2, 2), "1MiB").report()


def running(snapshot: dict[str, object]) -> list[int]:
    """Live bytes after each event of a snapshot, as a reader of the format counts them."""
    alive, sizes = {}, []
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            assert event["addr"] not in alive
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert alive.pop(event["addr"]) == event["size"]
        sizes.append(sum(alive.values()))
    return sizes


def test_the_predicted_snapshot_has_the_simulators_peak_and_end(compiled: CompiledModule) -> None:
    timeline = compiled.plans[0].solution.timeline
    snapshot = compiled.memory_snapshot()
    sizes = running(snapshot)
    assert max(sizes) == timeline.peak
    (segment,) = snapshot["segments"]
    assert segment["allocated_size"] == sizes[-1] == timeline.memory[-1]
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    categories = {event["category"] for event in snapshot["device_traces"][0] if "category" in event}
    assert {"parameters", "activations", "unknown"} <= categories


def test_no_two_live_tensors_overlap(compiled: CompiledModule) -> None:
    alive: dict[int, int] = {}
    for event in compiled.memory_snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            here = (event["addr"], event["addr"] + event["size"])
            assert all(here[1] <= start or end <= here[0] for start, end in alive.items())
            alive[here[0]] = here[1]
        elif event["action"] == "free_completed":
            del alive[event["addr"]]


def test_the_measured_snapshot_has_the_meters_events(meter: MemoryMeter) -> None:
    snapshot = measured_snapshot(meter)
    deltas = [
        event["size"] if event["action"] == "alloc" else -event["size"]
        for event in snapshot["device_traces"][0]
        if event["action"] != "free_requested"
    ]
    assert deltas == (meter.bytes[1:] - meter.bytes[:-1]).tolist()
    cuda = MemoryMeter(base=0, peak=1, times_s=meter.times_s[:1], bytes=meter.bytes[:1])
    with pytest.raises(ValueError, match="_record_memory_history"):
        measured_snapshot(cuda)


def test_tools_of_pytorch_read_both(compiled: CompiledModule, meter: MemoryMeter) -> None:
    for snapshot in (compiled.memory_snapshot(), measured_snapshot(meter)):
        assert "segments: 1" in _memory_viz.segsum(snapshot)
        assert _memory_viz.trace(snapshot).count("\n") > 10
        assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot)


def test_a_report_is_written_by_the_exporter_of_its_suffix(compiled: CompiledModule, tmp_path: Path) -> None:
    compiled.save_report(tmp_path / "step.html")
    assert "<title>GPT2</title>" in (tmp_path / "step.html").read_text()
    compiled.save_report(tmp_path / "step.memory_viz.pickle")
    written = (tmp_path / "step.memory_viz.pickle").read_bytes()
    assert pickle.loads(written) == predicted_snapshot(compiled.plans[0].solution.timeline)  # noqa: S301
    with pytest.raises(checkmate.PluginError, match="no exporter"):
        compiled.save_report(tmp_path / "step.doc")


def test_a_snapshot_is_a_pickle_of_plain_values(compiled: CompiledModule, tmp_path: Path) -> None:
    """Nothing in it names a class or calls a function, so that the viewer's own reader knows every opcode."""
    compiled.save_report(tmp_path / "step.memory_viz.pickle")
    written = (tmp_path / "step.memory_viz.pickle").read_bytes()
    used = {opcode.name for opcode, _, _ in pickletools.genops(written)}
    layout = {"PROTO", "FRAME", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "STOP"}
    containers = {"EMPTY_DICT", "EMPTY_LIST", "APPEND", "APPENDS", "SETITEM", "SETITEMS"}
    assert used <= layout | containers | {"SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"}


class TestSnapshotExporter(ExporterConformance):
    exporter_name = "memory-viz"


def test_the_plugin_of_this_distribution_works() -> None:
    assert [plugin.error for plugin in installed_plugins() if plugin.name == "torch"] == [None]
    assert exporter_for("a.memory_viz.pickle").name == "memory-viz"


def test_recomputing_while_the_older_copy_is_there_counts_both() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
    timeline = simulate(graph, Schedule.of([Compute(0), Compute(0), Compute(1)]))
    assert max(running(predicted_snapshot(timeline))) == timeline.peak == 8


def test_a_snapshot_that_cannot_be_written_leaves_the_old_one_whole(
    compiled: CompiledModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "step.memory_viz.pickle"
    file.write_text("old")
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        compiled.save_report(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
