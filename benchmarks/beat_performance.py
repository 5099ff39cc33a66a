"""Random performances of printed and composed music, whose beats are therefore known.

What is random: the tempo (near that of the score, if it has one) and its course (phrases of several
lengths, a slow drift, agogic accents, ritardandi, fermatas, changes of section), where notes of a
chord begin, how loud and how long they are, grace notes and trills, missing notes and tracks, the
key. Nothing is copied from recordings.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.midi import NoteArray, Score
from musicgen.plugins.beats.beats import Beats
from musicgen.plugins.beats.network import PlayedNotes

Manner = Literal["exact", "steady", "free"]
FloatArray = NDArray[np.float64]


class Performance(NamedTuple):
    """Played notes, and the seconds of beats and of the beginnings of bars."""

    notes: PlayedNotes
    beats: FloatArray
    bars: FloatArray


@dataclass(frozen=True)
class Piece:
    """Music to be performed.

    Attributes:
        notes: of all tracks, in ticks, by onset. [N]
        track: index of each note's track. [N]
        is_drum: of each track.
        beats: ticks of the beats, and one more at the end. [num_beats + 1]
        starts_bar: whether a bar begins at each beat. [num_beats]
        tempo: beats a minute at the beginning; None if the score does not say it.
        ticks_per_beat: ticks in a quarter.
        is_composed: by this project, rather than printed.
    """

    notes: NoteArray
    track: NDArray[np.int64]
    is_drum: NDArray[np.bool_]
    beats: FloatArray
    starts_bar: NDArray[np.bool_]
    tempo: float | None
    ticks_per_beat: int
    is_composed: bool

    @classmethod
    def of(cls, score: Score, is_composed: bool) -> "Piece":
        track = np.repeat(np.arange(len(score.tracks)), [len(t.notes) for t in score.tracks])
        notes = score.notes
        order = np.argsort(notes["onset"], kind="stable")
        signatures = score.time_signatures_from_start()
        ends = [s.tick for s in signatures[1:]] + [score.end + 1]
        beats, starts = [], []
        for signature, end in zip(signatures, ends, strict=True):
            _, numerator, denominator = signature
            own = Beats(np.empty(0), np.empty(0, np.int64), (numerator, denominator), "file")
            ticks = np.arange(signature.tick, end, own.quarters * score.ticks_per_beat)
            beats.append(ticks)
            starts.append((ticks - signature.tick) % score.bar_ticks(signature) == 0)
        ticks = np.concatenate(beats)
        intervals = np.diff(ticks) if len(ticks) > 1 else np.array([score.ticks_per_beat])
        quarters = intervals[0] / score.ticks_per_beat
        return cls(
            notes=notes[order],
            track=track[order],
            is_drum=np.array([t.is_drum for t in score.tracks], bool),
            beats=np.append(ticks, ticks[-1] + intervals[-1]),
            starts_bar=np.concatenate(starts),
            tempo=float(score.tempos["bpm"][0]) / quarters if len(score.tempos) else None,
            ticks_per_beat=score.ticks_per_beat,
            is_composed=is_composed,
        )


def perform(piece: Piece, rng: np.random.Generator, manner: Manner | None = None) -> Performance:
    """Return a random performance of a piece.

    Args:
        manner: None: a random one.
    """
    manner = manner or _manner(piece, rng)
    chosen = _chosen_notes(piece, rng)
    notes, track = piece.notes[chosen], piece.track[chosen]
    is_drum = piece.is_drum[track]
    # Ticks of half beats, and their seconds.
    ticks = np.sort(np.concatenate([piece.beats, (piece.beats[1:] + piece.beats[:-1]) / 2]))
    intervals = _intervals(piece, notes, manner, rng)
    seconds = np.append(0, np.cumsum(intervals))

    def at(tick: FloatArray) -> FloatArray:
        late = np.maximum(tick - ticks[-1], 0) * intervals[-1] / (ticks[-1] - ticks[-2])
        return np.interp(tick, ticks, seconds) + late

    begin = notes["onset"].astype(np.float64)
    early = _anticipated(piece, begin, track, rng) if piece.is_composed else begin
    onset = at(_swung(early, piece.ticks_per_beat, rng))
    duration = np.maximum(at(begin + notes["duration"]) - onset, 0.03)
    onset += _deviations(notes, manner, rng)
    duration = np.maximum(duration * rng.uniform(0.4, 1.15), 0.03)
    duration = np.maximum(duration * np.exp(rng.normal(0, 0.15, len(duration))), 0.03)
    if rng.random() < 0.15:  # staccato
        duration = np.minimum(duration, rng.uniform(0.1, 0.3))
    velocity = _velocities(piece, notes, track, manner, rng)
    pitch = notes["pitch"] + np.where(is_drum, 0, rng.integers(-6, 7))
    played = PlayedNotes(onset, duration, pitch, velocity, is_drum)
    if rng.random() < 0.5:
        kept = rng.random(len(onset)) > rng.uniform(0, 0.08)
        played = PlayedNotes(*(column[kept] for column in played))
    if manner == "free" and rng.random() < 0.6:
        played = _with_ornaments(played, rng)
    played = PlayedNotes(*(column[np.argsort(played.onset)] for column in played))
    shift = rng.uniform(0, 1.5) - played.onset[0]
    beats = seconds[:-1:2]
    sounding = (beats >= played.onset[0] - 0.1) & (beats <= played.onset[-1] + 0.05)
    return Performance(
        played._replace(onset=played.onset + shift),
        beats[sounding] + shift,
        beats[sounding & piece.starts_bar] + shift,
    )


def _manner(piece: Piece, rng: np.random.Generator) -> Manner:
    drawn = rng.random()
    if piece.is_composed:
        return "steady" if drawn < 0.6 else "exact" if drawn < 0.8 else "free"
    return "exact" if drawn < 0.12 else "steady" if drawn < 0.35 else "free"


def _chosen_notes(piece: Piece, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which notes are played: those of all tracks, or of some."""
    everything = np.ones(len(piece.notes), bool)
    num_tracks = len(piece.is_drum)
    if num_tracks < 2 or rng.random() < 0.5:
        return everything
    plays = rng.random(num_tracks) < 0.65
    if not plays.any():
        plays[rng.integers(num_tracks)] = True
    chosen = plays[piece.track]
    return chosen if chosen.sum() >= len(chosen) / 4 else everything


