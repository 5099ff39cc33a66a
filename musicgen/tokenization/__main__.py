"""Print the tokens of a file: python -m musicgen.tokenization FILE.mid [tokenizer=remi]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from musicgen.errors import UserError
from musicgen.midi import read
from musicgen.tokenization import Tokenizer, frozen_tokenizers


def describe_file(path: str, name: str = "remi") -> Iterator[str]:
    """Yield the lines to print: a summary of the encoding, then the tokens."""
    frozen = frozen_tokenizers()
    if name not in frozen and not name.endswith(".json"):
        choices = f"{', '.join(frozen)}, or a saved .json"
        raise UserError(f"tokenizer={name}: expected one of {choices}")
    tokenizer = frozen[name] if name in frozen else Tokenizer.load(name)
    score = read(path)
    tokens, summary = tokenizer.encode_with_summary(score)
    yield f"{Path(path).name}: {len(tokens):,} tokens of {name}; {summary.describe()}"
    yield " bar beat"
    yield from tokenizer.describe(tokens, tokenizer.bar_length(score))


def main() -> None:
    parser = argparse.ArgumentParser("python -m musicgen.tokenization", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("tokenizer", nargs="?", default="remi", help="tokenizer=NAME or FILE.json")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # names of any bytes
    try:
        for line in describe_file(arguments.file, arguments.tokenizer.removeprefix("tokenizer=")):
            print(line)
    except UserError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
