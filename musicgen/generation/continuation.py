"""Continuations: prompts with what a model added to them, as scores and as MIDI files."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.generation.prompts import Prompt, playing
from musicgen.midi import TICKS_PER_BEAT, NoteArray, Score, dumps, extend, loads
from musicgen.midi.audio import Soundfont
from musicgen.midi.extension import find_parts
from musicgen.midi.io import to_library
from musicgen.midi.replacement import replace_notes
from musicgen.midi.score import sort_notes
from musicgen.text import pluralize
from musicgen.tokenization.part_order import KeptParts
from musicgen.tokenization.quantization import relocate, to_grid
from musicgen.validation import check_choice

SPARSE = 0.1  # of the prompt's notes a bar: fewer are next to none
KeepPrompt = Literal["original", "tokens"]


@dataclass(frozen=True, repr=False)
class Continuation:
    """A prompt with a continuation: `tokens` [L] and `score` hold both, as the model sees them.

    A notebook shows the piano roll and a player.

    Attributes:
        bars: how many were added.
    """

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    score: Score
    bars: int

    def __repr__(self) -> str:
        notes = pluralize(self.new_score.num_notes, "notes")
        return (
            f"Continuation({self.prompt.name!r}, sample {self.sample}: {notes} in "
            f"{pluralize(self.num_new_tokens, 'new tokens')})"
        )

    def _repr_html_(self) -> str:
        from musicgen.report import ReportPiece, render_report  # matplotlib takes a while

        prompt, given = self.prompt, self.prompt.score
        piece = ReportPiece(prompt.name, self.score, prompt.end_tick, None, {}, kept=given)
        page = render_report(title=prompt.name, pieces=[piece], metadata={})
        frame = 'style="width: 100%; height: 40em; border: 0"'
        return f'<iframe srcdoc="{html.escape(page)}" {frame}></iframe>'

    @property
    def num_new_tokens(self) -> int:
        prompt, num_added = self.prompt, len(self.tokens) - len(self.prompt.tokens)
        num_given = int((prompt.given[len(prompt.tokens) :] >= 0).sum())
        # The bar behind those of parts that are given ends the piece, and is not added.
        return num_added - num_given + bool(prompt.kept and prompt.kept.stop is not None)

    @property
    def new_score(self) -> Score:
        """The continuation alone, starting at tick 0; without the parts that were given."""
        new = self.score.clip(self.prompt.end_tick, self.score.end + 1)
        if self.prompt.kept is not None:
            for index, track in enumerate(new.tracks):
                track.notes = track.notes[: None if index in self.prompt.kept.written else 0]
        return new

    @property
    def notice(self) -> str:
        """One line if it has next to no notes, or none in some parts; empty otherwise."""
        prompt, new, score = self.prompt, self.new_score, self.score
        where = f"{prompt.name}, continuation {self.sample + 1}"
        if prompt.kept is None and prompt.end_time:
            per_bar = prompt.score.num_notes * prompt.bar_length / prompt.end_time
            if new.num_notes < SPARSE * per_bar * self.bars:
                count = f"{pluralize(new.num_notes, 'notes')} in {pluralize(self.bars, 'bars')}"
                why = "which is probably unlike the music that the model learned; try another model"
                return f"{where}: {count}, after {per_bar:.3g} a bar in the prompt, {why}"
        expected = playing(prompt.score)
        if prompt.kept is not None:  # those to be written, but what rests here in the piece
            here = prompt.piece.clip(prompt.end_tick, score.end + 1)
            resting = {*playing(prompt.piece)} - {*playing(here)}
            expected = [i for i in prompt.kept.written if i not in resting]
        still = [score.tracks[i] for i in expected if not len(new.tracks[i].notes)]
        # A note from before may go on for a bar, or to the end.
        held = max(prompt.end_tick + 1, min(prompt.end_tick + 4 * TICKS_PER_BEAT, score.end))
        silent = [track.name for track in still if replace(score, tracks=[track]).end < held]
        if not silent and (new.num_notes or expected):
            return ""
        notice = f"{where}: no notes{' for ' * bool(silent)}{', '.join(silent)}"
        is_known = prompt.kept is not None and {*prompt.written} & {*playing(prompt.piece)}
        if is_known and prompt.span == (0, np.inf):
            notice += "; prompt_bars=8 keeps first bars of theirs, to go on from"
        return notice

    def midi_file(self, keep_prompt: KeepPrompt = "original") -> tuple[bytes, int, str]:
        """Return the piece as a MIDI file, and its tick at which the continuation begins.

        Args:
            keep_prompt: `original` appends the continuation to the file that the prompt was read
                from, see `musicgen.midi.extend`, or puts the written parts into it, see
                `replace_notes`; a prompt without a file, and every prompt with `tokens`, is
                written as the model saw it.

        Returns:
            The file's bytes, the tick, and one line if the prompt's own file could not be kept.
        """
        check_choice("keep_prompt", keep_prompt, get_args(KeepPrompt))
        prompt, notice = self.prompt, ""
        score, begin = self.score, prompt.end_tick
        is_own = keep_prompt == "original"
        if is_own and prompt.kept and (untouched := prompt.untouched):
            score, begin = self._with_kept(prompt.kept, untouched), prompt.file_end
        if is_own and prompt.data is not None:
            try:
                data = self._in_file(prompt.data, score)
                loads(data)
                return data, prompt.file_end, ""
            except UserError as error:
                notice = f"{prompt.name}: written as the model saw it, since {error}"
        return dumps(score), begin, notice

    @property
    def notes(self) -> NoteArray:
        """Onset, duration, pitch and velocity of the notes of `score`, track by track. [N]"""
        return self.score.notes

    def to_miditoolkit(self) -> Any:
        """Return the piece, as `save` writes it, as a `MidiFile` of miditoolkit."""
        return to_library(self.midi_file()[0], "miditoolkit")

    def to_muspy(self) -> Any:
        """Return the piece, as `save` writes it, as a `Music` of muspy."""
        return to_library(self.midi_file()[0], "muspy")

    def to_pretty_midi(self) -> Any:
        """Return the piece, as `save` writes it, as a `PrettyMIDI`."""
        return to_library(self.midi_file()[0], "pretty_midi")

    def save_wav(self, path: str | Path, soundfont: str | Path) -> None:
        """Write the piece as a WAV file, with the sounds of a soundfont (.sf2 or .sf3)."""
        Soundfont(soundfont).write_wav(loads(self.midi_file()[0]), path)

    def save(self, path: str | Path, keep_prompt: KeepPrompt = "original") -> None:
        """Write the piece as a MIDI file, creating its folder. See `midi_file`."""
        write_bytes(path, self.midi_file(keep_prompt)[0])

    def _in_file(self, data: bytes, score: Score) -> bytes:
        prompt = self.prompt
        if prompt.kept is not None:
            return replace_notes(data, prompt.own, score, prompt.span)
        return extend(
            data,
            prompt.file_end,
            self._added(),
            prompt.tokenizer.find_track,
            whole=prompt.is_whole,
            sustain=prompt.file_bar,
            programs=prompt.programs,
        )

    def _added(self) -> Score:
        """Return the continuation alone, with the changes of tempo, metre and chord in it."""
        start = self.prompt.end_tick
        tempos = self.score.tempos[self.score.tempos["tick"] >= start].copy()
        tempos["tick"] -= start
        if self.prompt.tempo is not None:
            tempos = np.insert(tempos, 0, (0, self.prompt.tempo))

        def changes(events: Sequence[Any]) -> list[Any]:
            return [e._replace(tick=e.tick - start) for e in events if e.tick >= start]

        signatures, markers = changes(self.score.time_signatures), changes(self.score.markers)
        metre = self.prompt.metre
        if metre is not None and not (signatures and signatures[0].tick == 0):
            signatures.insert(0, metre)
        return replace(self.new_score, tempos=tempos, time_signatures=signatures, markers=markers)

    def _with_kept(self, kept: KeptParts, untouched: Score) -> Score:
        """Return the piece as it was read, with the written parts in its tracks that have them.

        Of several tracks with one part, the notes go to those that have played like them.
        """
        ticks, begin, stop = untouched.ticks_per_beat, self.prompt.end_tick, self.prompt.span[1]
        roles, tracks = np.array(kept.roles, dtype=object), [*untouched.tracks]
        played = [track.notes for track in self.prompt.own.tracks]
        for index in kept.written:
            written = self.score.tracks[index]
            notes = written.notes.copy()
            early = np.maximum(begin - notes["onset"], 0) * (kept.stop is None)  # frames go on
            notes["onset"] += early
            notes["duration"] -= early
            notes = notes[(notes["onset"] >= begin) & (notes["duration"] > 0)]
            end = to_grid(notes["onset"] + notes["duration"], ticks, TICKS_PER_BEAT)
            onset = to_grid(notes["onset"], ticks, TICKS_PER_BEAT)
            notes["onset"], end = (relocate(x, kept.places[::-1]) for x in (onset, end))
            notes["duration"] = np.maximum(np.minimum(end, stop) - notes["onset"], 1)
            # What is in the silence of an incomplete bar is nowhere in the piece.
            sounds = np.abs(np.interp(notes["onset"], *kept.places) - onset) < 1
            notes = notes[sounds & (notes["onset"] < stop)]
            places = np.flatnonzero(roles == index).tolist()
            part = find_parts(notes, [played[place] for place in places or [0]])
            for number, place in enumerate(places):
                track = tracks[place]
                added = np.concatenate([track.notes, notes[part == number]])
                tracks[place] = replace(track, notes=sort_notes(added))
            if not places and len(notes):
                tracks.append(replace(written, notes=notes))
        return replace(untouched, tracks=tracks)
