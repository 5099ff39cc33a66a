"""The first bar of an accompaniment for a prompt without one, such as an arpeggio.

Without it, a model accompanies a tune with block chords. A composed bar in the prompt shows it
another texture.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from musicgen.composer.draw import notes_of_part, pick
from musicgen.composer.harmony import Chord
from musicgen.composer.melody import FOUR_FOUR, SIX_EIGHT, THREE_FOUR
from musicgen.composer.texture import TEXTURES, play
from musicgen.midi import DEFAULT_VELOCITY, Marker, NoteArray, Score, pitched_notes, role
from musicgen.midi.key import Key, find_key
from musicgen.tokenization.base import ConditioningTokens, Tokenizer
from musicgen.tokenization.chords import NO_CHORD, QUALITIES, chord_index
from musicgen.tokenization.constraints import FREE
from musicgen.tokenization.vocabulary import IntArray, within

TEXTURES_BY_METRE = {
    "4/4": ("arpeggio", "rolling", "alberti", "tenths", "stride", "block"),
    "3/4": ("lyric", "arpeggio", "flowing", "waltz", "held"),
    "6/8": ("lyric", "arpeggio", "barcarolle", "rocking"),
}
"""Names of the composer's textures to draw from, by time signature."""

_METRES = {metre.name: metre for metre in (FOUR_FOUR, THREE_FOUR, SIX_EIGHT)}
_HALF_BARS = {"2/4": "4/4", "3/8": "6/8"}  # time signatures with half of the bar of another
_STEPS_PER_BEAT = 4
_TONIC_WEIGHT = 1.25  # most pieces begin with the tonic chord


def with_first_bar(
    tokenizer: Tokenizer,
    kept_score: Score,
    conditioning: ConditioningTokens,
    rng: np.random.Generator,
) -> ConditioningTokens:
    """Return conditioning tokens with a composed first bar of the target part, a piano.

    It is the first bar where a kept part enters in the first half; before it the piano rests. The
    tokens are unchanged if the target part is no piano, or no texture has this time signature.

    Args:
        kept_score: the kept parts, as the tokens hold them.
        conditioning: of a whole piece without notes of the target parts.
    """
    decoded = tokenizer.decode(tokenizer.start_tokens()).tracks
    tracks = [decoded[target] for target in conditioning.targets]
    kept = pitched_notes(kept_score)
    key = find_key(kept)
    if [role(track) for track in tracks] != ["Piano"] or key is None:
        return conditioning
    number, line, end = _first_bar(kept_score, kept)
    if number + 1 == (conditioning.ids == FREE).sum():  # the last bar is the model's
        return conditioning
    given = [marker for marker in kept_score.markers if marker.tick < end]
    chords = _chords_from(line, given)
    if not chords:
        chords = [chord_below(kept[(kept["onset"] >= line) & (kept["onset"] < end)], key)]
    signature = kept_score.time_signature_at(line)
    metre = f"{signature.numerator}/{signature.denominator}"
    notes = draw_bar(rng, metre, chords, kept_score.ticks_per_beat)
    if notes is None:
        return conditioning
    notes["onset"] += line
    markers = [] if given else [Marker(line, chords[0].marker)]
    alone = replace(kept_score, tracks=[replace(tracks[0], notes=notes)], markers=markers)
    composed = _parts_of_bar(tokenizer, tokenizer.encode(alone), number)
    before, after = np.split(conditioning.ids, np.flatnonzero(conditioning.ids == FREE)[[number]])
    ids = np.concatenate([before[before != FREE], composed, after[1:]])
    return conditioning._replace(ids=ids)


def draw_bar(
    rng: np.random.Generator, metre: str, chords: Sequence[Chord], ticks_per_beat: int
) -> NoteArray | None:
    """Return the notes of a bar in a drawn texture, from tick 0 on.

    None: no texture has this time signature.

    Args:
        metre: a time signature, such as 3/4.
        chords: of the bar; the first and the last are played.
    """
    name = _HALF_BARS.get(metre, metre)
    if name not in TEXTURES_BY_METRE:
        return None
    draw, _ = TEXTURES[name][pick(rng, TEXTURES_BY_METRE[name])]
    texture = draw(rng, 2)
    end = _METRES[name].bar // (2 if metre in _HALF_BARS else 1)
    of_bar = tuple(dict.fromkeys((chords[0], chords[-1])))  # one or two
    rows = [
        (onset, min(length, end - onset), pitch, DEFAULT_VELOCITY)
        for onset, length, pitch, _ in play([texture] * 2, [of_bar] * 2, _METRES[name], ends=False)
        if onset < end
    ]
    return notes_of_part(rows, ticks_per_beat // _STEPS_PER_BEAT)


def chord_below(tune: NoteArray, key: Key) -> Chord:
    """Return the triad of a key on I, IV, V or VI whose tones sound longest in a tune."""
    triads = ((0, "M"), (5, "M"), (7, "M"), (9, "m"))
    if not key.major:
        triads = ((0, "m"), (5, "m"), (7, "M"), (8, "M"))
    roots = [(key.tonic + interval) % 12 for interval, _ in triads]
    chords = [Chord(root, quality, root) for root, (_, quality) in zip(roots, triads, strict=True)]
    sounding = np.bincount(tune["pitch"] % 12, tune["duration"], 12)
    fits = [sounding[[*chord.pitch_classes]].sum() for chord in chords]
    fits[0] *= _TONIC_WEIGHT
    return chords[int(np.argmax(fits))]


def _first_bar(score: Score, notes: NoteArray) -> tuple[int, int, int]:
    """Return number, first tick and end of the first bar where notes enter in the first half."""
    lines = score.bar_starts()
    first = int(notes["onset"].min())
    number = int(np.searchsorted(lines, first, side="right")) - 1
    length = score.bar_ticks(score.time_signature_at(int(lines[number])))
    if first - lines[number] >= length / 2 and number + 1 < len(lines):
        number += 1
    line = int(lines[number])
    return number, line, line + score.bar_ticks(score.time_signature_at(line))


def _chords_from(line: int, markers: Sequence[Marker]) -> list[Chord]:
    """Return the chord in force at a tick, and those of later markers; "no chord" is left out."""
    num_before = sum(marker.tick <= line for marker in markers)
    chords = []
    for marker in markers[max(0, num_before - 1) :]:
        index = chord_index(marker.text)
        if index is not None and index != NO_CHORD:
            root, quality = divmod(index, len(QUALITIES))
            chords.append(Chord(root, QUALITIES[quality], root))
    return chords


def _parts_of_bar(tokenizer: Tokenizer, tokens: IntArray, number: int) -> IntArray:
    """Return the ids of the parts of a bar of a piece [L], without its header. [<= L]"""
    families = tokenizer.families
    tokens = tokens[tokens != families["EOS"].start]
    bar = np.split(tokens, np.flatnonzero(within(tokens, families["Bar"])))[1 + number]
    return bar[int(np.argmax(within(bar, families["Part"]))) :]
