"""Prompts that keep some parts of a whole piece; the model writes the others."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress

import numpy as np

from musicgen.errors import UserError, errors_name
from musicgen.generation.accompaniment import with_first_bar
from musicgen.generation.gap import Gap
from musicgen.generation.performance import Performance
from musicgen.generation.prompt import Boundary, KeptParts, Prompt
from musicgen.generation.source import Source, median_velocities, on_grid, with_own_keys
from musicgen.midi import TICKS_PER_BEAT, Marker, Score
from musicgen.midi.key import note_names
from musicgen.tokenization.base import ConditioningTokens, Tokenizer
from musicgen.tokenization.chords import CHORDS, ROOTS, chord_index, schedule, spelled
from musicgen.tokenization.quantization import QuantizationSummary, relocate, to_grid
from musicgen.tokenization.vocabulary import IntArray


def kept_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    keep: Sequence[str],
    gap: Gap,
    markers: Sequence[Marker],
    progression: list[list[int]] | None = None,
    data: bytes | None = None,
    entropy: Sequence[int] | None = None,
) -> Prompt:
    """Return a prompt that keeps some parts of a whole piece.

    Args:
        keep: names of decoded tracks.
        gap: what to write; without an end, bars are written to the end of the piece.
        markers: those of the piece and recognised chords, which count before these bars.
        progression: the chords of these bars, see `parse_progression`; None: the piece's.
        data: the MIDI file that the score was read from.
        entropy: draws the first bar of a missing piano per sample; None: left to the model.

    Raises:
        UserError: the piece has no such parts or bars, or the model cannot write to them.
    """
    first, end, chords, source = _bars_to_write(score, name, gap.bars, progression)
    written = _model_input(tokenizer, score, markers, chords, (first, end))
    with errors_name(name):
        conditioning = tokenizer.keep_parts(written, keep, first, gap.bars[1] and end, gap.parts)
    roles, targets = conditioning.roles, conditioning.targets
    kept_score = _parts_on_grid(tokenizer, written, roles, {*roles} - {*targets})
    kept_score = with_own_keys(kept_score, source)
    free = np.flatnonzero(conditioning.ids < 0)
    if not len(free):
        raise UserError(f"{name}: nothing is left to write; keep fewer parts, or fewer prompt_bars")
    is_kept = [role is not None and role not in targets for role in roles]
    num_notes = sum(len(track.notes) for track in compress(written.tracks, is_kept))
    before = [chord._replace(tick=first) for chord in _chords_between(score, 0, first)[-1:]]
    step = conditioning.start
    return Prompt(
        tokenizer,
        tokens=conditioning.ids[: free[0]],
        end=Boundary(step, step * (TICKS_PER_BEAT // tokenizer.steps_per_beat), first, first),
        bar_length=tokenizer.bar_length(written),
        score=kept_score,
        piece=_parts_on_grid(tokenizer, written, roles, {*roles}),
        summary=QuantizationSummary(num_notes, kept_score.num_notes, rules=[*conditioning.rules]),
        source=Source(
            name,
            data,
            velocities=median_velocities(tokenizer, written, roles, targets),
            performance=_performance_of(tokenizer, source, conditioning),
        ),
        kept=KeptParts(
            conditioning,
            source,
            span=(first, np.inf if gap.bars[1] is None else end),
            progression=_chords_on_grid(tokenizer, source, conditioning, [*before, *chords]),
            begin=partial(_of_sample, tokenizer, kept_score, conditioning, entropy),
        ),
    )


def _of_sample(
    tokenizer: Tokenizer,
    kept_score: Score,
    conditioning: ConditioningTokens,
    entropy: Sequence[int] | None,
    sample: int,
) -> ConditioningTokens:
    """Return the conditioning of a sample, with a first bar that is drawn for it."""
    if entropy is None or {*conditioning.roles} & {*conditioning.targets}:
        return conditioning
    rng = np.random.default_rng([*entropy, sample])
    return with_first_bar(tokenizer, kept_score, conditioning, rng)


def _model_input(
    tokenizer: Tokenizer,
    score: Score,
    markers: Sequence[Marker],
    chords: Sequence[Marker],
    edges: tuple[int, int],
) -> Score:
    """Return a piece as the model reads it, with bar lines at the edges of the bars to write.

    Args:
        markers: those of the piece and recognised chords; they count outside the bars to write.
        chords: of the bars to write.
    """
    first, end = edges
    outside = [each for each in markers if not (is_chord(each) and first <= each.tick < end)]
    cuts = [score.time_signature_at(tick)._replace(tick=tick) for tick in edges]
    return tokenizer.normalise_rhythm(
        replace(
            score,
            markers=sorted([*outside, *chords], key=lambda marker: marker.tick),
            time_signatures=sorted([*score.time_signatures, *cuts], key=lambda each: each.tick),
        )
    )


def _performance_of(
    tokenizer: Tokenizer, source: Score, conditioning: ConditioningTokens
) -> Performance | None:
    """Return the performance of a piece with kept parts; None if it has no notes."""
    ticks, in_bars = conditioning.tick_map
    per_beat = tokenizer.steps_per_beat
    lines = relocate(source.bar_lines(), conditioning.tick_map)
    return Performance.of(
        source,
        tokenizer.normalise_rhythm(source),
        conditioning.roles,
        (ticks, in_bars * per_beat / source.ticks_per_beat),
        to_grid(lines, per_beat, source.ticks_per_beat),
        per_beat,
        has_kept=True,
    )


def _chords_on_grid(
    tokenizer: Tokenizer, score: Score, conditioning: ConditioningTokens, chords: Sequence[Marker]
) -> IntArray:
    """Return the grid step and the index in `CHORDS` of each chord. [N, 2]"""
    ticks = relocate(np.array([chord.tick for chord in chords], np.int64), conditioning.tick_map)
    steps = to_grid(ticks, tokenizer.steps_per_beat, score.ticks_per_beat)
    indices = np.array([chord_index(chord.text) for chord in chords], np.int64)
    return np.stack([steps, indices], axis=1)


def _bars_to_write(
    score: Score,
    name: str,
    bars: tuple[int, int | None],
    progression: list[list[int]] | None,
) -> tuple[int, int, list[Marker], Score]:
    """Return the ticks of the first and the last line of the bars, and the chords between them.

    Returns:
        The two ticks, the chords, and the piece with these chords.

    Raises:
        UserError: the piece has fewer bars.
    """
    lines: list[int] = score.bar_lines().tolist()
    if (bars[1] or 0) >= len(lines):
        raise UserError(f"{name}: fill: expected some of its {len(lines) - 1} bars")
    begin, stop = min(bars[0], len(lines) - 1), -1 if bars[1] is None else bars[1]
    first, end = lines[begin], lines[stop]
    chords = _chords_between(score, first, end)
    others = [marker for marker in score.markers if marker not in chords]
    if progression is not None:
        if end < lines[-1]:  # after the new chords, the piece's own chord is in force again
            own = _chords_between(score, 0, end + 1)[-1:]
            others += [chord._replace(tick=end) for chord in own]
        names = note_names(score) or ROOTS
        changes = schedule(progression, lines[begin : lines.index(end) + 1]).tolist()
        chords = [Marker(tick, spelled(CHORDS[chord], names)) for tick, chord in changes]
    return first, end, chords, replace(score, markers=sorted({*others, *chords}))


def is_chord(marker: Marker) -> bool:
    """Return whether a marker names a chord."""
    return chord_index(marker.text) is not None


def _chords_between(score: Score, first: int, end: int) -> list[Marker]:
    """Return the chords of a score at ticks in [first, end)."""
    return [marker for marker in score.markers if is_chord(marker) and first <= marker.tick < end]


def _parts_on_grid(
    tokenizer: Tokenizer, score: Score, roles: Sequence[int | None], parts: set[int | None]
) -> Score:
    """Return the tracks of a score that map to some decoded tracks, as the tokens hold them.

    Args:
        roles: the decoded track of each of the score's tracks; None: no track.
        parts: indices of decoded tracks.
    """
    decoded = tokenizer.decode(tokenizer.start_tokens()).tracks
    tracks = [
        replace(decoded[role], notes=track.notes)
        for track, role in zip(score.tracks, roles, strict=True)
        if role is not None and role in parts
    ]
    return on_grid(tokenizer, replace(score, tracks=tracks))
