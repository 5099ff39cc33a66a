"""Pieces of which some parts are kept and the others are written, or of which bars are filled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from musicgen.errors import UserError, errors_name
from musicgen.generation.continuation import Continuation, KeepPrompt, MidiFile
from musicgen.generation.prompts import Prompt, on_grid, with_frame
from musicgen.generation.request import GenerationRequest
from musicgen.generation.selection import Selection
from musicgen.midi import NoteArray, Score, Track, dumps, sort_notes
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
        rewritten: which of the piece's own parts lose their notes there.
        kept: the decoded piece without the notes that are written anew.
        num_written: returns how many tokens of the written piece [L] are new in the gaps.
        own: the piece in its own ticks, with its file's parts as tracks.
        early: ticks by which a note of it may precede the grid step that it is on.
        velocity: of the notes that are written; None: as they are written.
        roles: the decoded track of each of these tracks, None for others.
        data: its MIDI file; None if there is none.
    """

    gaps: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int], ...]
    written: tuple[bool, ...]
    rewritten: tuple[bool, ...]
    kept: Score
    num_written: Callable[[IntArray], int]
    own: Score
    early: int
    velocity: int | None
    roles: tuple[int | None, ...]
    data: bytes | None


class RewrittenPiece(Continuation):
    """A whole piece with what a model wrote in its gaps."""

    prompt: RewrittenPrompt

    @property
    def num_new_tokens(self) -> int:
        return self.prompt.num_written(self.tokens)

    @property
    def new_score(self) -> Score:
        """What was written, in the ticks and at the places of the piece."""
        prompt = self.prompt
        tempos, metres = prompt.own.tempos, prompt.own.time_signatures
        return Score(prompt.own.ticks_per_beat, self._written_tracks(), tempos, metres)

    def _written_tracks(self) -> list[Track]:
        """Return the notes in the gaps; those that sound across an edge are cut there."""
        prompt, beat = self.prompt, self.prompt.own.ticks_per_beat
        tracks = []
        for voice, track in enumerate(self.score.tracks):
            known = set(map(_key, prompt.kept.tracks[voice].notes))
            notes = track.notes[[_key(note) not in known for note in track.notes]]
            onset = to_grid(notes["onset"], beat, TICKS_PER_BEAT)
            end = to_grid(notes["onset"] + notes["duration"], beat, TICKS_PER_BEAT)
            pieces = [notes[:0]]
            for first, last in prompt.spans if prompt.written[voice] else ():
                notes["onset"] = np.maximum(onset, first)
                stop = np.minimum(end, last)
                for early, pitch in self._early(voice, last):
                    stop = np.where(notes["pitch"] == pitch, np.minimum(stop, early), stop)
                notes["duration"] = stop - notes["onset"]
                pieces.append(notes[notes["duration"] > 0])
            notes = sort_notes(np.concatenate(pieces))
            if prompt.velocity is not None:
                notes["velocity"] = prompt.velocity
            tracks.append(replace(track, notes=notes))
        return tracks

    def _early(self, voice: int, tick: int) -> Iterator[tuple[int, int]]:
        """Yield onset and pitch of notes of the piece on a tick's grid step, but before it."""
        for track, role in zip(self.prompt.own.tracks, self.prompt.roles, strict=True):
            if role == voice:
                onset, pitch = track.notes["onset"], track.notes["pitch"]
                found = (onset < tick) & (onset + self.prompt.early >= tick)
                yield from zip(onset[found].tolist(), pitch[found].tolist(), strict=True)

    def midi_file(self, keep_prompt: KeepPrompt = "original") -> MidiFile:
        """Return the piece as a MIDI file: the prompt's own, with other notes in the gaps.

        Args:
            keep_prompt: `tokens` writes it as the model saw it.
        """
        prompt, new = self.prompt, self.new_score
        if keep_prompt == "tokens" or prompt.data is None:
            return MidiFile(dumps(self.score), 0, self._notice(new), new)
        replaced = dict[int, Sequence[tuple[int, int]]]()
        notes, added = dict[int, NoteArray](), list[Track]()
        for voice, track in enumerate(new.tracks):
            pairs = enumerate(zip(prompt.roles, prompt.rewritten, strict=True))
            parts = [i for i, (role, rewritten) in pairs if rewritten and role == voice]
            if prompt.written[voice] and parts:
                replaced |= dict.fromkeys(parts, prompt.spans)
                chosen = max(parts, key=self._num_notes)
                notes |= dict.fromkeys(parts, track.notes[:0]) | {chosen: track.notes}
            elif len(track.notes):
                added.append(track)
        data = replace_notes(prompt.data, replaced, notes, added, early=prompt.early)
        return MidiFile(data, 0, self._notice(new), new)

    def _notice(self, new: Score) -> str:
        """Say which parts have lost all their notes and got none."""
        prompt = self.prompt
        tracks = zip(prompt.piece.tracks, prompt.kept.tracks, new.tracks, strict=True)
        empty = ", ".join(
            track.name
            for own, kept, track in tracks
            if len(own.notes) > len(kept.notes) and not len(track.notes)
        )
        return empty and f"{prompt.name}, sample {self.sample}: no note of {empty} was written"

    def _num_notes(self, part: int) -> tuple[int, int]:
        """Return how many notes a part has in the gaps, and in all."""
        onsets = self.prompt.own.tracks[part].notes["onset"]
        inside = sum(int(((onsets >= a) & (onsets < b)).sum()) for a, b in self.prompt.spans)
        return inside, len(onsets)


