"""Tokens as a musician reads them: a line for each moment at which something happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby

import numpy as np

from musicgen.tokenization.base import IntArray, Tokenizer
from musicgen.tokenization.remi import pitch_name


def in_words(tokenizer: Tokenizer, tokens: IntArray, bar_length: int) -> Iterator[str]:
    """Lines of bar, beat, and what begins, changes or ends there; a metre only where it changes.

    Bars and beats count from 1; a beat is a quarter. A note of REMI is its pitch, velocity and
    length in beats; Groove2Groove's notes go on and off.

    Args:
        tokens: [L] ids.
        bar_length: in grid steps, where the tokens do not tell.
    """
    drums = {t["name"] for t in tokenizer.settings().get("tracks", []) if t["is_drum"]}
    times = tokenizer.times(tokens).tolist()
    names = [tokenizer.vocabulary.token(token) for token in np.asarray(tokens).tolist()]
    moments = list(zip(times, names, strict=True))
    bars = tokenizer.bar_starts(tokens, bar_length)
    metre = ""
    for time, group in groupby(moments, key=lambda moment: moment[0]):
        words = ""
        for key, run in groupby((name for _, name in group), key=_kind):
            if key.startswith("Note"):
                words += _voices(key, run, drums)
            elif key != metre:
                words += _word(key, tokenizer.steps_per_beat)
            if key.startswith("Bar"):
                metre = key
        bar = int(np.searchsorted(bars, time, side="right"))
        beat = 1 + Fraction(time - int(bars[bar - 1]), tokenizer.steps_per_beat)
        if words:
            yield f"{bar:4} {_mixed(beat):8}{words}"


def _kind(name: str) -> str:
    """What the tokens of one word share: notes their track, others their name."""
    return name.rpartition("_")[0] if name.startswith("Note") else name


def _voices(kind: str, names: Iterable[str], drums: set[str]) -> str:
    """The notes of a track that begin or end together, such as `Guitar C4 E4 on`."""
    family, _, track = kind.partition("_")
    keys = [int(name.rpartition("_")[2]) for name in names]
    pitches = map(str if track in drums else pitch_name, keys)
    return f"  {track} {' '.join(pitches)} {family.removeprefix('Note').lower()}"


def _word(name: str, steps_per_beat: int) -> str:
    """A token with the separator before it; nothing for one that only tells the time."""
    family, _, value = name.partition("_")
    match family:
        case "Pitch":
            return f"  {pitch_name(int(value))}"
        case "Velocity":
            return f" {value}"
        case "Duration":
            return f" {_mixed(Fraction(value) / steps_per_beat)}"
        case "Tempo":
            return f"  {value} bpm"
        case "Chord":
            return "  no chord" if value == "N_N" else f"  {value.replace('_', ' ')}"
        case "BOS" | "EOS" | "PAD":
            return f"  {family}"
        case "Bar":
            return f"  {value}" if value else ""
    return ""


def _mixed(number: Fraction) -> str:
    """A number such as 3, 1/2 or 2+1/4."""
    whole, rest = divmod(number, 1)
    return "+".join(str(part) for part in (whole, rest) if part) or "0"