def _intervals(
    piece: Piece, notes: NoteArray, manner: Manner, rng: np.random.Generator
) -> FloatArray:
    """Return the seconds of each half beat. [2 num_beats]"""
    num_beats = len(piece.starts_bar)
    if piece.tempo is None:  # a usual tempo, and a usual number of onsets a second
        onsets_per_beat = max(0.3, len(np.unique(notes["onset"])) / num_beats)
        by_density = 60 * np.exp(rng.normal(np.log(4.2), 0.4)) / onsets_per_beat
        tempo = np.sqrt(95 * by_density)
    else:
        tempo = piece.tempo * np.exp(rng.normal(0, 0.1))
    tempo = float(np.clip(tempo * np.exp(rng.normal(0, 0.22)), 30, 240))
    curve = np.zeros(2 * num_beats)
    if manner != "exact":
        freedom = rng.uniform(0.02, 0.4) if manner == "steady" else rng.uniform(0.5, 1.8)
        curve += _phrases(piece, freedom, rng)
        curve += np.repeat(_drift(rng, num_beats, 0.9, 0.02 * freedom), 2)
        curve += np.repeat(rng.normal(0, 0.04 * freedom, num_beats), 2)
        curve += rng.normal(0, 0.025 * freedom, 2 * num_beats)
        if manner == "free":
            _add_accents(curve, np.flatnonzero(piece.starts_bar), freedom, rng)
    return 60 / tempo / 2 * np.exp(np.clip(curve, -0.9, 1.6))


