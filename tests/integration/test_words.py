"""Plain words: the worst riddles stay out of docstrings, comments, messages and pages.

Code is no person, a number is a number, and a sentence names its subject. The list holds what went wrong most
often; the glossary (docs/reference/glossary.md) and a reader hold the rest.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "packages").glob("*/README.md"), *(ROOT / "docs").rglob("*.md")])

RIDDLES = {
    r"\bwho(m|ever)?\b": "code is 'which' or 'that'; name the person: user, author, caller",
    r"\b(no|some|any|every)body\b": "say what: no caller, some plugin, any user",
    r"\banew\b": "again, or a new one",
    r"\bbut for\b": "except",
    r"\b(so|as) (many|much)\b(?! ((\w+ )?as|more|less|smaller|larger|that)\b)": "give the number or its name",
    r"\b(is|are|was|were|be|been) told\b": "name what is passed",
    r"\b(has|have|had|its|their) (\w+ )?say\b": "what does it decide?",
    r"\bdear(er|est)?\b": "expensive",
    r"\bfor a while\b": "for how long?",
    r"\bbe it\b": "whether",
    r"\bat hand\b": "available",
    r"\bstands? (here|there|still|above|below|before|after|in|on|at|beside|first|last)\b": "is",
}
PEOPLE = re.compile(r"\b(anyone|everyone|people|those|users?|authors?) who\b")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings of a module, or the lines of a page outside of code, with their line numbers."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        content = re.sub(r"^(```|~~~).*?^\1", lambda m: "\n" * m[0].count("\n"), content, flags=re.M | re.S)
        yield from enumerate(re.sub(r"`[^`\n]*`", "code", content).splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.splitlines(), node.lineno)


def riddles(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {found[0]!r}: {advice}"
        for line, text in texts(path)
        for pattern, advice in RIDDLES.items()
        for found in re.finditer(pattern, PEOPLE.sub("", text), flags=re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_words_are_plain(path: Path) -> None:
    assert riddles(path) == []
