"""The HTML report in a real browser: the script runs, no name runs, nothing complains."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from checkmate import Timeline
from checkmate.report import html_report

from .judged import by_hand, hostile, large

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")


def dom(page: Path, profile: Path, anchor: str = "") -> str:
    """The document after its script ran; a message on the console fails."""
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=5000",
        "--dump-dom",
        f"{page.as_uri()}{anchor}",
    ]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert b"CONSOLE" not in done.stderr, done.stderr.decode()
    return done.stdout.decode()


def panel(document: str) -> str:
    match = re.search(r'<div class="details" id="details"[^>]*>(.*?)</div></div>', document, re.DOTALL)
    assert match
    return " ".join(re.sub(r"<[^>]+>", " ", match[1]).split())


def test_the_peak_is_chosen_at_first_and_any_step_by_its_address(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    html_report(by_hand(), page, budget=42)
    first = dom(page, tmp_path / "profile")
    assert 'data-ready="true"' in first
    assert panel(first).startswith(
        "c step 3, backward, cost 1 s 41 B, 1 B below the budget inputs and fixed 15 B activations 4 B"
    )
    chosen = dom(page, tmp_path / "profile", "#step=5")
    assert 'data-step="5"' in chosen
    assert panel(chosen).startswith("a step 5, recomputed, cost 2 s 25 B, 17 B below the budget")
    assert panel(chosen).endswith("the largest resident: A 8 B C 2 B")


def test_pointing_and_keys_choose_a_run(tmp_path: Path) -> None:
    """A test page drives the report: the last quarter of the time is op d, one key back is op a."""
    page, driver = tmp_path / "report.html", tmp_path / "driver.html"
    html_report(by_hand(), page)
    driver.write_text(
        """<!doctype html><iframe id="f" src="report.html" width="1200" height="900"></iframe><script>
        document.getElementById("f").onload = ({ target }) => {
          const inner = target.contentDocument, picture = inner.getElementById("memory");
          const box = picture.getBoundingClientRect();
          const say = (name) => { document.body.dataset[name] = inner.documentElement.dataset.step; };
          picture.dispatchEvent(new target.contentWindow.PointerEvent("pointermove",
            { clientX: box.left + box.width * 0.9, clientY: box.top + 50 }));
          say("pointed");
          picture.dispatchEvent(new target.contentWindow.KeyboardEvent("keydown", { key: "ArrowLeft" }));
          say("left");
          picture.dispatchEvent(new target.contentWindow.KeyboardEvent("keydown", { key: "End" }));
          say("end");
        };</script>""",
        encoding="utf-8",
    )
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--allow-file-access-from-files"]
    command += ["--virtual-time-budget=5000", "--dump-dom", driver.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert re.findall(r'data-(\w+)="(\d+)"', done.stdout.decode()) == [
        ("pointed", "6"),
        ("left", "5"),
        ("end", "6"),
    ]


@pytest.mark.parametrize("timeline", [hostile(), large(5_000)], ids=["hostile", "large"])
def test_no_name_becomes_script_and_large_files_work(tmp_path: Path, timeline: Timeline) -> None:
    page = tmp_path / "report.html"
    html_report(timeline, page, budget=timeline.peak)
    document = dom(page, tmp_path / "profile")
    assert 'data-ready="true"' in document
    assert "data-owned" not in document
    assert "below the budget" in panel(document)
