"""Check the English of the tree: documents, docstrings, comments, messages, pages and the names of tests.

    scripts/lint_prose.py [PATH …]     print one line a finding, and exit with 1 if there is one

The rules are those of CONTRIBUTING.md. This program stands where Vale would: Vale's packages fetch the program itself from a
host that a package registry does not stand for. ``SKIPPED`` names each exception with its reason.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
MOST_WORDS = 40  # of a clause; a reader must not need to read it twice
MOST_NAME_WORDS = 10  # of a test's name
LEAST_TEXT = 20  # shorter strings are names and labels

NO_SUBJECT = re.compile(r"(Of|Out of|Whose|Whom|Those|Whether|Than|Beside|None) (?!of them\b)")
NOUN_CLAUSE = re.compile(r"(Who|What|Which) ")  # a label, or a riddle for whoever reads on
INTRODUCTION = re.compile(
    r"(As|Without|Until|Unless|Where|When|If|By|From|With|Within|After|Before|Because|Since|Once|Upon|Under|Between|To) "
)
QUESTION_OR_REST = re.compile(r"[?:,;]|…|\bonly\b.*\bif\b")
PROSE = re.compile(r"[A-Z][a-z]* [a-z]")
COMMENT = re.compile(r"\s*(?P<code>[^\s#\"'][^#\"']*?  )?#:? ?(?P<words>.*)$")
PERSON = re.compile(r"\b(he|she|his|her|hers|him|himself|herself)\b", re.IGNORECASE)
WORDS = {
    r"\banew\b": "again, or: from the beginning",
    r"\blets? go of\b|\blet go of\b": "release, drop or close",
    r"\btrying again\b": "retrying in N s",
    r"\bbefall\w*|\bwhence\b|\bthence\b|\bthereof\b|\blest\b|\bnought\b|\bshall\b": "an everyday word",
    r"\bso many\b(?! (?:\w+ )?(?:that|as)\b)": "the number",
    r"\bhung up on\b": "the connection is closed",
    r"\bis told of\b|\bare told of\b": "is notified of",
    r"\bto blame\b": "Cause: …",
    r"\bwishes? for\b|\bwished for\b": "request",
}
SKIPPED = {
    "CHANGELOG.md": "says what was done at the time",
    "docs/cli.md": "written by `make docs` from texts that are checked",
    "docs/settings.md": "written by `make docs` from texts that are checked",
    "docs/http-reference.md": "written by `make docs` from texts that are checked",
    "docs/metrics.md": "written by `make docs` from texts that are checked",
    "docs/troubleshooting.md": "written by `make docs` from texts that are checked",
    "guanaco/bots.py": "tells of characters, who are he or she",
    "cli/guanaco_cli/demo/journey.py": "has a user's words about a character",
    "server/guanaco_server/submissions/pipeline/checks/fixed_text.py": "is a story",
    "benchmarks/privacy_corpus.py": "is chat",
}
LABELS = {
    "What happened before:"
}  # a model reads it: another text would empty the prefix cache of open conversations
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*`]*\s+(?=[A-Z`*(\[\"])")


@dataclass(frozen=True)
class Text:
    """A text, where it is, and its kind: docstring, comment, string, page, document, cell or test."""

    place: str
    words: str
    kind: str


@dataclass(frozen=True)
class Finding:
    place: str
    rule: str
    words: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {' '.join(self.words.split())[:110]}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the English of the tree.")
    parser.add_argument("paths", nargs="*", type=Path, help="files; by default all that git knows")
    paths = parser.parse_args().paths or _tracked()
    findings = [finding for path in paths if _place(path) not in SKIPPED for finding in check(path)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def check(path: Path) -> Iterator[Finding]:
    """Yield what breaks a rule in one file."""
    for text in _texts(path):
        yield from findings_of(text)


def findings_of(text: Text) -> Iterator[Finding]:
    if text.kind == "test":
        if len(text.words.split("_")) > MOST_NAME_WORDS:
            rule = f"a test's name has at most {MOST_NAME_WORDS} words"
            yield Finding(text.place, rule, text.words)
        return
    if text.words.strip() in LABELS:
        return
    for number, sentence in enumerate(SENTENCE_END.split(text.words)):
        yield from _of_sentence(text, sentence.strip(), is_first=number == 0)


def _of_sentence(text: Text, sentence: str, *, is_first: bool) -> Iterator[Finding]:
    bare = re.sub(r"^[*_`\"(\[]+", "", sentence)
    is_question = bare.rstrip('*_`")').endswith("?")
    is_clause = (
        is_first and text.kind in ("docstring", "string", "comment") and NOUN_CLAUSE.match(bare)
    )
    if not is_question and (is_clause or NO_SUBJECT.match(bare)):
        yield Finding(text.place, "begin with the subject or the verb", sentence)
    elif (
        (text.kind != "page" or sentence.endswith("."))
        and INTRODUCTION.match(bare)
        and not QUESTION_OR_REST.search(bare)
    ):
        yield Finding(
            text.place, "a fragment, or a comma is missing after the introduction", sentence
        )
    if found := PERSON.search(re.sub(r"`[^`]*`", "", sentence)):
        yield Finding(text.place, f"'{found[0]}': a person is 'they'", sentence)
    for pattern, instead in WORDS.items():
        if found := re.search(pattern, sentence):
            yield Finding(text.place, f"'{found[0]}': write {instead}", sentence)
    if text.kind == "document" and _length(sentence) > MOST_WORDS:
        yield Finding(text.place, f"a sentence has at most {MOST_WORDS} words", sentence)


def _length(sentence: str) -> int:
    """Count the words that have to be kept in mind: none in brackets, and each part of a list that has a colon or semicolon before it for itself."""
    bare = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence)
    while bare != (bare := re.sub(r"\([^()]*\)", "", bare)):
        pass
    return max(len(part.split()) for part in re.split(r"[;:] ", bare))


def _tracked() -> list[Path]:
    named = ["*.py", "*.md", "*.html"]
    listed = subprocess.run(
        ["git", "ls-files", *named], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listed.stdout.splitlines()]


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_absolute() else path)


def _texts(path: Path) -> Iterator[Text]:
    place = _place(path)
    if path.suffix == ".py":
        yield from _of_python(place, path.read_text())
    elif path.suffix == ".html":
        yield from _of_page(place, path.read_text())
    elif path.suffix == ".md":
        yield from _of_document(place, path.read_text())


def _of_python(place: str, source: str) -> Iterator[Text]:
    is_test = place.startswith("tests/")
    docstrings = set()
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if words := ast.get_docstring(node):
                docstrings.add(node.body[0].value)  # type: ignore[attr-defined]
                for offset, paragraph in _paragraphs(words):
                    yield Text(f"{place}:{node.body[0].lineno + offset}", paragraph, "docstring")
            name = getattr(node, "name", "")
            if is_test and name.startswith("test_"):
                yield Text(f"{place}:{node.lineno}", name.removeprefix("test_"), "test")  # type: ignore[union-attr]
    for node in ast.walk(tree):
        if is_test or not isinstance(node, ast.Constant) or node in docstrings:
            continue
        if _is_prose(node.value):
            yield Text(f"{place}:{node.lineno}", node.value, "string")
    yield from _comments(place, source)


def _is_prose(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) > LEAST_TEXT and bool(PROSE.match(value))


def _paragraphs(words: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a docstring: no indented drawings, tables and lists of arguments."""
    at = 0
    for paragraph in words.split("\n\n"):
        if not paragraph.startswith(" ") and not re.match(r"\w+:\n", paragraph):
            yield at, paragraph
        at += paragraph.count("\n") + 2


