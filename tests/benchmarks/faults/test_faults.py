"""Some faults of each class do no harm; and the checks detect harm."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bench_faults
from bench_faults import Failed, Results, markdown
from checkmate import ScheduleCache, Solution
from checkmate.files import serialize
from faults import CLASSES, cache, files, writes
from faults.cache import forgery
from faults.fault import Fault, FaultClass, harm
from faults.files import hostile_graph
from faults.writes import failing_write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def harms(kind: FaultClass, count: int, folder: Path) -> list[tuple[str, str | None]]:
    return [(fault.about, harm(fault)) for fault in kind.faults(count, folder)]


def harms_of(make: Any, count: int, folder: Path) -> list[str]:
    kind = FaultClass("of one function", "no harm", count, make)
    return [said for _, said in harms(kind, count, folder) if said]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
def test_a_few_faults_of_each_class_do_no_harm(kind: FaultClass, tmp_path: Path) -> None:
    count = 4 if kind.apart else 60
    found = harms(kind, count, tmp_path)
    assert len(found) == count
    assert [(about, said) for about, said in found if said] == []


def test_the_whole_run_has_at_least_two_thousand_faults() -> None:
    assert sum(kind.count for kind in CLASSES) >= 2000


def test_a_writer_that_writes_in_place_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(file: Path, content: bytes) -> None:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(number, content)
        os.close(number)

    monkeypatch.setattr(serialize, "replace_file", in_place)
    monkeypatch.setattr(writes, "_WRITERS", {"write_graph": writes._WRITERS["write_graph"]})
    monkeypatch.setattr(writes, "_calls", writes._calls.__wrapped__)
    assert harms_of(failing_write, 40, tmp_path)


def test_a_reader_that_raises_anything_else_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "read_graph", lambda content: content.decode("ascii"))
    assert any("UnicodeDecodeError" in said for said in harms_of(hostile_graph, 40, tmp_path))


def test_a_cache_that_believes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = cache.solve

    def believing(*question: Any, cache: ScheduleCache | None = None, **options: Any) -> Solution:
        solution = honest(*question, cache=cache, **options)
        return replace(solution, origin={"cache": "a file"}) if cache is not None else solution

    monkeypatch.setattr(cache, "solve", believing)
    assert "it was believed" in harms_of(forgery, 30, tmp_path)


def test_a_run_is_a_table_a_file_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = FaultClass(
        name="odd numbers",
        must="even",
        count=3,
        make=lambda _, folder: Fault(folder.name, lambda: "odd" if int(folder.name) % 2 else None),
    )
    monkeypatch.setattr(bench_faults, "CLASSES", [kind])
    out = tmp_path / "faults.json"
    assert bench_faults.main(["-o", str(out)]) == 1
    assert "     3 tried    1 failed" in capsys.readouterr().out
    results = msgspec.json.decode(out.read_bytes(), type=Results)
    assert [(row.tried, row.failed) for row in results.rows] == [(3, [Failed("1", "odd")])]
    assert "| odd numbers: even | 3 | 1 |\n| all | 3 | 1 |" in markdown(out)
    assert bench_faults.main(["--share", "0.1"]) == 0
