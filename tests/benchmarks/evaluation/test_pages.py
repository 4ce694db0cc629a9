"""Every number in the documentation is made from the results files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evaluation import tables
from pages import filled, quoted

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
PROSE = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").glob("*/README.md"))
PAGES = [page for page in PROSE if quoted(page.read_text())]
NO_PROSE = re.compile(
    r"<!-- results: .*?<!-- end of results -->|^```.*?^```|`[^`\n]*`"
    r"|^## What others have published$.*?^(?=## )",
    re.S | re.M,
)
FIGURE = re.compile(r"\d+\.\d+ ?(?:%|×|times\b|m?s\b|[kMG]i?B\b)")
SETTINGS_AND_SOURCES = {
    ("largest-batch.md", "5.1×"),  # the paper's headline
    ("executed-batches.md", "5.1×"),
    ("ratios.md", "0.1 %"),  # the gap that counts as proved
    ("solvers.md", "0.2 %"),  # thresholds of auto
    ("solvers.md", "0.05 %"),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_agrees_with_the_committed_results(page: Path) -> None:
    text = page.read_text()
    assert filled(text, tables(RESULTS)) == text, "run: python benchmarks/evaluate.py --pages"


def test_no_measured_figure_stands_in_prose() -> None:
    """A number with a decimal point and a unit is a measurement. Decisions (``adr``) are dated."""
    pages = [page for page in PROSE if page.parent.name != "adr"]
    found = {(p.name, figure) for p in pages for figure in FIGURE.findall(NO_PROSE.sub("", p.read_text()))}
    assert found == SETTINGS_AND_SOURCES, "let a table of the results say it, or link to one"


def test_only_text_between_the_marks_is_replaced() -> None:
    page = "a\n<!-- results: x -->\nold\n<!-- end of results -->\nb\n"
    new = filled(page, {"x": lambda: "new"})
    assert new == "a\n<!-- results: x -->\n\nnew\n\n<!-- end of results -->\nb\n"
    assert filled(new, {"x": lambda: "new"}) == new


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(ValueError, match="no results 'y': there are x"):
        filled("<!-- results: y -->\n<!-- end of results -->", {"x": str})


def test_the_papers_own_graphs_have_their_optima_beside_our_costs() -> None:
    table = tables(RESULTS)["paper-graphs"]()
    assert "| U-Net, batch 32 | 15.90 GB, 76% | 1.02306 | 1.02306, ≥ 1.02306 | 1.02306, ≥ 1.02306 |" in table
