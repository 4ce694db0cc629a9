"""Loading in processes: a failure, crash or hang is named, and all other things are still tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkmate.plugins.probe import Attempt, attempts

BROKEN = {
    "raises": "raise RuntimeError('broken\\non purpose')",
    "exits": "raise SystemExit(0)",
    "dies": "import os; os._exit(7)",
    "hangs": "import time; time.sleep(600)",
    "absent": "import surely_not_there",
    "prints": "import os; print('{}'); os.write(1, b'{}\\n')",
}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in BROKEN.items():
        (tmp_path / f"probed_{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", tmp_path.name)  # a relative path must still be found
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setenv("CHECKMATE_PLUGINS", "")


@pytest.mark.usefixtures("broken")
def test_each_thing_is_tried_whatever_the_others_do() -> None:
    things = [
        "solver keep-all",
        *(f"import probed_{name}" for name in BROKEN if name != "hangs"),
        "import json",
    ]
    told = {attempt.thing.removeprefix("import probed_"): attempt for attempt in attempts(things)}
    assert [attempt.thing for attempt in told.values()] == things
    assert {name for name, attempt in told.items() if attempt.absent} == {"absent"}
    assert {name: attempt.error for name, attempt in told.items() if attempt.error} == {
        "raises": "RuntimeError: broken on purpose",
        "exits": "SystemExit: 0",
        "dies": "it ended the process with exit code 7",
        "absent": "ModuleNotFoundError: No module named 'surely_not_there'",
    }


@pytest.mark.usefixtures("broken")
def test_a_load_that_hangs_is_ended() -> None:
    (hung,) = attempts(["import probed_hangs"], time_limit=3)
    assert hung == Attempt(thing="import probed_hangs", error="it did not load within 3 s")


@pytest.mark.usefixtures("broken")
def test_nothing_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("json", "subprocess", "msgspec", "numpy", "sitecustomize"):
        (tmp_path / "here" / f"{name}.py").write_text("raise RuntimeError('of the current folder')")
    monkeypatch.delenv("PYTHONPATH")
    assert list(attempts(["solver keep-all"])) == [Attempt(thing="solver keep-all")]
