"""The table of measured ops on disk: what goes in comes out; what is not sound is measured anew."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from checkmate.cost import MeasuredOps, OpProfile
from checkmate.cost.measured import processor

HERE = {"device": "abacus", "torch": "2.13", "threads": "1"}
NEG = {"neg": OpProfile(seconds=1e-6, workspace=0)}
MM = {"mm": OpProfile(seconds=0.25, workspace=2**40)}


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    one, other = MeasuredOps(HERE, tmp_path), MeasuredOps(HERE, tmp_path)
    assert one.known() == {}
    one.add(NEG)
    other.add(MM)
    assert one.known() == NEG | MM
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]


def test_each_machine_has_a_file_of_its_own(tmp_path: Path) -> None:
    MeasuredOps(HERE, tmp_path).add(NEG)
    for key in HERE:
        assert MeasuredOps(HERE | {key: "other"}, tmp_path).known() == {}


@pytest.mark.parametrize("change", [("1e-6", '"fast"'), ("1e-6", "-1"), ("abacus", "loom"), ("}", "")])
def test_an_unsound_file_is_reported_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: tuple[str, str]
) -> None:
    table = MeasuredOps(HERE, tmp_path)
    table.add(NEG)
    text = table.file.read_text()
    assert change[0] in text
    table.file.write_text(text.replace(*change))
    with caplog.at_level(logging.WARNING, "checkmate"):
        assert table.known() == {}
    assert str(table.file) in caplog.text
    table.add(MM)
    assert table.known() == MM


def test_a_folder_that_can_not_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "checkmate"):
        MeasuredOps(HERE, tmp_path / "file").add(NEG)
    assert "can't be kept" in caplog.text


def test_by_default_it_is_in_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHECKMATE_CACHE_DIR", str(tmp_path))
    assert MeasuredOps(HERE).file.parent == tmp_path / "op-profiles"


def test_the_processor_has_a_name() -> None:
    assert processor()
