"""Reading with chords, as the preparation does where a tokenizer has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from musicgen.midi import Score
from musicgen.tokenization.chord_recognition import ChordSource, with_chords


def read_with_chords(path: Path, *, read: Callable[[Path], Score], chords: ChordSource) -> Score:
    """What `read` reads, with its chords from the source that `chords` names."""
    return with_chords(read(path), chords)
