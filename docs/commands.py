"""The commands that the pages print."""

import re
import shlex
import string
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "data", "tokenizers")),
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "settings.md"),
    *sorted((ROOT / "conf/experiment").glob("*/README.md")),
    *sorted((ROOT / "musicgen/pretrained").glob("*/README.md")),
]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(f"{FENCE.pattern}|`([^`]+)`", FENCE.flags)
MAKE = r"make (?:demo\b|(?:export|page|table) .*(?:TO|PAPER)=)"
COMMAND = re.compile(rf"(\w+=\S+ )*(python |torchrun |srun python |musicgen-\w+ |{MAKE})")
USAGE = re.compile(r" \[|\.\.\.|…|<")  # a pattern of usage, not a command


def commands(pages: Sequence[Path]) -> list[tuple[str, str]]:
    """Return each command of the pages once, with its page, in order, then each page's Python."""
    found: dict[str, str] = {}
    for page in pages:
        for part in (part for line in lines_of(page) for part in line.split(" && ")):
            if COMMAND.match(part) and not USAGE.search(part):
                text = re.sub(r"  +#.*", "", part).strip()
                found.setdefault(text, str(page.relative_to(ROOT)))
        if snippets := [body for words, body in blocks(page) if words == "python"]:
            script = shlex.quote("\n".join(snippets))
            found[f"python -c {script}"] = str(page.relative_to(ROOT))
    return list(found.items())


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the words that follow each fence, and its lines without the fence's indentation."""
    for indent, words, body in FENCE.findall(page.read_text()):
        yield words, textwrap.dedent(body) if indent else body


def lines_of(page: Path) -> Iterator[str]:
    """Yield the lines of a page's code, or the comments of a configuration file."""
    if page.suffix == ".yaml":
        yield from (line[2:] for line in page.read_text().splitlines() if line.startswith("# "))
        return
    for _, words, body, inline in CODE.findall(page.read_text()):
        variables: dict[str, str] = {}
        if inline:
            yield " ".join(inline.split())
        for line in textwrap.dedent(body).replace("\\\n", " ").splitlines() if not words else ():
            expanded = string.Template(line).safe_substitute(variables)
            if assigned := re.fullmatch(r"(\w+)=\"?(.*?)\"?", expanded):
                variables[assigned[1]] = re.sub("[{}]", r"\\\g<0>", assigned[2])  # no shell's list
            yield expanded
