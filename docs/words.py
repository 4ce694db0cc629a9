"""Plain words: find the worst riddles in docstrings, comments, messages and pages; ``nox -s lint`` runs it.

Code is not a person, a number is a number, and a sentence names its subject. The list holds what went wrong
most often; the glossary (docs/reference/glossary.md) and a reader find the rest.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    """Place, words and advice, one line for each riddle."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {found[0]!r}: {advice}"
        for line, text in texts(path)
        for pattern, advice in RIDDLES.items()
        for found in re.finditer(pattern, PEOPLE.sub("", text), flags=re.IGNORECASE)
    ]


if __name__ == "__main__":
    found = [riddle for path in (*SOURCES, *PAGES) for riddle in riddles(path)]
    sys.exit("\n".join(found) or None)
