"""How documents are written: no long sentences, no long lines, few numbers in a sentence.

python tests/docs/prose.py [FILE...]    # what is against it, of all documents or of these
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST_SENTENCE = 30
LONGEST_LINE = 240
MOST_NUMBERS = 2
SPARING = ("README.md", "docs/index.md", "docs/results/")
"""Pages where numbers belong into tables."""
NAMES = r"(VOC|CVPR|Python|opset|seed|seeds|task|tasks|equations?|version) \d[\d.]*"
"""Numbers that are part of a name."""


def documents() -> list[Path]:
    """Every page that people read, but the log of changes."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def without_blocks(text: str) -> list[tuple[int, str]]:
    """Numbered lines without code, tables, generated parts and comments."""
    kept, fence, generated = [], False, False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*```", line):
            fence = not fence
        elif fence:
            pass
        elif re.match(r"\s*<!--", line):
            generated = not re.match(r"\s*<!-- end", line) and bool(re.fullmatch(r"\s*<!-- [\w -]+ -->\s*", line))
            kept.append((number, ""))
        elif not generated:
            kept.append((number, "" if re.match(r"\s*(\||#)|    [^-\d ]|\s*!\[|\s*<", line) else line))
        if line[:3] == "```" or not line.strip():
            kept.append((number, ""))
    return kept


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Number of the first line, and the words of each paragraph or item of a list."""
    first, words = 0, list[str]()
    for number, line in [*without_blocks(text), (0, "")]:
        begins = re.match(r"\s*([-*]|\d+\.) ", line)
        if words and (begins or not line.strip()):
            yield first, " ".join(words)
            words = []
        if line.strip():
            first = first if words else number
            words.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Every sentence with the number of its paragraph's first line."""
    for number, words in paragraphs(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "CODE", words))
        plain = re.sub(r"\*\*|(?<!\w)[*_]|[*_](?!\w)", "", plain)
        for sentence in re.split(r"(?<=[.!?])[)”\"]?\s+(?=[^a-z])", plain):
            yield number, sentence.strip()


def numbers(sentence: str) -> list[str]:
    """Numbers in a sentence that are no part of a name."""
    return re.findall(r"(?<![\w.-])\d+(?:[.,]\d+)*(?![\w-])", re.sub(NAMES, "", sentence))


def problems(path: Path) -> list[str]:
    """What of a document is against the rules."""
    text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
    found = [
        f"{name}:{number}: a line of {len(line)} characters"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST_LINE and not line.lstrip().startswith("|")
    ]
    for number, sentence in sentences(text):
        count = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        if count > LONGEST_SENTENCE:
            found.append(f"{name}:{number}: a sentence of {count} words: {sentence[:60]}")
        if name.startswith(SPARING) and len(numbers(sentence)) > MOST_NUMBERS:
            found.append(f"{name}:{number}: {len(numbers(sentence))} numbers in a sentence: {sentence[:60]}")
    return found


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]] or documents()
    print(*(problem for path in given for problem in problems(path)), sep="\n")
