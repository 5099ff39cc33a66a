"""Chorale: four voices in sixteenths, one token a voice, as models of Bach's chorales read them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import numpy as np

from musicgen.errors import ParameterError, UserError
from musicgen.midi import Score, Track
from musicgen.midi.key import first_signature
from musicgen.package_data import CHORALE_MODEL
from musicgen.tokenization.augmentation import Crops, Rng
from musicgen.tokenization.bars import KEYS, first_key, key_index
from musicgen.tokenization.base import ConditioningTokens, Tokenizer
from musicgen.tokenization.chorale_grammar import (
    LEAD,
    LEADING,
    Arrangements,
    ChoraleGrammar,
    KeptTokens,
    LastChordOfChorale,
    NoParallels,
)
from musicgen.tokenization.closing import asked_tonic
from musicgen.tokenization.constraints import FREE, Constraint
from musicgen.tokenization.gaps import FUTURE_BARS, MARKS
from musicgen.tokenization.quantization import QuantizationReport, to_grid
from musicgen.tokenization.vocabulary import IntArray, number_tokens, within
from musicgen.tokenization.voices import (
    NUM_VOICES,
    SILENCE,
    STEPS_PER_BEAT,
    VOICES,
    find_voice,
    frames_of_score,
    score_of_frames,
    voices_of_tracks,
)
from musicgen.validation import check_bool, check_float, check_int

_FRAMES_OF_BAR = 4 * STEPS_PER_BEAT  # in training crops
_LAST_CHORD = 2 * STEPS_PER_BEAT  # frames; the median of Bach's chorales
_SOPRANO_PROBABILITY = 0.5  # of the crops in which voices lead; in the others any set leads


class Chorale(Tokenizer):
    """`BOS`, the key, then soprano, alto, tenor and bass of each sixteenth, `EOS`.

    The layout of Huang et al. 2019 ("Music Transformer", §4.1): a piece of T sixteenths has 4 T
    tokens of voices, each a pitch or `Silence`; which voice a token belongs to and where it stands
    in the beat follow from its index alone, in which the key does not count. A note that goes on
    and one that is struck again are the same tokens, which decode to one long note. Velocity, tempo
    and time signature are not encoded.

    Tracks named `Soprano`, `Alto`, `Tenor` and `Bass`, or up to four tracks without chords, are
    voices. The notes of other Scores are divided among four voices (`lead_voices`).

    Pieces are encoded in the order above. Training crops may be in others, see `Arrangements`: so a
    model learns to harmonise a voice. The tokens of these orders are in the vocabulary if
    `lead_probability` is positive.

    Args:
        max_beats: later onsets are dropped, notes that last longer are cut.
        max_transposition: training crops are shifted by up to this many semitones.
        lead_probability: share of the crops in which voices are ahead of the others: in half of
            them the soprano, in the others any of one to three voices.
        gap_probability: share of the crops in the order of `gaps`. The tokens of this order are in
            the vocabulary if it is positive.
        keys: whether pieces have a key, major or minor: that of the score's first signature, else
            that is found from its notes.
    """

    name: ClassVar[str] = "chorale"
    note_families = ("Pitch", "Silence")  # one per voice and frame, as in the literature
    steps_per_beat = STEPS_PER_BEAT
    pitches = range(21, 109)
    counts_all = False

    def __init__(
        self,
        *,
        max_beats: int = 16384,
        max_transposition: int = 6,
        lead_probability: float = 0,
        gap_probability: float = 0,
        keys: bool = False,
    ) -> None:
        check_int("max_beats", max_beats)
        check_int("max_transposition", max_transposition, 0)
        check_float("lead_probability", lead_probability, maximum=1)
        self.max_beats, self.max_transposition = max_beats, max_transposition
        check_float("gap_probability", gap_probability, maximum=1)
        check_bool("keys", keys)
        self.lead_probability, self.gap_probability = lead_probability, gap_probability
        self.keys = keys
        self.opening = 1 + keys  # tokens before those of voices
        families = {
            "Pitch": [f"Pitch_{pitch}" for pitch in self.pitches],
            "Silence": ["Silence"],
            "EOS": ["EOS"],
            "BOS": ["BOS"],
            "Empty": ["Empty"],
            "Ahead": [f"Ahead_{pitch}" for pitch in self.pitches],
            "Lead": ["Lead_" + "+".join(compress(VOICES, each)) for each in LEADING],
            "Gap": [f"Gap_{mark}" for mark in MARKS] if gap_probability else [],
            "Key": [f"Key_{key}" for key in KEYS] if keys else [],
        }
        if not lead_probability:
            families |= {"Empty": [], "Ahead": [], "Lead": []}
        self.vocabulary, self.families = number_tokens(families)
        self.arrangements = Arrangements(len(self.vocabulary), self.families)
        self._to_ahead = self.families["Ahead"].start - self.families["Pitch"].start

    @cached_property
    def crops(self) -> Crops:
        return _ChoraleCrops(self)

    def grammar(self) -> ChoraleGrammar:
        return ChoraleGrammar(self, self.arrangements, self.max_beats * STEPS_PER_BEAT)

    def constraints(self, request: Any, prompts: Sequence[Any]) -> list[Constraint]:
        grammar = self.grammar()
        constraints: list[Constraint] = []
        if request.piece.is_whole_piece:
            kept = [prompt.kept.conditioning.ids for prompt in prompts]
            own = [ids[self.future_length(ids) :] for ids in kept]
            own = [ids[~within(ids, self.families["Key"])] for ids in own]
            constraints.append(KeptTokens(grammar, own))
        rests = [asked_tonic(request, prompt, _LAST_CHORD) for prompt in prompts]
        if any(rest.key is not None for rest in rests):
            dominants = [
                rest.step - STEPS_PER_BEAT * (prompt.kept is None)
                for rest, prompt in zip(rests, prompts, strict=True)
            ]
            constraints.append(LastChordOfChorale(grammar, rests, self.pitches, dominants))
        if request.sampling.avoid_parallels:
            constraints.append(NoParallels(grammar))
        return constraints

    def find_track(self, track: Track) -> int | None:
        return None if track.is_drum else find_voice(track.name)

    def find_tracks(self, tracks: Sequence[Track]) -> list[int | None]:
        """Return the voice of each track: as its notes are read, or by its name without notes."""
        found = super().find_tracks(tracks)
        sung = [i for i, track in enumerate(tracks) if len(track.notes) and not track.is_drum]
        voices = _voices(tracks, sung)
        for i, voice in zip(sung, voices, strict=True) if voices else ():
            found[i] = voice
        return found

    def encode_with_report(self, score: Score) -> tuple[IntArray, QuantizationReport]:
        report = QuantizationReport(score, STEPS_PER_BEAT)
        sung = frames_of_score(report, self.pitches, self.max_beats)
        frames = sung.ravel()
        pitches = frames - self.pitches.start + self.families["Pitch"].start
        tokens = np.where(frames == SILENCE, self.vocabulary.id("Silence"), pitches)
        opening = [self.vocabulary.id("BOS")]
        if self.keys:
            keys = [key._replace(tick=0) for key in score.key_signatures[:1]]
            score = replace(score_of_frames(sung), key_signatures=keys)
            key = first_signature(score)
            opening.append(self.families["Key"][key_index(key)])
        return np.concatenate([opening, tokens, [self.vocabulary.id("EOS")]]), report

    def decode(self, tokens: IntArray) -> Score:
        """Return one track per voice, also without notes; no tempo; constant velocity.

        A frame with fewer than four voices, at the end, is left out.
        """
        frames = self.frames(tokens)
        is_pitch = within(frames, self.families["Pitch"])
        pitches = frames - self.families["Pitch"].start + self.pitches.start
        score = score_of_frames(np.where(is_pitch, pitches, SILENCE))
        return replace(score, key_signatures=first_key(tokens, self.families["Key"]))

    def index(self, tokens: IntArray) -> IntArray:
        """Return the index of each id: a key has that of the token before it. [L] -> [L]

        After what follows a gap it begins anew.
        """
        index = np.cumsum(~within(tokens, self.families["Key"])) - 1
        first = self.future_length(tokens)
        index[first:] -= first
        return index

    def times(self, tokens: IntArray) -> IntArray:
        """Return the frame (sixteenth) of each id; EOS has the first after all. [L] -> [L]."""
        tokens = np.asarray(tokens)
        if not len(tokens):
            return np.empty(0, np.int64)
        if first := self.future_length(tokens):
            rest = tokens[first:]
            delay = self.arrangements.delay[rest[:1]].sum()
            end = -(-(len(rest) - self.opening) // NUM_VOICES) - delay  # rounded up
            future = np.maximum(np.arange(first - 1) - 1, 0) // NUM_VOICES
            return np.concatenate([end + future, [0], self.times(rest)])
        counts = (tokens != self.vocabulary.pad_id) & ~within(tokens, self.families["Key"])
        index = np.cumsum(counts) - 1
        header, is_end = np.full_like(index, tokens[0]), tokens == self.vocabulary.id("EOS")
        return self.arrangements.times(header, index, is_end)

    def frames(self, tokens: IntArray) -> IntArray:
        """Return the tokens of complete frames, in their musical order.

        [L] -> [num_frames, 4]; voices that are still to come have the token Empty.
        """
        tokens, families = self.until_end(tokens[self.future_length(tokens) :]), self.families
        is_opening = [within(tokens, families[name]) for name in ("BOS", "Lead", "Key")]
        frames = tokens[~np.any(is_opening, axis=0)]
        frames = frames - self._to_ahead * within(frames, families["Ahead"])
        num_frames = len(frames) // NUM_VOICES
        frames = frames[: num_frames * NUM_VOICES].reshape(num_frames, NUM_VOICES)
        if len(tokens) and tokens[0] in families["Lead"]:
            behind = ~self.arrangements.leading[tokens[0]]
            still_to_come = np.full((LEAD, behind.sum()), families["Empty"].start)
            moved = np.concatenate([frames[LEAD:, behind], still_to_come])
            frames[:, behind] = moved[:num_frames]
        return frames

    def rearrange(self, window: IntArray, rng: Rng) -> IntArray:
        leading = None
        if rng.random() < self.lead_probability:
            is_soprano = rng.random() < _SOPRANO_PROBABILITY
            leading = LEADING[0 if is_soprano else rng.integers(len(LEADING))]
        if self.gap_probability and rng.random() < self.gap_probability:
            frames = self.frames(window)[: -1 - LEAD]  # so that the crop is no longer
            bars = min(FUTURE_BARS, len(frames) // _FRAMES_OF_BAR - 1)
            if bars > 0:
                gap_end = len(frames) - _FRAMES_OF_BAR * int(rng.integers(1, bars + 1))
                opening = window[: self.opening]
                return self._with_future(opening, frames, gap_end, len(frames), leading)
        return window if leading is None else self.lead(window, leading)

    def _with_future(
        self,
        opening: IntArray,
        frames: IntArray,
        gap_end: int,
        future_end: int,
        leading: Sequence[bool] | None,
    ) -> IntArray:
        """Return frames [T, 4] up to the end of a gap in the order of `gaps`: the future first.

        Args:
            opening: the tokens before them.
            leading: whether each voice is ahead; None: none is.
        """
        marks = self.families["Gap"]
        ahead = 0 if leading is None else LEAD
        missing = np.full(
            (max(0, gap_end + ahead - len(frames)), NUM_VOICES), self.families["Silence"].start
        )
        before = np.concatenate([frames, missing])[: gap_end + ahead]
        rest = np.concatenate([opening, before.ravel()])
        if leading is not None:
            rest = self.lead(rest, leading)
        future = frames[gap_end:future_end].ravel()
        if not marks or not len(future):
            return rest
        return np.concatenate([marks[:1], future, marks[1:], rest])

    def lead(self, tokens: IntArray, voices: Sequence[bool]) -> IntArray:
        """Return the beginning of a piece, or a whole one, with some voices ahead.

        A whole piece ends with the last note of these voices; without one it stays as it is.

        Args:
            voices: whether each voice is ahead.
        """
        frames, ahead = self.frames(tokens), np.array(voices)
        pitches, is_eos = self.families["Pitch"], tokens[-1:] == self.vocabulary.id("EOS")
        end = tokens[-1:][is_eos]  # empty of an incomplete piece
        if len(end):
            sounding = np.flatnonzero(within(frames[:, ahead], pitches).any(axis=1))
            if not len(sounding):
                return tokens
            frames = frames[: sounding[-1] + 1]
        frames = frames + self._to_ahead * (within(frames, pitches) & ahead)
        size = len(frames) + LEAD * len(end)
        moved = np.full((size, NUM_VOICES), self.families["Empty"].start)
        moved[: len(frames), ahead] = frames[:, ahead]
        moved[LEAD:, ~ahead] = frames[: max(0, size - LEAD), ~ahead]
        header = self.families["Lead"][LEADING.index(list(voices))]
        return np.concatenate([[header], tokens[1 : self.opening], moved.ravel(), end])

    def keep_parts(
        self,
        score: Score,
        keep: Sequence[str],
        first: int,
        end: int | None,
        write: Sequence[str] = (),
    ) -> ConditioningTokens:
        if end is not None and not self.families["Gap"]:
            raise UserError(
                "this model has not learned bars in fill= and rewrite=; take one that was trained "
                "with tokenizer.gap_probability above 0"
            )
        if end is None and not self.families["Lead"]:
            raise UserError(
                "this model has not learned keep=; take one that was trained with "
                f"tokenizer.lead_probability above 0, such as checkpoint={CHORALE_MODEL}"
            )
        leading = self._leading(keep, write)
        roles = _voices_of_score(score, leading)
        tracks = [
            replace(track, name=VOICES[voice])
            for track, voice in zip(score.tracks, roles, strict=True)
            if voice is not None
        ]
        tokens = self.encode(replace(score, tracks=tracks))
        written = np.flatnonzero(np.logical_not(leading)).tolist()
        lines = np.array([first, end or 0])
        start, stop = to_grid(lines, STEPS_PER_BEAT, score.ticks_per_beat).tolist()
        if end is None:
            ids = self.lead(tokens, leading)
            size = len(ids) - 1  # without EOS
        else:
            future_end = stop + FUTURE_BARS * self.bar_length(score)
            order = leading if any(leading) else None
            opening = tokens[: self.opening]
            ids = self._with_future(opening, self.frames(tokens), stop, future_end, order)
            size = len(ids)
        begin = self.future_length(ids) + self.opening + NUM_VOICES * start
        begin += NUM_VOICES * LEAD * any(leading)
        if begin >= size or (end is None and ids[0] not in self.families["Lead"]):
            raise UserError(
                "nothing is left to write: the kept parts have ended; give fewer prompt_bars"
            )
        ids[begin:size] = np.where(np.resize(leading, size - begin), ids[begin:size], FREE)
        gap_end = None if end is None else stop
        return ConditioningTokens(ids, roles, written, start, gap_end=gap_end)

    def _leading(self, keep: Sequence[str], write: Sequence[str]) -> list[bool]:
        """Return whether each voice is kept.

        Raises:
            ParameterError: these are no voices, or all of them.
        """
        named = {find_voice(name) for name in write or keep}
        if None in named or len(named) == NUM_VOICES or not (self.families["Lead"] or not named):
            expected = f"expected one to three of {', '.join(VOICES)}"
            setting = "fill" if write else "keep"
            raise ParameterError(setting, ",".join(write or keep), expected)
        return [(voice in named) != bool(write) for voice in range(NUM_VOICES)]


def _voices_of_score(score: Score, leading: Sequence[bool]) -> list[int | None]:
    """Return the voice of each track of a score; None for drums and empty tracks.

    Args:
        leading: whether each voice is kept; the score must have its notes.
    """
    tracks, kept = score.tracks, np.flatnonzero(leading).tolist()
    sung = [i for i, track in enumerate(tracks) if len(track.notes) and not track.is_drum]
    by_name = {i: find_voice(tracks[i].name) for i in sung}
    if set(kept) <= set(by_name.values()):  # other tracks, such as a piano, are no voices
        sung = [i for i in sung if by_name[i] is not None] or sung
    if len(sung) == len(kept) and None in [by_name[i] for i in sung]:
        from_highest = sorted(sung, key=lambda i: -tracks[i].notes["pitch"].mean())
        voice_of = dict(zip(from_highest, kept, strict=True))
    else:
        if (voices := _voices(tracks, sung)) is None:
            raise UserError(
                f"{len(sung)} tracks that are not voices: give a file with a track for each "
                f"of up to {NUM_VOICES} voices, without chords"
            )
        voice_of = dict(zip(sung, voices, strict=True))
    if missing := [VOICES[voice].lower() for voice in kept if voice not in voice_of.values()]:
        raise UserError(f"no note of {' or '.join(missing)}, which is to be kept")
    return [voice_of.get(i) for i in range(len(tracks))]


def _voices(tracks: Sequence[Track], sung: Sequence[int]) -> list[int] | None:
    """Return the voices of the tracks at some indices, see `voices_of_tracks`."""
    names = [tracks[i].name for i in sung]
    pitches, onsets = ([tracks[i].notes[x] for i in sung] for x in ("pitch", "onset"))
    return voices_of_tracks(names, pitches, onsets)


class _ChoraleCrops(Crops):
    """Crops of frames: BOS and the key stand in the place of the tokens before the bar."""

    def __init__(self, tokenizer: Chorale) -> None:
        self.tokenizer = tokenizer

    def starts(self, tokens: IntArray, *, bar_length: int) -> IntArray:
        num_frames = -(-self.tokenizer.num_notes(tokens) // NUM_VOICES)  # rounded up
        starts = np.arange(0, num_frames, bar_length)
        return np.stack([NUM_VOICES * starts, -starts], axis=1)

    def crop(self, tokens: IntArray, starts: IntArray, length: int) -> IntArray:
        window = super().crop(tokens, starts, length)
        opening = tokens[: min(self.tokenizer.opening, length)]
        window[: len(opening)] = opening
        return window
