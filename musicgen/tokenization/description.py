"""Description of tokens for musicians: one line per moment at which something happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import groupby

import numpy as np

from musicgen.midi import pitch_name
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.vocabulary import IntArray


def describe_tokens(tokenizer: Tokenizer, tokens: IntArray, bar_length: int) -> Iterator[str]:
    """Yield lines of bar, beat, and the events there; a metre only where it changes.

    Bars and beats count from 1; a beat is a quarter. A note of REMI is its pitch, velocity and
    length in beats; notes of Groove2Groove go on and off. Without bars among the ids [L], each bar
    has `bar_length` grid steps.
    """
    drums = {t["name"] for t in tokenizer.settings().get("tracks", []) if t["is_drum"]}
    times = tokenizer.times(tokens).tolist()
    names = map(tokenizer.vocabulary.token, np.asarray(tokens).tolist())
    bars = tokenizer.bar_starts(tokens, bar_length)
    metre = ""
    for time, moment in groupby(zip(times, names, strict=True), key=lambda pair: pair[0]):
        text = ""
        for key, run in groupby((name for _, name in moment), key=_group):
            if key.startswith("Note"):
                text += _describe_notes(key, run, drums)
            elif key != metre:
                text += _describe_token(key, tokenizer.steps_per_beat)
            if key.startswith("Bar"):
                metre = key
        bar = int(np.searchsorted(bars, time, side="right"))
        beat = 1 + Fraction(time - int(bars[bar - 1]), tokenizer.steps_per_beat)
        if text:
            yield f"{bar:4} {_mixed_number(beat):8}{text}"


def _group(name: str) -> str:
    """Return the key of tokens described together: family and track of notes, else the name."""
    return name.rpartition("_")[0] if name.startswith("Note") else name


def _describe_notes(group: str, names: Iterable[str], drums: set[str]) -> str:
    """Describe notes of a track that begin or end together, such as `Guitar C4 E4 on`."""
    family, _, track = group.partition("_")
    keys = [int(name.rpartition("_")[2]) for name in names]
    pitches = map(str if track in drums else pitch_name, keys)
    return f"  {track} {' '.join(pitches)} {family.removeprefix('Note').lower()}"


def _describe_token(name: str, steps_per_beat: int) -> str:
    """Describe a token, with the separator before it; tokens of time give an empty text."""
    family, _, value = name.partition("_")
    match family:
        case "Pitch":
            return f"  {pitch_name(int(value))}"
        case "Velocity":
            return f" {value}"
        case "Duration":
            return f" {_mixed_number(Fraction(value) / steps_per_beat)}"
        case "Silence":
            return "  -"
        case "Tempo":
            return f"  {value} bpm"
        case "Chord":
            return "  no chord" if value == "N_N" else f"  {value.replace('_', ' ')}"
        case "BOS" | "EOS" | "PAD":
            return f"  {family}"
        case "Bar":
            return f"  {value}" if value else ""
    return ""


def _mixed_number(number: Fraction) -> str:
    """Format a number such as 3, 1/2 or 2+1/4."""
    return "+".join(str(part) for part in divmod(number, 1) if part) or "0"