def _key(note: Any) -> tuple[int, int, int]:
    return int(note["onset"]), int(note["pitch"]), int(note["duration"])


def rewritten_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    request: GenerationRequest,
    *,
    prompt_bars: int | None,
    data: bytes | None,
) -> RewrittenPrompt:
    """Return a piece with the gaps that a request leaves in it.

    Args:
        prompt_bars: first bars in which `keep` keeps the other parts, too; None: none.
        data: the MIDI file that the score was read from.

    Raises:
        UserError: the piece has no such parts or bars, or the model cannot write them.
    """
    check_int("prompt_bars", prompt_bars, 0, none_means="none of the parts to be written")
    if data is not None:
        score = replace(score, tracks=[part.track for part in read_parts(data)])
    with errors_name(name):
        return _rewritten_prompt(tokenizer, score, name, request, prompt_bars or 0, data)


def _choose_parts(
    tokenizer: Tokenizer, score: Score, request: GenerationRequest, decoded: Sequence[Track]
) -> tuple[list[int | None], list[bool], list[bool]]:
    """Return the role of each part and whether it is written anew; and which roles are written."""
    named = request.keep or request.tracks
    voices, parts = _find_parts(named, decoded, score.tracks)
    roles = tokenizer.roles(score, sorted(voices) if request.keep else ())
    chosen = [role is not None and (i in parts or role in voices) for i, role in enumerate(roles)]
    if request.keep and not any(chosen):
        raise UserError(f"no note of {', '.join(request.keep)}, which is to be kept")
    rewritten = [
        role is not None and (not named or is_chosen == bool(request.tracks))
        for role, is_chosen in zip(roles, chosen, strict=True)
    ]
    new = {role for role, each in zip(roles, rewritten, strict=True) if each}
    if request.tracks:
        new |= voices
    else:
        new |= {i for i in range(len(decoded)) if i not in roles or len(decoded) == 1}
    if not new:
        raise UserError("all parts are kept, so that none is left to write")
    return roles, rewritten, [voice in new for voice in range(len(decoded))]


def _spans(score: Score, request: GenerationRequest, prompt_bars: int) -> list[tuple[int, int]]:
    """Return where each part of a piece begins and ends that is to be written, in ticks."""
    bars = score.bar_starts().tolist()
    metre = score.metre_at(bars[-1])
    bar = score.ticks_per_beat * 4 * metre.numerator // metre.denominator
    edges = [*bars, bars[-1] + bar]
    if not request.fill:
        return [(edges[min(prompt_bars, len(bars))], _END)]
    if request.fill[-1][1] > len(bars):
        raise UserError(f"fill: the piece has {len(bars)} bars")
    return [(edges[first - 1], edges[last]) for first, last in request.fill]


