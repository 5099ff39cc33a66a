"""Prompts that keep some parts of a whole piece, to which the model writes the others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from musicgen.errors import UserError, errors_name
from musicgen.generation.accompaniment import with_first_bar
from musicgen.generation.performance import BarMap, Performance
from musicgen.generation.prompt import KeptParts, Playback, Prompt, SourceFile, median_velocities
from musicgen.generation.signatures import on_grid
from musicgen.midi import Marker, Score
from musicgen.midi.key import note_names
from musicgen.midi.tick_grid import is_notated
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chords.progression import schedule
from musicgen.tokenization.chords.symbols import CHORDS, ROOTS, chord_index, spelled
from musicgen.tokenization.part_order import ConditioningTokens
from musicgen.tokenization.quantization import relocate, to_grid
from musicgen.tokenization.quantization_report import QuantizationSummary
from musicgen.tokenization.vocabulary import IntArray


def kept_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    keep: Sequence[str],
    bars: tuple[int, int | None],
    markers: Sequence[Marker],
    progression: list[list[int]] | None = None,
    data: bytes | None = None,
    rng: np.random.Generator | None = None,
) -> Prompt:
    """Return some parts of a whole piece, to which the others are to be written.

    Args:
        keep: names of decoded tracks.
        bars: the first that is written, from 0, and the one after the last; None: to the end.
        markers: the piece's, with chords that were recognised, which the model reads before these
            bars. In these bars only the piece's own chords are kept.
        progression: the chords of each of the bars, see `parse_progression`; None: the piece's.
        data: the MIDI file that the score was read from.
        rng: draws the first bar of a missing piano, see `with_first_bar`; None: the model does.

    Raises:
        UserError: the piece has no such parts or bars, or the model cannot write to them.
    """
    lines, first, end = bars_to_write(score, name, bars)
    before = [chord._replace(tick=first) for chord in chords_between(score, 0, first)[-1:]]
    source, chords = with_progression(score, lines, (first, end), progression)
    score = model_input(tokenizer, score, markers, chords, first, end)
    with errors_name(name):
        until = None if bars[1] is None else end
        conditioning = tokenizer.part_order.keep_parts(score, keep, first, until)
    roles, targets = conditioning.roles, conditioning.targets
    kept_score = parts_on_grid(tokenizer, score, roles, {*roles} - {*targets})
    if rng is not None and not {*roles} & {*targets}:
        conditioning = with_first_bar(tokenizer, kept_score, conditioning, rng)
    free = np.flatnonzero(conditioning.ids < 0)
    if not len(free):
        raise UserError(f"{name}: nothing is left to write")
    kept = KeptParts(
        conditioning,
        source,
        span=(first, np.inf if bars[1] is None else end),
        progression=chords_on_grid(tokenizer, score, conditioning, [*before, *chords]),
    )
    return Prompt(
        tokenizer,
        tokens=conditioning.ids[: free[0]],
        end_time=conditioning.start,
        bar_length=tokenizer.bar_length(score),
        score=kept_score,
        piece=parts_on_grid(tokenizer, score, roles, {*roles}),
        summary=describe(score, kept_score, conditioning),
        source=SourceFile(name, data, end_tick=first),
        playback=Playback(
            velocities=median_velocities(tokenizer, score, roles, targets),
            performance=performance_of(tokenizer, source, conditioning, lines),
        ),
        kept=kept,
    )


def with_progression(
    score: Score,
    lines: Sequence[int],
    span: tuple[int, int],
    progression: list[list[int]] | None,
) -> tuple[Score, list[Marker]]:
    """Return a piece with the chords of a progression between two bar lines, and these chords.

    Args:
        lines: ticks of all bar lines.
        span: ticks of the two.
        progression: None: the chords stay as they are.
    """
    first, end = span
    chords = chords_between(score, first, end)
    others = [marker for marker in score.markers if marker not in chords]
    if progression is not None:
        if end < lines[-1]:  # after the new chords, the piece's own chord is in force again
            others += [chord._replace(tick=end) for chord in chords_between(score, 0, end + 1)[-1:]]
        chords = chord_markers(score, progression, lines[lines.index(first) : lines.index(end) + 1])
    return replace(score, markers=sorted({*others, *chords})), chords


def describe(
    score: Score, kept_score: Score, conditioning: ConditioningTokens
) -> QuantizationSummary:
    """Return how many notes of the kept parts their tokens hold, and how tracks were read.

    Args:
        score: the piece with all its parts.
        kept_score: the kept parts, on the grid.
    """
    num_notes = sum(
        len(track.notes)
        for track, role in zip(score.tracks, conditioning.roles, strict=True)
        if role is not None and role not in conditioning.targets
    )
    return QuantizationSummary(num_notes, kept_score.num_notes, rules=[*conditioning.rules])


def performance_of(
    tokenizer: Tokenizer, source: Score, conditioning: ConditioningTokens, lines: Sequence[int]
) -> Performance | None:
    """Return how a piece is played of which parts are kept; None if it has no notes.

    Args:
        source: the piece as it was read.
        lines: ticks of all its bar lines.
    """
    lines_in_bars = relocate(np.array(lines), conditioning.tick_map)
    ticks, in_bars = conditioning.tick_map
    return Performance.of(
        source,
        tokenizer.normalise_rhythm(source),
        conditioning.roles,
        BarMap(
            ticks,
            in_bars * tokenizer.steps_per_beat / source.ticks_per_beat,
            to_grid(lines_in_bars, tokenizer.steps_per_beat, source.ticks_per_beat),
            tokenizer.steps_per_beat,
        ),
        has_kept=True,
        has_deviations=not is_notated(source),
    )


def bars_to_write(
    score: Score, name: str, bars: tuple[int, int | None]
) -> tuple[list[int], int, int]:
    """Return the ticks of all bar lines of a piece, its end included, and of two of them.

    Args:
        bars: those between the two: the first, and the one after the last; None: to the end.

    Raises:
        UserError: the piece has fewer bars.
    """
    lines = score.bar_starts().tolist()
    lines.append(lines[-1] + score.bar_ticks(score.time_signature_at(lines[-1])))
    if (bars[1] or 0) >= len(lines):
        raise UserError(f"{name}: rewrite: expected some of its {len(lines) - 1} bars")
    first = lines[min(bars[0], len(lines) - 1)]
    return lines, first, lines[-1 if bars[1] is None else bars[1]]


def is_chord(marker: Marker) -> bool:
    """Return whether a marker names a chord."""
    return chord_index(marker.text) is not None


def chords_between(score: Score, first: int, end: int) -> list[Marker]:
    """Return the chords of a score at ticks in [first, end)."""
    return [marker for marker in score.markers if is_chord(marker) and first <= marker.tick < end]


def chord_markers(score: Score, progression: list[list[int]], lines: Sequence[int]) -> list[Marker]:
    """Return the chords of a progression between some bar lines, spelled in the score's key."""
    names = note_names(score) or ROOTS
    changes = schedule(progression, lines).tolist()
    return [Marker(tick, spelled(CHORDS[chord], names)) for tick, chord in changes]


