"""How a prompt is played, and new notes that are played like it.

Tokens have notes on a grid. New notes that begin together in a part take their velocities, their
deviations from the grid and their articulation from notes of the prompt that begin together, see
`find_donors`. So the distributions are those of the prompt, also by the beat; a prompt of one
velocity, or on the grid, is continued in the same way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress
from typing import Self

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import TICKS_PER_BEAT, NoteArray, Score, Track
from musicgen.midi.donors import (
    DONOR_BARS,
    LONGEST_ARTICULATION,
    MOST_MOVED,
    PLAYED_NOTE,
    Groups,
    find_donors,
)
from musicgen.midi.score import FloatArray, IntArray, join_notes, sort_notes
from musicgen.midi.tick_grid import is_notated
from musicgen.tokenization.quantization import to_grid

_ROLLED, _WIDEST_SPREAD = 0.1, 0.3  # quarters, between notes of a chord that is spread
_PEDALLED, _LONGEST_SUSTAIN = 1.5, 16.0  # times to the next onset
PlayedNotes = NDArray[np.void]  # of `PLAYED_NOTE`


class Performance:
    """How the notes of a prompt are played.

    Attributes:
        notes: `PLAYED_NOTE` array; a part is a decoded track, or a pitch of one of drums. [N]
        bar_ticks: ticks of the piece at which the bars of these notes begin and the last one ends.
            [num_bars + 1]
        lines: the same in ticks of the decoded score, if parts are kept; None: new bars follow.
            [num_bars + 1]
    """

    def __init__(self, notes: PlayedNotes, bar_ticks: IntArray, lines: IntArray | None) -> None:
        self.notes, self.bar_ticks, self.lines = notes, bar_ticks, lines

    @classmethod
    def of(
        cls,
        played: Score,
        written: Score,
        roles: Sequence[int | None],
        grid_map: tuple[IntArray, IntArray | FloatArray],
        bars: IntArray,
        steps_per_beat: int,
        *,
        has_kept: bool,
    ) -> Self | None:
        """Return how a piece is played; None if it has no notes in the bars.

        Args:
            played: as in its file.
            written: the same notes, as the tokenizer reads them, see `normalise_rhythm`.
            roles: the decoded track of each track; None: no track.
            grid_map: ascending ticks of the piece, from before its first note to after its last,
                and their grid steps.
            bars: grid steps at which bars begin and the last one ends. Only the last bars are read,
                but all of them if parts are kept. [num_bars + 1]
            steps_per_beat: grid steps in a quarter.
            has_kept: whether parts are kept.
        """
        bars = bars if has_kept else bars[-DONOR_BARS - 1 :]
        known = [role is not None for role in roles]
        own, grid = (
            join_notes(t.notes for t in compress(x.tracks, known)) for x in (played, written)
        )
        step = np.rint(np.interp(grid["onset"], *grid_map)).astype(np.int64)
        length = np.maximum(to_grid(grid["duration"], steps_per_beat, played.ticks_per_beat), 1)
        part = _parts(compress(roles, known), compress(played.tracks, known))
        if len(part) and not is_notated(played):
            on, end = (
                np.interp(x, *grid_map) for x in (own["onset"], own["onset"] + own["duration"])
            )
            step = _steps_of_chords(part, on / steps_per_beat, end / steps_per_beat, step)
        late = np.interp(own["onset"], *grid_map) - step
        longer = own["duration"] / played.ticks_per_beat * steps_per_beat / length
        tick = steps_per_beat / played.ticks_per_beat  # in grid steps
        notes = np.empty(len(step), PLAYED_NOTE)
        notes["part"] = part
        notes["bar"] = np.searchsorted(bars, step, side="right") - 1
        notes["position"] = (step - bars[np.clip(notes["bar"], 0, None)]) / steps_per_beat
        notes["pitch"], notes["length"] = own["pitch"], length / steps_per_beat
        notes["velocity"] = own["velocity"]
        # Below a tick, and in notated music, deviations count as zero.
        is_late = (np.abs(late) >= tick) & (not is_notated(played))
        notes["deviation"] = np.where(is_late, late, 0) / steps_per_beat
        is_written = np.abs(longer - 1) * length < tick
        notes["articulation"] = np.where(is_written, 1, np.minimum(longer, LONGEST_ARTICULATION))
        notes["sustain"] = (
            0 if is_notated(played) else _sustain(notes["part"], step, longer * length)
        )
        notes = notes[(step >= bars[0]) & (step < bars[-1])]
        if not len(notes):
            return None
        bar_ticks = np.interp(bars, *grid_map[::-1]).round().astype(np.int64)
        lines = bars * (TICKS_PER_BEAT // steps_per_beat) if has_kept else None
        return cls(notes, bar_ticks, lines)

    def model_bars(self, count: int) -> IntArray:
        """Return the bars of the prompt whose performance new bars copy. [count]

        They go from the last bar back to the first one and forward again, so that the loudness
        never changes abruptly.
        """
        last = len(self.bar_ticks) - 2
        back_and_forth = np.append(np.arange(last, -1, -1), np.arange(last + 1))
        return back_and_forth[np.arange(count) % len(back_and_forth)]

    def play(self, score: Score, first: int, targets: Sequence[int], seed: int) -> Score:
        """Return a decoded score whose new notes are played like those of the prompt.

        Args:
            first: tick where new notes begin.
            targets: indices of the tracks that have new notes.
            seed: decides between similar notes of the prompt.
        """
        tracks = [score.tracks[i] for i in targets]
        is_new = [track.notes["onset"] >= first for track in tracks]
        new = [replace(x, notes=x.notes[which]) for x, which in zip(tracks, is_new, strict=True)]
        notes = join_notes(track.notes for track in new)
        if not len(notes):
            return score
        lines, models = self.lines, np.arange(len(self.bar_ticks) - 1)
        if lines is None:
            lines = first + score.clip(first, score.end).bar_starts()
            models = self.model_bars(len(lines))
        bar = np.searchsorted(lines, notes["onset"], side="right") - 1
        bar = np.clip(bar, 0, len(models) - 1)
        written = np.empty(len(notes), PLAYED_NOTE)
        written["part"], written["bar"] = _parts(targets, new), bar
        written["position"] = (notes["onset"] - lines[bar]) / TICKS_PER_BEAT
        written["pitch"], written["length"] = notes["pitch"], notes["duration"] / TICKS_PER_BEAT
        groups = Groups(written)
        donors = find_donors(groups, Groups(self.notes), models, np.random.default_rng(seed))
        notes = _played(notes, groups, donors, first)
        notes["velocity"] = donors["velocity"]
        played, first_note = list(score.tracks), 0
        for i, track, which in zip(targets, tracks, is_new, strict=True):
            own = notes[first_note : first_note + which.sum()]
            played[i] = replace(track, notes=sort_notes(np.append(track.notes[~which], own)))
            first_note += len(own)
        return replace(score, tracks=played)


def _parts(indices: Iterable[int | None], tracks: Iterable[Track]) -> IntArray:
    """Return the parts of all notes of decoded tracks: their numbers, with the pitch of drums. [N]

    Args:
        indices: of the tracks.
    """
    parts = [np.empty(0, np.int64)]
    for index, track in zip(indices, tracks, strict=True):
        parts.append(128 * (index or 0) + track.notes["pitch"] * track.is_drum)
    return np.concatenate(parts)


def _steps_of_chords(
    part: IntArray, onset: FloatArray, end: FloatArray, step: IntArray
) -> IntArray:
    """Return the grid steps of notes, one for all notes of a chord that is spread over several. [N]

    Args:
        onset: where notes are played, in quarters; so are the ends. [N]
        step: where each is read. [N]
    """
    order = np.lexsort((onset, part))
    part, onset, end = part[order], onset[order], end[order]
    is_apart = (np.diff(part) != 0) | (np.diff(onset) > _ROLLED)
    first = np.append(0, 1 + np.flatnonzero(is_apart))
    last = np.append(first[1:], len(order)) - 1
    sound_together = np.minimum.reduceat(end, first) > onset[last] + _ROLLED
    is_chord = sound_together & (onset[last] - onset[first] < _WIDEST_SPREAD)
    size = last - first + 1
    middle = step[order][(first + last) // 2]
    read = step.copy()
    read[order] = np.where(np.repeat(is_chord, size), np.repeat(middle, size), step[order])
    return read


def _sustain(part: IntArray, step: IntArray, length: FloatArray) -> FloatArray:
    """Return the lengths of notes as multiples of the time to the next onset of their part. [N]

    All are 0 unless most notes outlast that by far, as in transcriptions of pedalled music.
    """
    places, place_of = np.unique(np.stack([part, step], axis=1), axis=0, return_inverse=True)
    gap = np.append(np.where(np.diff(places[:, 0]) == 0, np.diff(places[:, 1]), 0), 0)
    gap = gap[place_of.reshape(-1)]
    sustain = np.where(gap > 0, length / np.maximum(gap, 1), 0)
    is_pedalled = (gap > 0).any() and np.median(sustain[gap > 0]) > _PEDALLED
    return np.minimum(sustain, _LONGEST_SUSTAIN) * is_pedalled


def _played(notes: NoteArray, written: Groups, donors: PlayedNotes, first: int) -> NoteArray:
    """Return new notes with the deviations and articulations of their donors.

    No note moves by `MOST_MOVED` of the way to the notes before or after it in its part, nor before
    the first new tick. None sounds on into the next one of its pitch.
    """
    beats = donors["deviation"] * TICKS_PER_BEAT
    order, group = written.order, written.group
    onset, part = notes["onset"][order][written.first], written.notes["part"][written.first]
    gap = np.where(np.diff(part) == 0, np.diff(onset), TICKS_PER_BEAT)
    sustained = donors["sustain"][order] * np.append(gap, 0)[group]
    gap = gap * MOST_MOVED
    earliest, latest = (
        np.append(-TICKS_PER_BEAT, -gap)[group],
        np.append(gap, TICKS_PER_BEAT)[group],
    )
    beats[order] = np.clip(beats[order], earliest, latest)
    played = notes.copy()
    played["onset"] = np.maximum(np.rint(notes["onset"] + beats), first)
    length = np.rint(notes["duration"] * donors["articulation"])
    length[order] = np.maximum(length[order], np.rint(sustained))
    end = played["onset"] + np.maximum(length, 1).astype(np.int64)

    # By part and pitch: the next note of the pitch may begin where the note ends on the grid.
    part_of = np.empty_like(group)
    part_of[order] = written.notes["part"]
    by_pitch = np.lexsort((notes["onset"], notes["pitch"], part_of))
    before, after = by_pitch[:-1], by_pitch[1:]
    is_next = (part_of[before] == part_of[after]) & (
        notes["pitch"][before] == notes["pitch"][after]
    )
    is_next &= (notes["onset"] + notes["duration"])[before] <= notes["onset"][after]
    before, after = before[is_next], after[is_next]
    end[before] = np.minimum(end[before], played["onset"][after])
    played["duration"] = np.maximum(end - played["onset"], 1)
    return played
