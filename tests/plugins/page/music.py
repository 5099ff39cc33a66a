"""Tokenizers and pieces on which the page and Python are compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.composer import FAMILIES, compose_groove, compose_pop
from musicgen.midi import TEMPO, KeySignature, Score, TimeSignature
from musicgen.plugins.page.tables import tokenizer_tables
from musicgen.tokenization import REMI, Chorale, Songs
from musicgen.tokenization.voices import SILENCE, score_of_frames
from musicgen.tokenization.whole_bars import TIME_SIGNATURES
from tests.plugins.page.node import run_worker
from tests.tokenizers import frozen_tokenizers

SEED = 4242  # of pieces that no model was trained on
BAND = {
    "parts": [
        {"name": "Bass", "program": 33},
        {"name": "Kit", "is_drum": True},
        {"name": "Keys", "words": ["pia"], "takes": [[0, 31], [40, 127]]},
    ],
    "time_signatures": ["4/4", "3/8"],
    "velocity_bins": [20, 120, 10],
    "tempo_bins": None,
    "chords": False,
    "max_bars": 25,
}
SINGERS = [
    [("Singstimme", 0), ("Klavier rechts", 0), ("Bass Guitar", 4), ("Bass", 52)],
    [("Lead Guitar", 0), ("unpiano", 70), ("PIANO_2", 70), ("", 33)],
    [("Flöte", 0), ("T\u00e9nor piano", 0), ("Bass", 1), ("\u00e9voc", 128 - 1)],
    [("violin", 40), ("violin", 40)],
    [("Violin 2", 0), ("", 48), ("Vc.", 0)],
    [("", 0), ("", 0), ("", 0), ("", 0)],
    [("cellos", 0), ("VIOLA", 0)],
]
# Upbeats of a quarter, of an eighth and of a half; bars that the next metre cuts short.
UPBEATS = [
    [(0, 1, 4), (480, 4, 4)],
    [(240, 4, 4)],
    [(0, 2, 4), (960, 3, 4), (5280, 5, 4), (9120, 13, 8), (12000, 4, 4)],
]
TOKENIZERS = {
    "remi": REMI(),
    "remi metres": REMI(time_signatures=TIME_SIGNATURES, max_bars=20, chords=False),
    "remi plain": REMI(tempo_bins=None, positions_per_beat=6),
    "songs": frozen_tokenizers()["songs"],
    "songs of a band": Songs(**BAND),
    "songs with phrases": Songs(**frozen_tokenizers()["songs"].settings() | {"phrases": True}),
    "songs of a quartet": frozen_tokenizers()["quartet"],
    "chorale": Chorale(lead_probability=0.5),
    "chorale short": Chorale(max_beats=12),
    "chorale in keys": Chorale(lead_probability=0.5, keys=True),
}


def run_tokenizer(folder: Path, name: str, body: str, **data: Any) -> Any:
    """Return what a function of data, in the scope of a tokenizer of the page, returns."""
    body = f"const tokenizer = new TOKENIZERS[data.tables.name](data.tables); {body}"
    return run_worker(folder, data | {"tables": tokenizer_tables(TOKENIZERS[name])}, body)


def with_upbeats(scores: Sequence[Score]) -> list[Score]:
    """Return scores without chords whose first bars are shorter than the next."""
    metres = [[TimeSignature(*each) for each in rows] for rows in UPBEATS]
    pairs = zip(scores, metres, strict=False)
    return [replace(each, time_signatures=rows, markers=[]) for each, rows in pairs]


def pieces(kind: str) -> list[Score]:
    if kind.startswith("remi"):
        songs = [compose_pop(SEED, i) for i in range(4)]
        return [*songs, *with_upbeats(songs)]
    # Chords; tracks that are voices by name, in another order, and by height; each with rests.
    rng = np.random.default_rng(0)
    frames = rng.integers(40, 90, (8, 24, 4)).repeat(3, axis=1)
    frames[rng.random(frames.shape) < 0.1] = SILENCE
    named, *others = map(score_of_frames, frames)
    for i, score in enumerate(others):
        score.tracks = [replace(track, name="") for track in score.tracks[: 2 + i % 3]]
    if kind == "chorale in keys":
        for score, fifths in zip(others, (-3, 0, 4, -9), strict=False):
            score.key_signatures = [KeySignature(500, fifths, fifths == 4)]
    groove = compose_groove(SEED, next(iter(FAMILIES)), 0, 0)
    if kind.startswith("songs"):
        for score, names in zip(others, SINGERS, strict=False):
            for track, (name, program) in zip(score.tracks, names, strict=False):
                track.name, track.program = name, program
        others[0].key_signatures = [KeySignature(2000, -3), KeySignature(9000, 6)]
        others[1].time_signatures = [TimeSignature(0, 3, 8), TimeSignature(4320, 4, 4)]
        others[1].tempos = np.array([(0, 71.0), (2000, 93.0), (2300, 180.0)], TEMPO)
    if kind == "songs of a quartet":  # which the others do not fit
        return [*others[3:], *with_upbeats(others[3:])]
    return [groove, compose_pop(SEED, 0), named, *others, *with_upbeats(others)]


def plain(score: Score) -> dict:
    """Return a score as the page has it, in one order."""
    return {
        "ticksPerBeat": score.ticks_per_beat,
        "tracks": [sorted(map(list, track.notes.tolist())) for track in score.tracks],
        "tempos": [list(each) for each in score.tempos.tolist()],
        "signatures": [list(each) for each in score.time_signatures],
        "markers": [list(each) for each in score.markers],
    }