def _comments(place: str, source: str) -> Iterator[Text]:
    """Yield each block of comments; a comment at a line's end is a block of its own."""
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = COMMENT.match(line)
        if found and not found["words"].startswith(("noqa", "type:", "!")):
            block.append(found["words"])
        if block and (not found or found["code"]):
            yield Text(f"{place}:{number - len(block)}", " ".join(block), "comment")
            block = []


def _of_page(place: str, source: str) -> Iterator[Text]:
    source = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
    for number, line in enumerate(source.splitlines(), 1):
        bare = re.sub(r"\{%.*?%\}", "", line)
        for inside, attribute in re.findall(
            r">([^<>]{12,})<|(?:aria-label|title|placeholder|content)=\"([^\"]{12,})\"", bare
        ):
            yield Text(f"{place}:{number}", (inside or attribute).strip(), "page")


def _of_document(place: str, source: str) -> Iterator[Text]:
    source = re.sub(
        r"```.*?```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL
    )
    gathered, first = "", 1
    for number, line in enumerate([*source.splitlines(), ""], 1):
        starts = not line.strip() or re.match(r"\s*([-*#>|]|\d+\.)\s*|\|", line)
        if starts and gathered:
            yield Text(f"{place}:{first}", gathered, "document")
            gathered = ""
        if line.startswith("|"):
            for cell in line.strip("| ").split(" | "):
                if len(cell) > LEAST_TEXT and cell.endswith("."):
                    yield Text(f"{place}:{number}", cell, "cell")
        elif line.strip() and not line.startswith("#"):
            if not gathered:
                first = number
            gathered += " " * bool(gathered) + re.sub(r"^\s*([-*>]|\d+\.)\s+", "", line).strip()


if __name__ == "__main__":
    sys.exit(main())
