"""The documentation is consistent: the index links every page by its title, and every link has a target."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import pytest

import checkmate

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "index.md"
RESULTS = ROOT / "docs" / "results" / "index.md"
API = ROOT / "docs" / "reference" / "api.md"
PAGES = sorted(INDEX.parent.rglob("*.md"))
NOTEBOOKS = sorted(INDEX.parent.rglob("*.ipynb"))
LINKING = [*PAGES, *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Targets of its links and pictures, without those that have a scheme."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "code", prose(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def title(page: Path) -> str:
    """The first heading of a page or notebook."""
    text = page.with_suffix(".py").read_text(encoding="utf-8") if page.suffix == ".ipynb" else prose(page)
    found = re.search(r"^(?:# )?# (.*)$", text, flags=re.MULTILINE)
    assert found is not None, f"{name(page)} has no title"
    return found[1]


def linked_from(page: Path) -> set[Path]:
    return {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}


def anchors(page: Path) -> set[str]:
    """Anchors of its headings, as code hosts make them of the words."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING, ids=name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"there is no {link}"
        assert not anchor or anchor in anchors(target), f"there is no heading for {link}"


def test_the_index_links_every_page() -> None:
    """Results have their own index."""
    linked = {target for index in (INDEX, RESULTS) for target in linked_from(index)}
    assert [name(page) for page in (*PAGES, *NOTEBOOKS) if page != INDEX and page not in linked] == []


@pytest.mark.parametrize("page", NOTEBOOKS, ids=name)
def test_a_notebook_is_its_source_executed(page: Path) -> None:
    """Else: ``nox -s notebooks``."""
    notebook, source = jupytext.read(page), jupytext.read(page.with_suffix(".py"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in source.cells
    ]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not [shown for cell in code for shown in cell.outputs if shown.output_type == "error"]


def test_the_index_and_the_sidebar_call_a_page_by_its_title() -> None:
    """Links inside a sentence may have other words; those that begin an item of the index may not."""
    listed = re.findall(
        r"^ *- \[(.*?)\]\(([^)#\s]+)\)", INDEX.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    named = {path: words for words, path in listed}
    assert {path: title(INDEX.parent / path) for path in named} == named
    assert "title:" not in (INDEX.parent / "_toc.yml").read_text(encoding="utf-8"), "it would replace titles"


def test_hooks_and_ci_use_the_same_ruff() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = re.findall(
        r"^ruff==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert set(re.findall(r"ruff==[\d.]+", hooks)) == set(pinned) != set()


def test_every_public_name_of_core_is_in_the_reference() -> None:
    pattern = r"^\.\. (?:autoclass|autoexception|autofunction|py:data):: (\w+)$"
    documented = re.findall(pattern, API.read_text(), flags=re.MULTILINE)
    errors = [word for word in checkmate.__all__ if hasattr(checkmate.errors, word)]  # a module of its own
    assert sorted([*documented, *errors, "__version__"]) == sorted(checkmate.__all__)


def test_the_index_lists_every_decision_by_its_number() -> None:
    listed = re.findall(r"\[(\d{4}): [^]]*\]\(adr/(\d{4})-", INDEX.read_text(encoding="utf-8"))
    numbers = [page.name[:4] for page in PAGES if page.parent.name == "adr"]
    assert numbers == [f"{k:04}" for k in range(1, len(numbers) + 1)]
    assert listed == [(number, number) for number in numbers]


def test_messages_that_a_symptom_quotes_exist() -> None:
    page = (INDEX.parent / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    symptoms = re.findall(r"^\| (.*?) \|", page, flags=re.MULTILINE)
    quoted = {
        part.strip() for row in symptoms for words in re.findall(r'"(.+?)"', row) for part in words.split("…")
    }
    sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("packages/*/src/**/*.py"))
    assert {part for part in quoted if part not in sources} == set() != quoted


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_begins_with_its_only_title(page: Path) -> None:
    assert page.read_text(encoding="utf-8").startswith("# ")
    assert len(re.findall(r"^# ", prose(page), flags=re.MULTILINE)) == 1
