"""A file's tokens in words: python -m musicgen.tokenization FILE.mid [tokenizer=remi]."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from musicgen.errors import UserError
from musicgen.midi import read
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.freeze import frozen_tokenizers
from musicgen.tokenization.words import in_words

_KEY = "tokenizer="


def describe(arguments: Sequence[str]) -> Iterator[str]:
    """The lines to print: what the file is in tokens, what was lost on the way, the tokens.

    Raises:
        UserError: not one file, one that cannot be read, or no such tokenizer.
    """
    if {"-h", "--help"} & set(arguments):
        yield f"{__doc__}\ntokenizer: {', '.join(frozen_tokenizers())}, or a saved .json"
        return
    files = [argument for argument in arguments if not argument.startswith(_KEY)]
    chosen = [argument.removeprefix(_KEY) for argument in arguments if argument not in files]
    if len(files) != 1 or len(chosen) > 1:
        raise UserError("give one file: python -m musicgen.tokenization FILE.mid [tokenizer=remi]")
    name = chosen[0] if chosen else "remi"
    tokenizer = find_tokenizer(name)
    score = read(files[0])
    tokens, report = tokenizer.encode_with_report(score)
    yield f"{Path(files[0]).name}: {len(tokens):,} tokens of {name}; {report.summary()}"
    yield " bar beat"
    yield from in_words(tokenizer, tokens, tokenizer.bar_length(score))


def find_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a frozen vocabulary's name, or of a saved file.

    Raises:
        UserError: there is none.
    """
    named = frozen_tokenizers()
    if name in named:
        return named[name]
    if name.endswith(".json"):
        return Tokenizer.load(name)
    raise UserError(f"{_KEY}{name}: give one of {', '.join(named)}, or a saved .json")


def main() -> None:
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # names of any bytes
    try:
        for line in describe(sys.argv[1:]):
            print(line)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
