"""Chorale: four voices in sixteenths, one token a voice, as models of Bach's chorales read them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from musicgen.midi import Score, Track
from musicgen.tokenization.base import Losses, Rng, Tokenizer
from musicgen.tokenization.chorale.frames import (
    NUM_VOICES,
    SILENCE,
    STEPS_PER_BEAT,
    find_voice,
    frames_of_score,
    score_of_frames,
)
from musicgen.tokenization.chorale.grammar import ChoraleGrammar
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.validation import check_int

PITCHES = range(21, 109)


class Chorale(Tokenizer):
    """`BOS`, then soprano, alto, tenor and bass of each sixteenth, `EOS`.

    The layout of Huang et al. 2019 ("Music Transformer", §4.1): a piece of T sixteenths has 4 T
    tokens of voices, each a pitch or `Silence`; which voice a token belongs to and where it stands
    in the beat follow from its index alone. A note that goes on and one that is struck again are
    the same tokens, which decode to one long note. Velocity, tempo and metre are not encoded.

    Tracks named `Soprano`, `Alto`, `Tenor` and `Bass`, or up to four tracks without chords, are
    voices. The notes of other Scores are divided among four voices (`lead_voices`).

    Args:
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_transposition: training crops are shifted by up to this many semitones.
    """

    name: ClassVar[str] = "chorale"
    note_families = ("Pitch", "Silence")  # one for each voice and frame, as in the literature
    steps_per_beat = STEPS_PER_BEAT

    def __init__(self, *, max_beats: int = 16384, max_transposition: int = 6) -> None:
        check_int("max_beats", max_beats)
        check_int("max_transposition", max_transposition, 0)
        self.max_beats, self.max_transposition = max_beats, max_transposition
        families = {
            "Pitch": [f"Pitch_{pitch}" for pitch in PITCHES],
            "Silence": ["Silence"],
            "EOS": ["EOS"],
            "BOS": ["BOS"],
        }
        self.vocabulary, self.families = number_tokens(families)

    def settings(self) -> dict[str, Any]:
        return {"max_beats": self.max_beats, "max_transposition": self.max_transposition}

    def grammar(self) -> ChoraleGrammar:
        limit = self.max_beats * self.steps_per_beat
        return ChoraleGrammar(self.vocabulary, self.families, limit)

    def find_track(self, track: Track) -> int | None:
        return None if track.is_drum else find_voice(track.name)

    def encode_with_losses(self, score: Score) -> tuple[IntArray, Losses]:
        losses = Losses(score, STEPS_PER_BEAT)
        frames = frames_of_score(score, PITCHES, self.max_beats, losses).ravel()
        first, silence = self.families["Pitch"].start, self.vocabulary.id("Silence")
        tokens = np.where(frames == SILENCE, silence, frames - PITCHES.start + first)
        ends = [[self.vocabulary.id("BOS")], [self.vocabulary.id("EOS")]]
        return np.concatenate([ends[0], tokens, ends[1]]), losses

    def decode(self, tokens: IntArray) -> Score:
        """Return a track for each voice, also without notes; no tempo; constant velocity.

        A frame with fewer than four voices, at the end, is left out.
        """
        tokens = self.until_end(tokens)
        is_pitch = within(tokens, self.families["Pitch"])
        pitches = tokens - self.families["Pitch"].start + PITCHES.start
        frames = np.where(is_pitch, pitches, SILENCE)
        frames = frames[is_pitch | within(tokens, self.families["Silence"])]
        num_frames = len(frames) // NUM_VOICES
        return score_of_frames(frames[: num_frames * NUM_VOICES].reshape(-1, NUM_VOICES))

    def times(self, tokens: IntArray) -> IntArray:
        """Return the frame (sixteenth) of each id; EOS has the first after all. [L] -> [L]."""
        index = np.cumsum(np.asarray(tokens) != self.vocabulary.pad_id) - 1
        return np.maximum(index - 1, 0) // NUM_VOICES

    def bar_starts(self, tokens: IntArray, bar_length: int) -> IntArray:
        return np.arange(0, max(1, self._num_frames(tokens)), bar_length)

    def crop_starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        starts = np.arange(0, self._num_frames(tokens), bar_length)
        # At the token before the bar, in whose place a crop has its BOS.
        return np.stack([NUM_VOICES * starts, -starts], axis=1)

    def _num_frames(self, tokens: IntArray) -> int:
        """Return the number of frames of complete or incomplete ids [L], which begin with BOS."""
        return -(-self.num_notes(tokens) // NUM_VOICES)

    def _crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng | None
    ) -> IntArray:
        start = int(starts[0, 0])
        window = tokens[start : start + length].astype(np.int64)
        window[0] = self.vocabulary.id("BOS")
        return window
