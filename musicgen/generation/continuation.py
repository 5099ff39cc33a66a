"""Continuations: prompts with what a model added to them, as scores and as MIDI files."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.generation.prompt import NEW_PIECE, KeptParts, Prompt
from musicgen.generation.source import tracks_with_notes
from musicgen.midi import (
    TICKS_PER_BEAT,
    NoteArray,
    Score,
    Track,
    dumps,
    extend,
    loads,
    without_suffix,
)
from musicgen.midi.extension import PedalBar
from musicgen.midi.io import Soundfont, to_library
from musicgen.midi.part_sharing import UNISON, share_notes, silent_parts
from musicgen.midi.replacement import replace_notes
from musicgen.midi.score import IntArray, sort_notes
from musicgen.plugins import plugin
from musicgen.text import pluralize
from musicgen.tokenization.quantization import relocate, to_grid
from musicgen.validation import check_choice

SPARSE = 0.1  # share of the prompt's notes per bar; continuations with fewer get a notice
KeepPrompt = Literal["original", "tokens"]


class WrittenFile(NamedTuple):
    """A continuation as a MIDI file.

    Attributes:
        data: the bytes of the file.
        prompt_end: the file's tick at which the continuation begins.
        notice: one line if the prompt's own file could not be kept; empty otherwise.
        score: the music of the file, as it was read back.
    """

    data: bytes
    prompt_end: int
    notice: str
    score: Score


@dataclass(frozen=True, repr=False)
class Continuation:
    """A prompt with a continuation: `tokens` [L] and `score` hold both, as the model sees them.

    A notebook shows the piano roll and a player.

    Attributes:
        bars: how many were added.
    """

    prompt: Prompt
    sample: int
    tokens: IntArray
    score: Score
    bars: int

    def __repr__(self) -> str:
        notes = pluralize(self.new_score.num_notes, "notes")
        return (
            f"Continuation({self.prompt.name!r}, sample {self.sample}: {notes} in "
            f"{pluralize(self.num_new_tokens, 'new tokens')})"
        )

    def _repr_html_(self) -> str:
        from musicgen.report import Kept, ReportPiece, render_report  # matplotlib takes a while

        prompt = self.prompt
        piece = ReportPiece(
            prompt.name, self.score, prompt.end.tick, None, {}, kept=Kept(prompt.score)
        )
        page = render_report(title=prompt.name, pieces=[piece], metadata={})
        frame = 'style="width: 100%; height: 40em; border: 0"'
        return f'<iframe srcdoc="{html.escape(page)}" {frame}></iframe>'

    @property
    def num_new_tokens(self) -> int:
        """How many tokens the model wrote."""
        prompt = self.prompt.of_sample(self.sample)
        added, kept = self.tokens[len(prompt.tokens) :], prompt.kept
        if kept is None:
            return len(added)
        conditioning = kept.conditioning
        num_kept = int((conditioning.ids[len(prompt.tokens) :] >= 0).sum())
        if conditioning.stop is not None:
            num_kept -= 1  # the bar after the kept parts, which ends the piece and is not added
        return len(added) - num_kept

    @property
    def new_score(self) -> Score:
        """The continuation alone, starting at tick 0; without the parts that are kept."""
        new = self.score.clip(self.prompt.end.tick, self.score.end + 1)
        if self.prompt.kept is not None:
            for index, track in enumerate(new.tracks):
                if index not in self.prompt.kept.targets:
                    track.notes = track.notes[:0]
        return new

    @property
    def new_on_grid(self) -> Score:
        """`new_score` on the grid, as the model wrote it, for measures of rhythm."""
        return replace(self, score=self.prompt.decode(self.tokens)).new_score

    @property
    def notice(self) -> str:
        """One line if it has very few notes, or none in some parts; empty otherwise."""
        return self.notice_of(self.midi_file())

    def notice_of(self, written: WrittenFile) -> str:
        """Return `notice` for its file, which tells the parts."""
        text = self._sparse_notice() or self._silent_notice(written)
        name = self.prompt.name
        piece = name if name == NEW_PIECE else f"{name}, continuation"
        return text and f"{piece} {self.sample + 1}: {text}"

    def _sparse_notice(self) -> str:
        """Return one line if there are very few new notes."""
        prompt, num_new = self.prompt, self.new_score.num_notes
        if prompt.kept is not None or not prompt.end.step:
            return ""
        per_bar = prompt.score.num_notes * prompt.bar_length / prompt.end.step
        if num_new >= SPARSE * per_bar * self.bars:
            return ""
        return (
            f"{pluralize(num_new, 'notes')} in {pluralize(self.bars, 'bars')}, "
            f"after {per_bar:.3g} a bar in the prompt, which is probably unlike the music that the "
            "model learned; try another model"
        )

    def _silent_notice(self, written: WrittenFile) -> str:
        """Return one line if parts that play in the prompt, or in its piece, have no new notes."""
        prompt = self.prompt
        if prompt.kept is None:
            end, score = written.prompt_end, written.score
            silent = silent_parts(written.data, end, sounds_until(end, score))
            is_expected = bool(tracks_with_notes(prompt.score))
        else:
            silent = self._silent_targets(prompt.kept)
            is_expected = bool(self._expected_targets())
        if not silent and (self.new_score.num_notes or is_expected):
            return ""
        notice = f"no notes for {', '.join(silent)}" if silent else "no notes"
        is_from_start = prompt.kept is not None and prompt.kept.span == (0, np.inf)
        playing = tracks_with_notes(prompt.piece)
        if is_from_start and any(target in playing for target in prompt.targets):
            notice += "; prompt_bars=8 keeps first bars of these parts, to go on from"
        return notice

    def _expected_targets(self) -> list[int]:
        """Return the target parts that do not rest in these bars of the piece."""
        prompt = self.prompt
        playing = tracks_with_notes(prompt.piece)
        here = tracks_with_notes(prompt.piece.clip(prompt.end.tick, self.score.end + 1))
        return [i for i in prompt.targets if i in here or i not in playing]

    def _silent_targets(self, kept: KeptParts) -> list[str]:
        """Return the names of the target parts that have no new notes, or of their tracks."""
        score, new = self.score, self.new_score
        last = sounds_until(self.prompt.end.tick, score)
        silent = list[str]()
        for i in self._expected_targets():
            if len(new.tracks[i].notes):
                silent += self._silent_tracks(kept, i)
            elif replace(score, tracks=[score.tracks[i]]).end < last:
                silent.append(score.tracks[i].name)
        return silent

    def _silent_tracks(self, kept: KeptParts, index: int) -> list[str]:
        """Return the names of tracks of a target part that play in these bars of the source alone.

        Tracks of one name are one, as are those before and after a change of program.
        """
        first, end = kept.span
        here, playing = list[str](), set[str]()
        for place, notes in self._shares(kept, index):
            if place is not None:
                track = kept.source.tracks[place]
                name, onset = track.name or f"track {place + 1}", track.notes["onset"]
                if ((onset >= first) & (onset < end)).any():
                    here.append(name)
                if len(notes):
                    playing.add(name)
        return [name for name in dict.fromkeys(here) if name not in playing]

    def midi_file(self, keep_prompt: KeepPrompt = "original") -> WrittenFile:
        """Return the piece, prompt included, as a MIDI file.

        Args:
            keep_prompt: `original` appends the continuation to the file that the prompt was read
                from, see `musicgen.midi.extend`, or puts the target parts into it, see
                `replace_notes`; a prompt without a file, and every prompt with `tokens`, is
                written as the model saw it.
        """
        check_choice("keep_prompt", keep_prompt, get_args(KeepPrompt))
        prompt, notice = self.prompt, ""
        score, end = self.score, prompt.end.tick
        if keep_prompt == "original":
            if prompt.kept is not None:
                score, end = self._with_kept(prompt.kept), prompt.end.file_tick
            if prompt.source.data is not None:
                try:
                    data = self._in_file(prompt.source.data, score)
                    return WrittenFile(data, prompt.end.file_tick, "", loads(data))
                except UserError as error:
                    notice = f"{prompt.name}: written as the model saw it, since {error}"
        data = dumps(score)
        return WrittenFile(data, end, notice, loads(data))

    @property
    def notes(self) -> NoteArray:
        """Onset, duration, pitch and velocity of the notes of `score`, track by track. [N]"""
        return self.score.notes

    def to_miditoolkit(self) -> Any:
        """Return the piece, as `save` writes it, as a `MidiFile` of miditoolkit."""
        return to_library(self.midi_file().data, "miditoolkit")

    def to_muspy(self) -> Any:
        """Return the piece, as `save` writes it, as a `Music` of muspy."""
        return to_library(self.midi_file().data, "muspy")

    def to_pretty_midi(self) -> Any:
        """Return the piece, as `save` writes it, as a `PrettyMIDI`."""
        return to_library(self.midi_file().data, "pretty_midi")

    def save_wav(self, path: str | Path, soundfont: str | Path) -> None:
        """Write the piece as a WAV file, with the sounds of a soundfont (.sf2 or .sf3)."""
        Soundfont(soundfont).write_wav(self.midi_file().score, path)

    def save_musicxml(self, path: str | Path, keep_prompt: KeepPrompt = "original") -> None:
        """Write the piece as a printed score in MusicXML, with the notes of `midi_file`.

        Raises:
            UserError: the plugin `scores` is missing.
        """
        writer = plugin("scores", "MusicXML")
        title = without_suffix(self.prompt.name)
        write_bytes(path, writer.write_musicxml(self.midi_file(keep_prompt).score, title))

    def save(self, path: str | Path, keep_prompt: KeepPrompt = "original") -> None:
        """Write the piece as a MIDI file, creating its folder. See `midi_file`."""
        write_bytes(path, self.midi_file(keep_prompt).data)

    def _in_file(self, data: bytes, score: Score) -> bytes:
        """Return the prompt's own file with the music that was added."""
        prompt, source = self.prompt, self.prompt.source
        if prompt.kept is not None:
            keeps_pedal = source.performance is not None
            return replace_notes(data, prompt.kept.source, score, prompt.kept.span, keeps_pedal)
        return extend(
            data,
            prompt.end.file_tick,
            self._added(),
            self._find_tracks,
            whole=source.is_whole,
            sustain=source.bar_ticks,
            programs=source.programs,
            pedal_bars=self._pedal_bars(),
            cut=prompt.end.cut,
        )

    def _find_tracks(self, tracks: Sequence[Track]) -> list[int | None]:
        """Return the index of the decoded track of each track of the prompt's file."""
        tune_part = self.prompt.source.tune_part
        if tune_part is not None:
            return [tune_part] * len(tracks)
        return self.prompt.tokenizer.find_tracks(tracks)

    def _pedal_bars(self) -> list[PedalBar]:
        """Return the added bars, and the bars of the file whose pedal they repeat."""
        performance = self.prompt.source.performance
        if performance is None:
            return []
        lines = self.new_score.bar_starts()
        ends = np.append(lines[1:], max(self.new_score.end, lines[-1] + 1))
        models = performance.model_bars(len(lines))
        columns = lines, ends, performance.bar_ticks[models], performance.bar_ticks[models + 1]
        return [tuple(bar) for bar in np.stack(columns, axis=1).tolist()]

    def _added(self) -> Score:
        """Return the continuation alone, with its changes of tempo, time signature and chord."""
        start, tempo = self.prompt.end.tick, self.prompt.source.tempo
        tempos = self.score.tempos[self.score.tempos["tick"] >= start].copy()
        tempos["tick"] -= start
        if tempo is not None:
            tempos = np.insert(tempos, 0, (0, tempo))

        def changes(events: Sequence[Any]) -> list[Any]:
            return [e._replace(tick=e.tick - start) for e in events if e.tick >= start]

        signatures, markers = changes(self.score.time_signatures), changes(self.score.markers)
        added_signature = self.prompt.source.time_signature
        if added_signature is not None and not (signatures and signatures[0].tick == 0):
            signatures.insert(0, added_signature)
        return replace(self.new_score, tempos=tempos, time_signatures=signatures, markers=markers)

    def _with_kept(self, kept: KeptParts) -> Score:
        """Return the source score with the new notes in its tracks of the target parts.

        If several tracks have one part, the notes go to those that have played like them.
        """
        unchanged = kept.unchanged
        tracks = [*unchanged.tracks]
        for index in kept.targets:
            for place, notes in self._shares(kept, index):
                if place is not None:
                    track = tracks[place]
                    added = np.concatenate([track.notes, notes])
                    tracks[place] = replace(track, notes=sort_notes(added))
                elif len(notes):
                    tracks.append(replace(self.score.tracks[index], notes=notes))
        return replace(unchanged, tracks=tracks)

    def _shares(self, kept: KeptParts, index: int) -> list[tuple[int | None, NoteArray]]:
        """Return the source's tracks of a target part with their new notes; None: a new track."""
        notes, source = self._source_notes(self.score.tracks[index].notes, kept), kept.source
        places = [i for i, role in enumerate(kept.conditioning.roles) if role == index]
        if not places:
            return [(None, notes)]
        played = [source.tracks[place].notes for place in places]
        shares = share_notes(notes, played, source.ticks_per_beat * UNISON)
        return [*zip(places, shares, strict=True)]

    def _source_notes(self, decoded: NoteArray, kept: KeptParts) -> NoteArray:
        """Return the new ones of the decoded notes, in ticks of the source score."""
        ticks, begin = kept.source.ticks_per_beat, self.prompt.end.tick
        tick_map, stop = kept.conditioning.tick_map, kept.span[1]
        notes = decoded.copy()
        if kept.conditioning.stop is None:  # frames go on: what sounds at the beginning is new
            early = np.maximum(begin - notes["onset"], 0)
            notes["onset"] += early
            notes["duration"] -= early
        notes = notes[(notes["onset"] >= begin) & (notes["duration"] > 0)]
        end_in_bars = to_grid(notes["onset"] + notes["duration"], ticks, TICKS_PER_BEAT)
        onset_in_bars = to_grid(notes["onset"], ticks, TICKS_PER_BEAT)
        onset, end = (relocate(x, tick_map[::-1]) for x in (onset_in_bars, end_in_bars))
        notes["onset"] = onset
        notes["duration"] = np.maximum(np.minimum(end, stop) - onset, 1)
        # The silence that completes an incomplete bar is not in the source.
        is_in_source = np.abs(np.interp(onset, *tick_map) - onset_in_bars) < 1
        return notes[is_in_source & (onset < stop)]


def sounds_until(end: int, score: Score) -> int:
    """Return the tick to which an earlier note may go on in place of new ones: a bar, or the end.

    Args:
        end: tick at which the new music begins.
    """
    return max(end + 1, min(end + 4 * score.ticks_per_beat, score.end))
