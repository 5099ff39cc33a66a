"""Print the tokens of a file: python -m musicgen.tokenization FILE.mid [tokenizer=remi]."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from musicgen.errors import UserError
from musicgen.midi import read
from musicgen.tokenization import Tokenizer, frozen_tokenizers
from musicgen.tokenization.description import describe_tokens


def describe_file(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the lines to print: a summary of the encoding, then the tokens."""
    frozen = frozen_tokenizers()
    choices = f"{', '.join(frozen)}, or a saved .json"
    if {"-h", "--help"} & set(arguments):
        yield f"{__doc__}\ntokenizer: {choices}"
        return
    key = "tokenizer="
    files = [argument for argument in arguments if not argument.startswith(key)]
    names = [argument.removeprefix(key) for argument in arguments if argument not in files]
    name, *others = names or ["remi"]
    if len(files) != 1 or others:
        raise UserError("give one file: python -m musicgen.tokenization FILE.mid [tokenizer=remi]")
    if name not in frozen and not name.endswith(".json"):
        raise UserError(f"{key}{name}: expected one of {choices}")
    tokenizer = frozen[name] if name in frozen else Tokenizer.load(name)
    score = read(files[0])
    tokens, summary = tokenizer.encode_with_summary(score)
    yield f"{Path(files[0]).name}: {len(tokens):,} tokens of {name}; {summary.describe()}"
    yield " bar beat"
    yield from describe_tokens(tokenizer, tokens, tokenizer.bar_length(score))


def main() -> None:
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # names of any bytes
    try:
        for line in describe_file(sys.argv[1:]):
            print(line)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
