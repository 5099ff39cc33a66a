"""Bands with real drummers: the performances of the Groove MIDI Dataset (Gillick et al. 2019).

The other parts are composed, and they follow the loudness of the drums.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from musicgen.composer.draw import chance, generator, pick
from musicgen.composer.groove.bands import compose_band
from musicgen.composer.groove.families import FAMILIES
from musicgen.composer.groove.patterns import BAR
from musicgen.composer.groove.song import STEP
from musicgen.errors import UserError
from musicgen.files import read_csv
from musicgen.midi import TEMPO, NoteArray, Score, read, sort_notes

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


class DrumPerformance(NamedTuple):
    """A drum performance in 4/4, and the style that its name tells."""

    style: str
    score: Score


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
                performances.append(DrumPerformance(row["style"].split("/")[0], score))
    return performances


def compose_with_drummer(performance: DrumPerformance, seed: int, band: int, song: int) -> Score:
    """Return a song as `compose_band` does, with a passage of real drums, or such a passage alone.

    It has at most the 24–32 bars of the song, and no bar of the drums twice.

    Args:
        seed, band, song: at least 0. The same numbers give the same music.
    """
    band_rng = generator("drummer", seed, band)
    has_family = performance.style in _STYLES and chance(band_rng, _FAMILY)
    family = FAMILIES[pick(band_rng, _STYLES[performance.style])] if has_family else None
    score = compose_band(seed, band, song, family)
    rng = generator("drummer", seed, band, song)
    num_bars = min(-(-score.end // (BAR * STEP)), _num_bars(performance.score) - 1)
    score = score.clip(0, num_bars * BAR * STEP)
    drums = _passage(rng, performance.score, num_bars)
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
    bpm = performance.score.tempos["bpm"][0]
    return replace(score, tracks=tracks, tempos=np.array([(0, bpm)], TEMPO))


def _num_bars(score: Score) -> int:
    """Return the number of full bars of 4/4."""
    return int(score.end // (4 * score.ticks_per_beat))


def _passage(rng: np.random.Generator, score: Score, num_bars: int) -> NoteArray:
    """Return the drums of as many bars, from a random bar on, but not from the first.

    In the first bar drummers may come in late.
    """
    bar = 4 * score.ticks_per_beat
    first = 1 + int(rng.integers(_num_bars(score) - num_bars))
    notes = score.clip(first * bar, (first + num_bars) * bar).notes.copy()
    for name in ("onset", "duration"):
        notes[name] = notes[name] * BAR * STEP // bar
    return sort_notes(notes)


def _loudness(drums: NoteArray, num_bars: int) -> NDArray[np.float64]:
    """Return how much louder than their mean the drums are, at each sixteenth. [num_bars, 16]

    It is the mean of the bar's and of the loudest note's difference; the bar's where there is none.
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