def model_input(
    tokenizer: Tokenizer,
    score: Score,
    markers: Sequence[Marker],
    chords: Sequence[Marker],
    first: int,
    end: int,
) -> Score:
    """Return a piece as the model reads it: with bar lines at `first` and `end`, in ticks.

    Args:
        markers: those of the model, of which the ones before `first` count.
        chords: of the bars between the ticks.
    """
    others = [marker for marker in score.markers if not is_chord(marker)]
    before = [marker for marker in markers if marker.tick < first or marker in others]
    cuts = [score.time_signature_at(tick)._replace(tick=tick) for tick in (first, end)]
    return tokenizer.normalise_rhythm(
        replace(
            score,
            markers=sorted([*before, *chords], key=lambda marker: marker.tick),
            time_signatures=sorted([*score.time_signatures, *cuts], key=lambda each: each.tick),
        )
    )


def chords_on_grid(
    tokenizer: Tokenizer, score: Score, conditioning: ConditioningTokens, chords: Sequence[Marker]
) -> IntArray:
    """Return the grid step and the index in `CHORDS` of each chord. [N, 2]"""
    ticks = np.array([chord.tick for chord in chords], np.int64)
    in_bars = relocate(ticks, conditioning.tick_map)
    steps = to_grid(in_bars, tokenizer.steps_per_beat, score.ticks_per_beat)
    indices = np.array([chord_index(chord.text) or 0 for chord in chords], np.int64)
    return np.stack([steps, indices], axis=1)


def parts_on_grid(
    tokenizer: Tokenizer, score: Score, roles: Sequence[int | None], parts: set[int | None]
) -> Score:
    """Return the tracks of a score that are some decoded tracks, as the tokens hold them.

    Args:
        roles: the decoded track that each of the score's tracks is; None: none.
        parts: indices of decoded tracks.
    """
    decoded = tokenizer.decode(tokenizer.start_tokens()).tracks
    tracks = [
        replace(decoded[role], notes=track.notes)
        for track, role in zip(score.tracks, roles, strict=True)
        if role is not None and role in parts
    ]
    return on_grid(tokenizer, replace(score, tracks=tracks))