def _phrases(piece: Piece, freedom: float, rng: np.random.Generator) -> FloatArray:
    """Return arcs of log intervals over phrases of 1 to 16 bars. [2 num_beats]"""
    beat = np.arange(2 * len(piece.starts_bar)) / 2
    beats_per_bar = max(2, round(len(piece.starts_bar) / max(1, piece.starts_bar.sum())))
    curve = np.zeros(len(beat))
    for bars in (1, 2, 4, 8, 16):
        if rng.random() < 0.6:
            size = abs(rng.normal(0, 0.07)) * freedom
            phase = beat % (bars * beats_per_bar) / (bars * beats_per_bar)
            if rng.random() < 0.5:  # slow at both ends
                curve += size * (2 * (2 * phase - 1) ** 2 - 0.7)
            else:
                curve += size * np.cos(2 * np.pi * (phase + rng.random()))
    return curve


def _drift(rng: np.random.Generator, count: int, memory: float, size: float) -> FloatArray:
    """Return an autoregressive process of the first order. [count]"""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1], [1, -memory], rng.normal(0, size, count)))


def _add_accents(
    curve: FloatArray, bars: NDArray[np.int64], freedom: float, rng: np.random.Generator
) -> None:
    """Add delays before bars, ritardandi, fermatas, sections and a ritardando at the end."""
    for bar in bars:
        if rng.random() < 0.08 * freedom:
            curve[max(0, 2 * bar - 1)] += rng.uniform(0.1, 0.7)
        if rng.random() < 0.06 * freedom:
            slow = curve[max(0, 2 * bar - rng.integers(2, 8)) : 2 * bar]
            slow += np.linspace(0, rng.uniform(0.1, 0.6), len(slow))
        if rng.random() < 0.015 * freedom:
            curve[2 * bar : 2 * bar + 1] += rng.uniform(0.3, 1.2)
    for _ in range(rng.poisson(0.8)):
        curve[2 * rng.choice(bars) :] += rng.normal(0, 0.18)
    slow = curve[-rng.integers(2, 16) :]
    slow += np.linspace(0, rng.uniform(0, 0.9), len(slow))


def _anticipated(
    piece: Piece, ticks: FloatArray, track: NDArray[np.int64], rng: np.random.Generator
) -> FloatArray:
    """Return ticks of which some on beats are half a beat early, as pop is played. [N]

    It happens in two of five performances, on some beats and in some tracks.
    """
    if rng.random() < 0.6:
        return ticks
    beats = piece.beats[1:-1]
    chosen = beats[rng.random(len(beats)) < rng.uniform(0.05, 0.4)]
    in_tracks = rng.random(len(piece.is_drum)) < 0.6
    is_early = np.isin(ticks, chosen) & in_tracks[track]
    return ticks - piece.ticks_per_beat / 2 * is_early


def _swung(ticks: FloatArray, beat: int, rng: np.random.Generator) -> FloatArray:
    """Return ticks with late second halves of beats, in a few performances."""
    late = rng.uniform(0.05, 0.18) if rng.random() < 0.06 else 0
    return ticks + beat * late * np.interp(ticks % beat / beat, [0, 0.5, 1], [0, 1, 0])