def _rewritten_prompt(
    tokenizer: Tokenizer,
    score: Score,
    name: str,
    request: GenerationRequest,
    prompt_bars: int,
    data: bytes | None,
) -> RewrittenPrompt:
    decoded = tokenizer.decode(tokenizer.start_tokens()).tracks
    roles, rewritten, written = _choose_parts(tokenizer, score, request, decoded)
    spans = _spans(score, request, prompt_bars)

    def grid(tick: int) -> int:
        return round(tick * tokenizer.steps_per_beat / score.ticks_per_beat)

    def encode(tracks: Sequence[Track]) -> IntArray:
        named = [
            replace(track, name=decoded[role].name)
            for track, role in zip(tracks, roles, strict=True)
            if role is not None
        ]
        return tokenizer.encode(replace(score, tracks=named))

    def in_gaps(tokens: IntArray) -> Counter[tuple[int, int]]:
        pairs = zip(tokenizer.times(tokens).tolist(), tokens.tolist(), strict=True)
        return Counter(pair for pair in pairs if any(a <= pair[0] < b for a, b in gaps))

    whole = encode(score.tracks)
    end, early = tokenizer.end_time(whole), score.ticks_per_beat // (2 * tokenizer.steps_per_beat)
    gaps = tuple((grid(first), grid(last) if last < _END else end) for first, last in spans)
    emptied = [
        without_notes(track, spans, early) if each else track
        for track, each in zip(score.tracks, rewritten, strict=True)
    ]
    tokens = encode(emptied)
    if not all(start < stop for start, stop in gaps):
        raise UserError("nothing is left to write there: the piece has ended")
    bar_length = tokenizer.bar_length(score)
    for gap in gaps:
        tokenizer.gaps(tokens, *gap, written, bar_length)  # refuses what it cannot write
    piece = with_frame(tokenizer.decode(whole), on_grid(tokenizer, score))
    return RewrittenPrompt(
        name=name,
        tokens=tokens,
        end_time=0,
        end_tick=0,
        bar_length=bar_length,
        score=piece,
        piece=piece,
        summary=EncodingSummary(),
        gaps=gaps,
        spans=tuple(spans),
        written=tuple(written),
        rewritten=tuple(rewritten),
        kept=tokenizer.decode(tokens),
        num_written=lambda written: (in_gaps(written) - in_gaps(tokens)).total(),
        own=score,
        early=early,
        velocity=None
        if tokenizer.families.get("Velocity")
        else int(np.median(score.notes["velocity"])),
        roles=tuple(roles),
        data=data,
    )


def without_notes(track: Track, spans: Sequence[tuple[int, int]], early: int = 0) -> Track:
    """Return a track without the notes that begin in some spans of ticks, as `replace_notes`."""
    notes = track.notes.copy()
    for first, last in spans:
        onset = notes["onset"]
        begins = onset + early
        sounds = (begins < first) & (onset + notes["duration"] > first)
        notes["duration"][sounds] = first - onset[sounds]
        notes = notes[(begins < first) | (begins >= last)]
    return replace(track, notes=notes)


def _find_parts(
    names: Sequence[str], decoded: Sequence[Track], tracks: Sequence[Track]
) -> tuple[set[int], set[int]]:
    """Return the decoded tracks, and before them the piece's own, that have some names."""
    voices, parts = set[int](), set[int]()
    for name in names:
        wanted = name.strip().lower()
        found = {i for i, track in enumerate(decoded) if track.name.lower() == wanted}
        own = {i for i, track in enumerate(tracks) if track.name.lower() == wanted}
        if not found and not own:
            known = {track.name.lower(): track.name for track in (*decoded, *tracks) if track.name}
            raise UserError(f"no part {name}; expected some of {', '.join(known.values())}")
        parts |= own
        voices |= set() if own else found
    return voices, parts


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
