"""Bands: songs in invented styles, with random articulation, timing and registers.

An invented style mixes patterns of all families with random ones, so that a model learns to
continue rhythms that it was not trained on. The drummers of some bands are real: performances of
the Groove MIDI Dataset (Gillick et al. 2019). The other parts then follow the loudness of the
drums.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from musicgen.composer.draw import chance, generator, notes_of_part, pick
from musicgen.composer.families import BAR, FAMILIES, Family
from musicgen.composer.grooves import STEP, compose_from_family
from musicgen.errors import UserError
from musicgen.files import read_csv
from musicgen.midi import TEMPO, NoteArray, Score, read, sort_notes
from musicgen.midi.score import FloatArray

_INVENTED = 0.7  # share of bands in an invented style; the others play one of the families
_STROKES = {"bass": "1113578a", "piano": "cccc0123", "guitar": "cccc0123", "strings": "ccc0123"}
_PLAYS = {"bass": 1.0, "piano": 0.8, "guitar": 0.6, "strings": 0.6}  # share of bands with the part
_BEAT = 12  # steps in a beat

_CATALOGUE = "info.csv"
_SHORTEST = 8  # bars
_FAMILY = 0.5  # share of the bands that play a family of the drummer's style; others are invented
_ALONE = 0.25  # share of the songs in which the drummer plays alone
# Keys of the electronic kit, and those of the same drum in General MIDI: two hi-hats, the rims of
# the snare and of the low tom.
_GENERAL_MIDI = {22: 42, 26: 46, 40: 38, 58: 43}
_STYLES = {
    "afrobeat": ("funk", "samba"),
    "afrocuban": ("salsa", "bossa"),
    "blues": ("shuffle", "swing"),
    "country": ("country",),
    "dance": ("house", "disco"),
    "funk": ("funk",),
    "gospel": ("gospel",),
    "hiphop": ("hiphop",),
    "jazz": ("swing", "bossa"),
    "latin": ("salsa", "samba", "bossa"),
    "neworleans": ("shuffle", "funk"),
    "pop": ("ballad", "rock", "disco"),
    "punk": ("rock", "metal"),
    "reggae": ("reggae", "ska"),
    "rock": ("rock", "metal", "ballad"),
    "soul": ("soul", "gospel"),
}
"""Families by the styles of the dataset; the other styles are only played by invented bands."""

DrumPerformance = tuple[str, Score]
"""The style that the name of a drum performance in 4/4 tells, and the performance."""


def compose_band(seed: int, band: int, song: int, family: Family | None = None) -> Score:
    """Return a song of 24–32 bars for Bass, Drums, Piano, Guitar and Strings.

    Songs of a band share style, articulation and timing.

    Args:
        seed, band, song: at least 0. The same numbers give the same music.
        family: of the style; None: a random one, or an invented style.
    """
    rng = generator("band", seed, band)
    if family is None:
        family = _invent(rng) if chance(rng, _INVENTED) else pick(rng, tuple(FAMILIES.values()))
    score = compose_from_family(family, seed, "band", band, song)
    timing = pick(rng, ("exact", "exact", "strummed", "loose", "late"))
    late = np.append(False, rng.random(_BEAT - 1) < 0.3)
    song_rng = generator("performance", seed, band, song)
    tracks = []
    for part, track in enumerate(score.tracks):
        notes = track.notes  # in steps from here on
        notes["onset"] //= STEP
        notes["duration"] //= STEP
        # A generator per part, so that its draws do not depend on the other parts.
        part_rng = generator("touch", seed, band, part)
        if track.is_drum:
            notes["duration"] = pick(part_rng, (1, 1, 1, 2, 3, 4, 6))
        else:
            notes = _articulate(part_rng, notes, part)
        if timing == "strummed" and not track.is_drum:
            _strum(notes, int(part_rng.integers(1, 3)))
        elif timing == "loose":
            moved = (song_rng.random(len(notes)) < 0.25) * song_rng.choice([-1, 1], len(notes))
            notes["onset"] = np.maximum(0, notes["onset"] + moved)
        elif timing == "late":
            notes["onset"] += late[notes["onset"] % _BEAT]
        loudness = part_rng.normal(0, 8) + song_rng.normal(0, part_rng.uniform(0, 8), len(notes))
        notes["velocity"] = np.clip(notes["velocity"] + loudness.round(), 20, 127)
        tracks.append(replace(track, notes=notes_of_part(notes, STEP)))
    return replace(score, tracks=tracks)


def _invent(rng: Generator) -> Family:
    """Return a family of random patterns; some are taken from the other families."""
    cells = 12 if chance(rng, 0.3) else 16
    known = [f for f in FAMILIES.values() if len(f.bass.split()[0]) == cells]
    parts = {}
    for name, strokes in _STROKES.items():
        pool = " ".join(getattr(family, name) for family in known)
        hold = rng.uniform(0, 0.95)
        drawn = " ".join(_pattern(rng, pool, cells, strokes, hold) for _ in range(4))
        parts[name] = drawn if chance(rng, _PLAYS[name]) else "."
    drums: dict[str, str] = {}
    for _ in range(int(rng.integers(2, 7))):
        name, pool = pick(rng, [*pick(rng, known).drums.items()])
        drums[name] = _pattern(rng, pool, cells, "xxXo", 0)
    progressions = [chords for family in FAMILIES.values() for chords in family.progressions]
    return Family(
        (70, 150), drums, **parts, progressions=tuple(progressions), programs=(33, 0, 27, 48)
    )


def _pattern(rng: Generator, pool: str, cells: int, strokes: str, hold: float) -> str:
    """Return a pattern of the pool, or a random one whose strokes are held (`-`) at random.

    Args:
        pool: patterns; silent bars are left out.
        cells: length of the pattern.
        strokes: symbols to draw from.
        hold: probability that a cell after a stroke holds it.
    """
    known = [pattern for pattern in pool.split() if pattern != "."]
    if known and chance(rng, 0.5):
        return pick(rng, known)
    density, pattern = rng.uniform(0.1, 0.7), ""
    for cell in range(cells):
        on_beat = cell % (cells // 4) == 0
        if chance(rng, density * (1.6 if on_beat else 0.7)):
            pattern += pick(rng, strokes)
        else:
            pattern += "-" if pattern and pattern[-1] != "." and chance(rng, hold) else "."
    return pattern


def _articulate(rng: Generator, notes: NoteArray, part: int) -> NoteArray:
    """Return the notes with random lengths and a random register; some parts double in octaves.

    Args:
        notes: with times in steps.
        part: index of the part; 0 is the bass, which is never doubled.
    """
    onset, length = notes["onset"], notes["duration"]
    scale, shorter, longest = rng.uniform(0.3, 1), rng.integers(1, 3), rng.integers(1, 7)
    onsets = np.unique(onset)
    gap = np.append(np.diff(onsets), 4 * _BEAT)[np.searchsorted(onsets, onset)]
    touches = {
        "as written": length,
        "scaled": (length * scale).round().astype(np.int64),
        "detached": length - shorter,
        "short": np.minimum(length, longest),
        "legato": np.minimum(gap, 4 * _BEAT) - shorter // 2,
    }
    notes["duration"] = np.maximum(1, touches[pick(rng, [*touches])])
    pitch = notes["pitch"] + pick(rng, (0, 0, 0, -12, 12))
    if np.array_equal(pitch, pitch.clip(24, 100)):
        notes["pitch"] = pitch
    if part > 0 and chance(rng, 0.25):
        octaves = notes.copy()
        octaves["pitch"] += 12
        notes = np.concatenate([notes, octaves])
    return notes


def _strum(notes: NoteArray, notes_at_a_time: int) -> None:
    """Delay the higher notes of each chord, a step per `notes_at_a_time`, in place."""
    order = np.lexsort((notes["pitch"], notes["onset"]))
    onset = notes["onset"][order]
    rank = np.arange(len(notes)) - np.searchsorted(onset, onset)
    delay = rank // notes_at_a_time
    notes["onset"][order] += delay
    notes["duration"][order] = np.maximum(1, notes["duration"][order] - delay)


def read_drummers(folder: Path) -> list[DrumPerformance]:
    """Return the performances of the dataset's training set that have at least eight bars of 4/4.

    Raises:
        UserError: the folder is not that of the dataset.
    """
    catalogue = folder / _CATALOGUE
    if not catalogue.is_file():
        raise UserError(
            f"{catalogue}: no such file; drummers is the folder of the Groove MIDI Dataset"
        )
    performances = []
    for row in read_csv(catalogue):
        kind = row["split"], row["beat_type"], row["time_signature"]
        if kind == ("train", "beat", "4-4"):
            score = read(folder / row["midi_filename"])
            if _num_bars(score) >= _SHORTEST:
                performances.append((row["style"].split("/")[0], score))
    return performances


def compose_with_drummer(performance: DrumPerformance, seed: int, band: int, song: int) -> Score:
    """Return a song as `compose_band` does, with a passage of real drums, or such a passage alone.

    It has at most the 24–32 bars of the song, and no bar of the drums twice.

    Args:
        seed, band, song: at least 0. The same numbers give the same music.
    """
    style, performed = performance
    band_rng = generator("drummer", seed, band)
    has_family = style in _STYLES and chance(band_rng, _FAMILY)
    family = FAMILIES[pick(band_rng, _STYLES[style])] if has_family else None
    score = compose_band(seed, band, song, family)
    rng = generator("drummer", seed, band, song)
    num_bars = min(-(-score.end // (BAR * STEP)), _num_bars(performed) - 1)
    score = score.clip(0, num_bars * BAR * STEP)
    drums = _passage(rng, performed, num_bars)
    if chance(band_rng, 0.5):
        for key, general_midi in _GENERAL_MIDI.items():
            drums["pitch"][drums["pitch"] == key] = general_midi
    loudness = _loudness(drums, num_bars)
    tracks = []
    for track in score.tracks:
        notes = drums if track.is_drum else track.notes.copy()
        if not track.is_drum and len(notes):
            cell = np.minimum(notes["onset"] // (3 * STEP), loudness.size - 1)
            change = loudness.ravel()[cell] * band_rng.uniform(0.3, 1)
            notes["velocity"] = np.clip(notes["velocity"] + change, 8, 127)
        tracks.append(replace(track, notes=notes))
    if chance(rng, _ALONE):
        tracks = [track for track in tracks if track.is_drum]
    bpm = performed.tempos["bpm"][0]
    return replace(score, tracks=tracks, tempos=np.array([(0, bpm)], TEMPO))


def _num_bars(score: Score) -> int:
    """Return the number of full bars of 4/4."""
    return int(score.end // (4 * score.ticks_per_beat))


def _passage(rng: Generator, score: Score, num_bars: int) -> NoteArray:
    """Return the drums of as many bars, from a random bar on, but not from the first.

    In the first bar drummers may come in late.
    """
    bar = 4 * score.ticks_per_beat
    first = 1 + int(rng.integers(_num_bars(score) - num_bars))
    notes = score.clip(first * bar, (first + num_bars) * bar).notes.copy()
    for name in ("onset", "duration"):
        notes[name] = notes[name] * BAR * STEP // bar
    return sort_notes(notes)


def _loudness(drums: NoteArray, num_bars: int) -> FloatArray:
    """Return how much louder than their mean the drums are, at each sixteenth. [num_bars, 16]

    It is the mean of two differences: of the bar and of the loudest note at the sixteenth. Without
    a note, it is that of the bar.
    """
    cell = np.minimum(drums["onset"] // (3 * STEP), 16 * num_bars - 1)
    loudest = np.zeros(16 * num_bars)
    np.maximum.at(loudest, cell, drums["velocity"])
    of_note = np.where(loudest, loudest, np.nan).reshape(num_bars, 16)
    of_note -= np.nanmean(of_note)
    is_played = ~np.isnan(of_note).all(axis=1)
    of_bar = np.zeros((num_bars, 1))
    of_bar[is_played] = np.nanmean(of_note[is_played], axis=1, keepdims=True)
    return np.where(np.isnan(of_note), of_bar, (of_bar + of_note) / 2)