def _deviations(notes: NoteArray, manner: Manner, rng: np.random.Generator) -> FloatArray:
    """Return seconds by which notes begin later: melodies lead, basses may, chords are rolled."""
    count = len(notes)
    size = {
        "exact": 0 if rng.random() < 0.6 else 0.003,
        "steady": rng.uniform(0.002, 0.015),
        "free": rng.uniform(0.006, 0.022),
    }[manner]
    late = rng.normal(0, size, count)
    if manner != "free":
        return late
    _, chord, sizes = np.unique(notes["onset"], return_inverse=True, return_counts=True)
    order = np.lexsort((notes["pitch"], chord))
    place = np.empty(count, np.int64)  # in its chord, from the bass
    place[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    size_of = sizes[chord]
    is_top, is_bass = place == size_of - 1, place == 0
    lead = rng.uniform(0, 0.03) * rng.uniform(0.3, 1.3, count)
    late -= np.where(is_top & (size_of > 1), lead, 0)
    bass_lead = rng.uniform(-0.01, 0.03) * rng.uniform(0, 1.3, count)
    late -= np.where(is_bass & (size_of > 2), bass_lead, 0)
    is_rolled = rng.random(len(sizes)) < rng.choice([0, 0.01, 0.08])
    step, from_top = rng.uniform(0.02, 0.09), rng.choice([0, 0.5, 1])
    return late + np.where(is_rolled[chord], (place - from_top * (size_of - 1)) * step, 0)


def _velocities(
    piece: Piece,
    notes: NoteArray,
    track: NDArray[np.int64],
    manner: Manner,
    rng: np.random.Generator,
) -> FloatArray:
    """Return velocities: slow changes, accents on beats and bars, louder tracks or melody. [N]"""
    count, is_exact = len(notes), manner == "exact"
    velocity = rng.normal(66, 10) + _drift(rng, count, 0.97, 0.5 if is_exact else 2)
    velocity += rng.normal(0, 1 if is_exact else rng.uniform(2, 9), count)
    accent = rng.uniform(0, 14) if rng.random() < 0.75 else 0
    beats = piece.beats[:-1]
    velocity += accent / 2 * np.isin(notes["onset"], beats)
    velocity += accent / 2 * np.isin(notes["onset"], beats[piece.starts_bar])
    num_tracks = len(piece.is_drum)
    if num_tracks > 1 and rng.random() < 0.7:
        velocity += rng.normal(0, 12, num_tracks)[track]
    else:
        starts, chord = np.unique(notes["onset"], return_inverse=True)
        highest = np.full(len(starts), -1)
        np.maximum.at(highest, chord, notes["pitch"])
        velocity += np.where(notes["pitch"] == highest[chord], rng.uniform(0, 18), 0)
    if piece.is_composed and rng.random() < 0.6:
        velocity = (velocity + notes["velocity"]) / 2
    if rng.random() < 0.1:
        velocity[:] = 80
    return np.clip(velocity, 8, 127)


def _with_ornaments(notes: PlayedNotes, rng: np.random.Generator) -> PlayedNotes:
    """Return notes of which a few have grace notes, trills or mordents."""
    share = rng.choice([0.005, 0.02, 0.05])
    chosen = (rng.random(len(notes.onset)) < share) & ~notes.is_drum & (notes.pitch > 55)
    onset, duration = notes.onset.copy(), notes.duration.copy()
    added = list[tuple[float, float, int, float]]()
    for i in np.flatnonzero(chosen):
        kind, step = rng.random(), int(rng.integers(1, 3))
        begin, pitch, velocity = onset[i], int(notes.pitch[i]), notes.velocity[i]
        if kind < 0.4:  # a grace note, before the note or in its place
            length, is_before = rng.uniform(0.04, 0.12), rng.random() < 0.6
            first = begin - length if is_before else begin
            added.append((first, length, pitch + rng.choice([-1, 1]) * step, 0.8 * velocity))
            onset[i] = begin if is_before else begin + length
        elif kind < 0.8 and duration[i] > 0.35:  # a trill
            length = rng.uniform(0.06, 0.11)
            for j in range(1, int(min(duration[i], 3) / length)):
                upper = step if j % 2 else 0
                added.append((begin + j * length, length, pitch + upper, 0.85 * velocity))
            duration[i] = length
        else:  # a mordent
            length = rng.uniform(0.05, 0.09)
            added.append((begin, length, pitch, velocity))
            added.append((begin + length, length, pitch + step, velocity))
            onset[i] += 2 * length
    if not added:
        return notes
    columns = np.array(added).T
    return PlayedNotes(
        np.append(onset, columns[0]),
        np.append(duration, columns[1]),
        np.append(notes.pitch, columns[2].astype(np.int64)),
        np.append(notes.velocity, columns[3]),
        np.append(notes.is_drum, np.zeros(len(added), bool)),
    )
