"""Pieces of which some parts are kept and the others are written, or of which bars are filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from musicgen.errors import UserError
from musicgen.generation.continuation import Continuation, KeepPrompt, MidiFile
from musicgen.generation.prompts import Prompt, on_grid, with_frame
from musicgen.generation.request import GenerationRequest
from musicgen.generation.selection import Selection
from musicgen.midi import NoteArray, Score, Track, dumps, pitched_notes, sort_notes
from musicgen.midi.replacement import read_parts, replace_notes
from musicgen.tokenization.base import TICKS_PER_BEAT, EncodingSummary, IntArray, Tokenizer
from musicgen.tokenization.quantization import to_grid
from musicgen.validation import check_int

_END = 2**31 - 1  # in ticks: later than all music


@dataclass(frozen=True, kw_only=True)
class RewrittenPrompt(Prompt):
    """A whole piece, parts of which are written anew; `tokens` is its encoding.

    Attributes:
        gaps: start and end of what is written, in grid steps.
        spans: the same in ticks of `own`.
        written: which of the decoded tracks are written there.
        length: tokens of the model's training crops.
        num_new_tokens: how many tokens that takes.
        own: the piece in its own ticks, with its file's parts as tracks.
        roles: the decoded track of each of these tracks, None for others.
        data: its MIDI file; None if there is none.
    """

    gaps: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int], ...]
    written: tuple[bool, ...]
    length: int
    num_new_tokens: int
    own: Score
    roles: tuple[int | None, ...]
    data: bytes | None


class RewrittenPiece(Continuation):
    """A whole piece with what a model wrote in its gaps."""

    prompt: RewrittenPrompt

    @property
    def num_new_tokens(self) -> int:
        return self.prompt.num_new_tokens

    @property
    def new_score(self) -> Score:
        """What was written, in the ticks and at the places of the piece."""
        prompt = self.prompt
        tempos, metres = prompt.own.tempos, prompt.own.time_signatures
        return Score(prompt.own.ticks_per_beat, self._written_tracks(), tempos, metres)

    def _written_tracks(self) -> list[Track]:
        """Return the notes in the gaps; those that sound across an edge are cut there."""
        prompt, beat = self.prompt, self.prompt.own.ticks_per_beat
        known = pitched_notes(prompt.own)["velocity"]
        tracks = []
        for track, is_written in zip(self.score.tracks, prompt.written, strict=True):
            notes = track.notes.copy()
            onset = to_grid(notes["onset"], beat, TICKS_PER_BEAT)
            end = to_grid(notes["onset"] + notes["duration"], beat, TICKS_PER_BEAT)
            pieces = [notes[:0]]
            for first, last in prompt.spans if is_written else ():
                notes["onset"] = np.maximum(onset, first)
                notes["duration"] = np.minimum(end, last) - notes["onset"]
                pieces.append(notes[notes["duration"] > 0])
            notes = sort_notes(np.concatenate(pieces))
            notes["velocity"] = np.median(known)
            tracks.append(replace(track, notes=notes))
        return tracks

    def midi_file(self, keep_prompt: KeepPrompt = "original") -> MidiFile:
        """Return the piece as a MIDI file: the prompt's own, with other notes in the gaps.

        Args:
            keep_prompt: `tokens` writes it as the model saw it.
        """
        prompt, new = self.prompt, self.new_score
        if keep_prompt == "tokens" or prompt.data is None:
            return MidiFile(dumps(self.score), 0, written=new)
        replaced = dict[int, Sequence[tuple[int, int]]]()
        notes, added = dict[int, NoteArray](), list[Track]()
        for voice, track in enumerate(new.tracks):
            parts = [i for i, role in enumerate(prompt.roles) if role == voice]
            if prompt.written[voice] and parts:
                replaced |= dict.fromkeys(parts, prompt.spans)
                notes |= dict.fromkeys(parts, track.notes[:0]) | {parts[0]: track.notes}
            elif len(track.notes):
                added.append(track)
        return MidiFile(replace_notes(prompt.data, replaced, notes, added), 0, written=new)


def rewritten_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    request: GenerationRequest,
    *,
    prompt_bars: int | None,
    length: int,
    data: bytes | None,
) -> RewrittenPrompt:
    """Return a piece with the gaps that a request leaves in it.

    Args:
        prompt_bars: first bars in which `keep` keeps the other parts, too; None: none.
        length: tokens of the model's training crops.
        data: the MIDI file that the score was read from.

    Raises:
        UserError: the piece has no such parts or bars, or the model cannot write them.
    """
    check_int("prompt_bars", prompt_bars, 0, none_means="none of the parts to be written")
    if data is not None:
        score = replace(score, tracks=[part.track for part in read_parts(data)])
    try:
        return _rewritten_prompt(tokenizer, score, name, request, prompt_bars or 0, length, data)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def _rewritten_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    request: GenerationRequest,
    prompt_bars: int,
    length: int,
    data: bytes | None,
) -> RewrittenPrompt:
    tokenizer.check_gaps(keep=bool(request.keep or request.tracks))
    decoded = tokenizer.decode(tokenizer.start_tokens()).tracks
    kept = [_find_part(decoded, each) for each in request.keep]
    roles = tokenizer.roles(score, kept)
    written = [not kept or voice not in kept for voice in range(len(decoded))]
    if request.tracks:
        chosen = [_find_part(decoded, each) for each in request.tracks]
        written = [voice in chosen for voice in range(len(decoded))]
    if not any(written):
        raise UserError("all parts are kept, so that none is left to write")
    bars = score.bar_starts().tolist()
    bar = score.ticks_per_beat * 4 * score.metre_at(bars[-1])[1] // score.metre_at(bars[-1])[2]
    edges = [*bars, bars[-1] + bar]
    spans = [(edges[min(prompt_bars, len(bars))], _END)]
    if request.fill:
        if request.fill[-1][1] > len(bars):
            raise UserError(f"fill: the piece has {len(bars)} bars")
        spans = [(edges[first - 1], edges[last]) for first, last in request.fill]

    def grid(tick: int) -> int:
        return round(tick * tokenizer.steps_per_beat / score.ticks_per_beat)

    def encode(tracks: Sequence[Track]) -> IntArray:
        named = [
            replace(track, name=decoded[role].name)
            for track, role in zip(tracks, roles, strict=True)
            if role is not None
        ]
        return tokenizer.encode(replace(score, tracks=named))

    whole = encode(score.tracks)
    end = int(tokenizer.times(whole)[-1])
    gaps = tuple((grid(first), min(grid(last), end)) for first, last in spans)
    emptied = [
        _without(track, spans) if role is not None and written[role] else track
        for track, role in zip(score.tracks, roles, strict=True)
    ]
    tokens = encode(emptied)
    if not all(start < stop for start, stop in gaps):
        raise UserError("nothing is left to write there: the piece has ended")
    num_new = [len(tokenizer.gap(tokens, *each, written, length).given) for each in gaps]
    if not all(num_new):
        raise UserError("nothing is left to write there: the parts that are kept have ended")
    piece = with_frame(tokenizer.decode(whole), on_grid(tokenizer, score))
    return RewrittenPrompt(
        name=name,
        tokens=tokens,
        end_time=0,
        end_tick=0,
        bar_length=tokenizer.bar_length(score),
        score=piece,
        piece=piece,
        summary=EncodingSummary(),
        gaps=gaps,
        spans=tuple(spans),
        written=tuple(written),
        length=length,
        num_new_tokens=sum(num_new),
        own=score,
        roles=tuple(roles),
        data=data,
    )


def _without(track: Track, spans: Sequence[tuple[int, int]]) -> Track:
    """Return a track as `replace_notes` leaves it, without new notes."""
    notes = track.notes.copy()
    for first, last in spans:
        onset = notes["onset"]
        sounds = (onset < first) & (onset + notes["duration"] > first)
        notes["duration"][sounds] = first - onset[sounds]
        notes = notes[(onset < first) | (onset >= last)]
    return replace(track, notes=notes)


def _find_part(decoded: Sequence[Track], name: str) -> int:
    """Return the index of the decoded track with a name."""
    names = [track.name.lower() for track in decoded]
    if name.strip().lower() not in names:
        raise UserError(f"no part {name}; expected some of {', '.join(names)}")
    return names.index(name.strip().lower())


def finished(
    prompt: Prompt,
    sample: int,
    tokens: IntArray,
    score: Score,
    selections: tuple[Selection, ...] = (),
) -> Continuation:
    """Return the continuation, or the rewritten piece, that a prompt becomes."""
    kind = RewrittenPiece if isinstance(prompt, RewrittenPrompt) else Continuation
    return kind(prompt, sample, tokens, score, selections)
