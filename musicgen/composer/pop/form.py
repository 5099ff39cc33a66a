"""The form of pop songs: order, length and energy of the sections."""

from dataclasses import dataclass

import numpy as np

from musicgen.composer.draw import chance, pick


@dataclass(frozen=True)
class Section:
    """A section of a song. Sections of one kind share chords, motifs and accompaniment.

    Attributes:
        kind: a key of `ENERGY`.
        num_bars: length in bars.
        turn: number of earlier sections of this kind.
        shift: transposition above the key of the song, in semitones.
    """

    kind: str
    num_bars: int
    turn: int
    shift: int


ENERGY = {"intro": 0.15, "verse": 0.35, "pre": 0.55, "chorus": 0.9, "bridge": 0.5, "outro": 0.1}
"""Energy of each kind of section, 0–1; it controls loudness, density and register."""

CADENCE = {
    "intro": "open", "verse": "half", "pre": "half", "chorus": "full", "bridge": "half",
    "outro": "full",
}  # fmt: skip


def draw_form(rng: np.random.Generator) -> list[Section]:
    """Return the random sections of a song of 24 to 64 bars."""
    while True:
        lengths = {
            "intro": pick(rng, {2: 1, 4: 3, 8: 1}),
            "verse": pick(rng, {8: 3, 16: 1}),
            "pre": pick(rng, {2: 1, 4: 3}),
            "chorus": 8,
            "bridge": pick(rng, {4: 1, 8: 2}),
            "outro": pick(rng, {2: 1, 4: 3}),
        }
        kinds = _kinds(rng)
        if 24 <= sum(lengths[kind] for kind in kinds) <= 64:
            break
    modulates = chance(rng, 0.12) and kinds.count("chorus") > 1
    last_chorus = max((i for i, kind in enumerate(kinds) if kind == "chorus"), default=len(kinds))
    shift = pick(rng, (1, 2, 2, 3)) if modulates else 0
    return [
        Section(kind, lengths[kind], kinds[:i].count(kind), shift if i >= last_chorus else 0)
        for i, kind in enumerate(kinds)
    ]


def _kinds(rng: np.random.Generator) -> list[str]:
    """Return a random order of sections, by kind."""
    middle = pick(
        rng,
        {
            "verse chorus verse chorus": 3, "verse verse chorus verse chorus": 2,
            "verse pre chorus verse pre chorus": 2, "chorus verse chorus verse chorus": 1,
            "verse verse bridge verse": 2, "verse chorus": 1, "verse bridge verse chorus": 1,
        },
    ).split()  # fmt: skip
    coda = pick(rng, {"": 2, "bridge chorus": 2, "chorus": 2, "bridge pre chorus": 0.5}).split()
    if coda[:1] == ["bridge"] and "bridge" in middle:
        coda = coda[1:]
    intro = ["intro"] if chance(rng, 0.75) else []
    outro = ["outro"] if chance(rng, 0.75) else []
    return intro + middle + coda + outro
