"""The order of voices in a chorale's tokens: together, or some a bar ahead of the others."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from musicgen.errors import ParameterError, UserError
from musicgen.midi import Score
from musicgen.package_data import CHORALE_MODEL
from musicgen.tokenization.augmentation import Rng
from musicgen.tokenization.chorale.frames import (
    NUM_VOICES,
    STEPS_PER_BEAT,
    VOICES,
    find_voice,
    voices_of_tracks,
)
from musicgen.tokenization.chorale.grammar import LEAD, LEADING, Arrangements
from musicgen.tokenization.codec import Codec
from musicgen.tokenization.part_order import ConditioningTokens, PartOrder
from musicgen.tokenization.quantization import to_grid
from musicgen.tokenization.vocabulary import IntArray, within

_SOPRANO_PROBABILITY = 0.5  # of the crops in which voices lead; in the others any set leads


class ChoralePartOrder(PartOrder):
    """The orders of voices, see `Arrangements`.

    Args:
        codec: the tokenizer.
        lead_probability: share of the training crops in which voices are ahead of the others.
    """

    def __init__(self, codec: Codec, lead_probability: float) -> None:
        self.codec, self.lead_probability = codec, lead_probability
        self.arrangements = Arrangements(len(codec.vocabulary), codec.families)
        self._families = codec.families
        self._to_ahead = codec.families["Ahead"].start - codec.families["Pitch"].start

    def frames(self, tokens: IntArray) -> IntArray:
        """Return the tokens of complete frames, in their musical order.

        [L] -> [num_frames, 4]; voices that are still to come have the token Empty.
        """
        tokens = self.codec.until_end(tokens)
        families = ("Pitch", "Ahead", "Silence", "Empty")
        frames = tokens[np.any([within(tokens, self._families[name]) for name in families], axis=0)]
        frames = frames - self._to_ahead * within(frames, self._families["Ahead"])
        num_frames = len(frames) // NUM_VOICES
        frames = frames[: num_frames * NUM_VOICES].reshape(num_frames, NUM_VOICES)
        if len(tokens) and tokens[0] in self._families["Lead"]:
            behind = ~self.arrangements.leading[tokens[0]]
            still_to_come = np.full((LEAD, behind.sum()), self._families["Empty"].start)
            moved = np.concatenate([frames[LEAD:, behind], still_to_come])
            frames[:, behind] = moved[:num_frames]
        return frames

    def rearrange(self, window: IntArray, rng: Rng) -> IntArray:
        if rng.random() >= self.lead_probability:
            return window
        is_soprano = rng.random() < _SOPRANO_PROBABILITY
        return self.lead(window, LEADING[0 if is_soprano else rng.integers(len(LEADING))])

    def lead(self, tokens: IntArray, voices: Sequence[bool]) -> IntArray:
        """Return the beginning of a piece, or a whole one, with some voices ahead.

        A whole piece ends with the last note of these voices; without one it stays as it is.

        Args:
            voices: whether each voice is ahead.
        """
        frames, ahead = self.frames(tokens), np.array(voices)
        pitches, is_eos = self._families["Pitch"], tokens[-1:] == self.codec.vocabulary.id("EOS")
        end = tokens[-1:][is_eos]  # empty of an incomplete piece
        if len(end):
            sounding = np.flatnonzero(within(frames[:, ahead], pitches).any(axis=1))
            if not len(sounding):
                return tokens
            frames = frames[: sounding[-1] + 1]
        frames = frames + self._to_ahead * (within(frames, pitches) & ahead)
        size = len(frames) + LEAD * len(end)
        moved = np.full((size, NUM_VOICES), self._families["Empty"].start)
        moved[: len(frames), ahead] = frames[:, ahead]
        moved[LEAD:, ~ahead] = frames[: max(0, size - LEAD), ~ahead]
        header = self._families["Lead"][LEADING.index(list(voices))]
        return np.concatenate([[header], moved.ravel(), end])

    def keep_parts(
        self, score: Score, names: Sequence[str], first: int, end: int | None
    ) -> ConditioningTokens:
        if end is not None or not names:
            return super().keep_parts(score, names, first, end)
        if not self._families["Lead"]:
            raise UserError(
                "this model has not learned keep=; take one that was trained with "
                f"tokenizer.lead_probability above 0, such as checkpoint={CHORALE_MODEL}"
            )
        kept = [find_voice(name) for name in names]
        if None in kept or len(set(kept)) == NUM_VOICES:
            expected = f"expected one to three of {', '.join(VOICES)}"
            raise ParameterError("keep", ",".join(names), expected)
        leading = [voice in kept for voice in range(NUM_VOICES)]
        roles = _voices_of_score(score, leading)
        named = [
            replace(track, name=VOICES[voice])
            for track, voice in zip(score.tracks, roles, strict=True)
            if voice is not None
        ]
        ids = self.lead(self.codec.encode(replace(score, tracks=named)), leading)
        start = int(to_grid(np.array(first), STEPS_PER_BEAT, score.ticks_per_beat))
        begin = 1 + NUM_VOICES * (LEAD + start)
        if ids[0] not in self._families["Lead"] or begin >= len(ids) - 1:
            raise UserError("nothing is left to write: the parts that are kept have ended")
        of_leading = np.resize(leading, len(ids) - 1 - begin)
        ids[begin:-1] = np.where(of_leading, ids[begin:-1], -1)
        written = np.flatnonzero(np.logical_not(leading)).tolist()
        return ConditioningTokens(ids, roles, written, start)


def _voices_of_score(score: Score, leading: Sequence[bool]) -> list[int | None]:
    """Return the voice of each track of a score; None for drums and empty tracks.

    Args:
        leading: whether each voice is kept; the score must have its notes.
    """
    tracks, kept = score.tracks, np.flatnonzero(leading).tolist()
    sung = [i for i, track in enumerate(tracks) if len(track.notes) and not track.is_drum]
    by_name = {i: find_voice(tracks[i].name) for i in sung}
    if set(kept) <= set(by_name.values()):  # other tracks, such as a piano, are no voices
        sung = [i for i in sung if by_name[i] is not None]
    if len(sung) == len(kept) and None in [by_name[i] for i in sung]:
        from_highest = sorted(sung, key=lambda i: -tracks[i].notes["pitch"].mean())
        voice_of = dict(zip(from_highest, kept, strict=True))
    else:
        voices = voices_of_tracks(
            [tracks[i].name for i in sung],
            [tracks[i].notes["pitch"] for i in sung],
            [tracks[i].notes["onset"] for i in sung],
        )
        if voices is None:
            raise UserError(
                f"{len(sung)} tracks that are not voices: give a file with a track for each "
                f"of up to {NUM_VOICES} voices, without chords"
            )
        voice_of = dict(zip(sung, voices, strict=True))
    if missing := [VOICES[voice].lower() for voice in kept if voice not in voice_of.values()]:
        raise UserError(f"no note of {' or '.join(missing)}, which is to be kept")
    return [voice_of.get(i) for i in range(len(tracks))]
