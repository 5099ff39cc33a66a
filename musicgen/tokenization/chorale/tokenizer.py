"""Chorale: four voices in sixteenths, one token a voice, as models of Bach's chorales read them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import ClassVar

import numpy as np

from musicgen.errors import ParameterError, UserError
from musicgen.midi import Score, Track
from musicgen.tokenization.base import KeptParts, Losses, Rng, Tokenizer
from musicgen.tokenization.chorale.frames import (
    NUM_VOICES,
    SILENCE,
    STEPS_PER_BEAT,
    VOICES,
    find_voice,
    frames_of_score,
    score_of_frames,
    voices_of_tracks,
)
from musicgen.tokenization.chorale.grammar import LEAD, LEADING, Arrangements, ChoraleGrammar
from musicgen.tokenization.quantization import to_grid
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.validation import check_float, check_int


class Chorale(Tokenizer):
    """`BOS`, then soprano, alto, tenor and bass of each sixteenth, `EOS`.

    The layout of Huang et al. 2019 ("Music Transformer", §4.1): a piece of T sixteenths has 4 T
    tokens of voices, each a pitch or `Silence`; which voice a token belongs to and where it stands
    in the beat follow from its index alone. A note that goes on and one that is struck again are
    the same tokens, which decode to one long note. Velocity, tempo and metre are not encoded.

    Tracks named `Soprano`, `Alto`, `Tenor` and `Bass`, or up to four tracks without chords, are
    voices. The notes of other Scores are divided among four voices (`lead_voices`).

    Pieces are encoded in the order above. Training crops may be in others, see `Arrangements`, from
    which a model learns to harmonise a voice; their tokens are in the vocabulary if
    `lead_probability` is positive.

    Args:
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_transposition: training crops are shifted by up to this many semitones.
        lead_probability: share of the crops in which voices are ahead of the others: in half of
            them the soprano, in the others any of one to three voices.
    """

    name: ClassVar[str] = "chorale"
    note_families = ("Pitch", "Silence")  # one for each voice and frame, as in the literature
    steps_per_beat = STEPS_PER_BEAT
    pitches = range(21, 109)

    def __init__(
        self, *, max_beats: int = 16384, max_transposition: int = 6, lead_probability: float = 0
    ) -> None:
        check_int("max_beats", max_beats)
        check_int("max_transposition", max_transposition, 0)
        check_float("lead_probability", lead_probability, maximum=1)
        self.max_beats, self.max_transposition = max_beats, max_transposition
        self.lead_probability = lead_probability
        leads = lead_probability > 0
        families = {
            "Pitch": [f"Pitch_{pitch}" for pitch in self.pitches],
            "Silence": ["Silence"],
            "EOS": ["EOS"],
            "BOS": ["BOS"],
            "Empty": ["Empty"] * leads,
            "Ahead": [f"Ahead_{pitch}" for pitch in self.pitches] * leads,
            "Lead": ["Lead_" + "+".join(compress(VOICES, voices)) for voices in LEADING] * leads,
        }
        self.vocabulary, self.families = number_tokens(families)
        self._arrangements = Arrangements(len(self.vocabulary), self.families)
        self._to_ahead = self.families["Ahead"].start - self.families["Pitch"].start

    def grammar(self) -> ChoraleGrammar:
        return ChoraleGrammar(self.vocabulary, self.families, self.max_beats * self.steps_per_beat)

    def find_track(self, track: Track) -> int | None:
        return None if track.is_drum else find_voice(track.name)

    def encode_with_losses(self, score: Score) -> tuple[IntArray, Losses]:
        losses = Losses(score, STEPS_PER_BEAT)
        frames = frames_of_score(losses, self.pitches, self.max_beats).ravel()
        first, silence = self.families["Pitch"].start, self.vocabulary.id("Silence")
        tokens = np.where(frames == SILENCE, silence, frames - self.pitches.start + first)
        ends = [[self.vocabulary.id("BOS")], [self.vocabulary.id("EOS")]]
        return np.concatenate([ends[0], tokens, ends[1]]), losses

    def decode(self, tokens: IntArray) -> Score:
        """Return a track for each voice, also without notes; no tempo; constant velocity.

        A frame with fewer than four voices, at the end, is left out.
        """
        frames = self._plain_frames(tokens)
        is_pitch = within(frames, self.families["Pitch"])
        pitches = frames - self.families["Pitch"].start + self.pitches.start
        return score_of_frames(np.where(is_pitch, pitches, SILENCE))

    def _plain_frames(self, tokens: IntArray) -> IntArray:
        """Return the tokens of complete frames, in their musical order.

        [L] -> [num_frames, 4]; voices that are still to come have the token Empty.
        """
        tokens = self.until_end(tokens)
        families = ("Pitch", "Ahead", "Silence", "Empty")
        frames = tokens[np.any([within(tokens, self.families[name]) for name in families], axis=0)]
        frames = frames - self._to_ahead * within(frames, self.families["Ahead"])
        frames = frames[: len(frames) // NUM_VOICES * NUM_VOICES].reshape(-1, NUM_VOICES)
        header, empty = int(tokens[:1].sum()), self.families["Empty"].start
        if header in self.families["Lead"]:
            behind = ~self._arrangements.leading[header]
            coming = np.full((LEAD, behind.sum()), empty)
            frames[:, behind] = np.concatenate([frames[LEAD:, behind], coming])[: len(frames)]
        return frames

    def times(self, tokens: IntArray) -> IntArray:
        """Return the frame (sixteenth) of each id; EOS has the first after all. [L] -> [L]."""
        tokens = np.asarray(tokens)
        index = np.cumsum(tokens != self.vocabulary.pad_id) - 1
        header = np.full_like(index, tokens[:1].sum())
        return self._arrangements.times(header, index, tokens == self.vocabulary.id("EOS"))

    def crop_starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        num_frames = -(-self.num_notes(tokens) // NUM_VOICES)
        starts = np.arange(0, num_frames, bar_length)
        # At the token before the bar, in whose place a crop has its BOS.
        return np.stack([NUM_VOICES * starts, -starts], axis=1)

    def _crop(
        self, tokens: IntArray, starts: IntArray, length: int, bar_length: int, rng: Rng | None
    ) -> IntArray:
        window = super()._crop(tokens, starts, length, bar_length, rng)
        window[0] = self.vocabulary.id("BOS")
        return window

    def arrange(self, window: IntArray, rng: Rng) -> IntArray:
        if rng.random() < self.lead_probability:
            voices = LEADING[0 if rng.random() < 0.5 else rng.integers(len(LEADING))]
            window = self.lead(window, voices)
        return window

    def lead(self, tokens: IntArray, voices: Sequence[bool]) -> IntArray:
        """Return the beginning of a piece, or a whole one, with the given voices ahead.

        A whole piece ends with the last note of these voices; without one it stays as it is.
        """
        frames, ahead = self._plain_frames(tokens), np.array(voices)
        end = tokens[-1:][tokens[-1:] == self.vocabulary.id("EOS")]
        if len(end):
            sounding = np.flatnonzero(within(frames[:, ahead], self.families["Pitch"]).any(axis=1))
            if not len(sounding):
                return tokens
            frames = frames[: sounding[-1] + 1]
        frames = frames + self._to_ahead * (within(frames, self.families["Pitch"]) & ahead)
        size = len(frames) + LEAD * len(end)
        moved = np.full((size, NUM_VOICES), self.families["Empty"].start)
        moved[: len(frames), ahead] = frames[:, ahead]
        moved[LEAD:, ~ahead] = frames[: max(0, size - LEAD), ~ahead]
        header = self.families["Lead"][LEADING.index(list(voices))]
        return np.concatenate([[header], moved.ravel(), end])

    def keep_parts(
        self, score: Score, names: Sequence[str], first: int, end: int | None
    ) -> KeptParts:
        if end is not None or not names:
            return super().keep_parts(score, names, first, end)
        if not self.families["Lead"]:
            raise UserError(
                "this model has not learned keep=; take one that was trained with "
                "tokenizer.lead_probability above 0, such as checkpoint=bach-chorales"
            )
        kept = [find_voice(name) for name in names]
        if None in kept or len(set(kept)) == NUM_VOICES:
            expected = f"expected one to three of {', '.join(VOICES)}"
            raise ParameterError("keep", ",".join(names), expected)
        leading = [voice in kept for voice in range(NUM_VOICES)]
        roles = self._roles(score, leading)
        pairs = zip(score.tracks, roles, strict=True)
        named = [replace(track, name=VOICES[v]) for track, v in pairs if v is not None]
        ids = self.lead(self.encode(replace(score, tracks=named)), leading)
        start = int(to_grid(np.array(first), STEPS_PER_BEAT, score.ticks_per_beat))
        begin = 1 + NUM_VOICES * (LEAD + start)
        if ids[0] not in self.families["Lead"] or begin >= len(ids) - 1:
            raise UserError("nothing is left to write: the parts that are kept have ended")
        of_leading = np.resize(leading, len(ids) - 1 - begin)
        ids[begin:-1] = np.where(of_leading, ids[begin:-1], -1)
        return KeptParts(ids, roles, np.flatnonzero(~np.array(leading)).tolist(), start)

    def _roles(self, score: Score, leading: Sequence[bool]) -> list[int | None]:
        """Return the voice of each track of a score; drums and empty tracks are none."""
        tracks, kept = score.tracks, np.flatnonzero(leading).tolist()
        sung = [i for i, track in enumerate(tracks) if len(track.notes) and not track.is_drum]
        by_name = {i: find_voice(tracks[i].name) for i in sung}
        if {*kept} <= {*by_name.values()}:  # a piano is none of the voices
            sung = [i for i in sung if by_name[i] is not None]
        if len(sung) == len(kept) and None in [by_name[i] for i in sung]:
            from_highest = sorted(sung, key=lambda i: -tracks[i].notes["pitch"].mean())
            roles = dict(zip(from_highest, kept, strict=True))
        else:
            columns = ([tracks[i].notes[name] for i in sung] for name in ("pitch", "onset"))
            voices = voices_of_tracks([tracks[i].name for i in sung], *columns)
            if voices is None:
                raise UserError(
                    f"{len(sung)} tracks that are not voices: give a file with a track for each "
                    f"of up to {NUM_VOICES} voices, without chords"
                )
            roles = dict(zip(sung, voices, strict=True))
        if missing := [VOICES[voice].lower() for voice in kept if voice not in roles.values()]:
            raise UserError(f"no note of {' or '.join(missing)}, which is to be kept")
        return [roles.get(i) for i in range(len(tracks))]
