"""Continuations: prompts with what a model added to them, as scores and as MIDI files."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import write_bytes
from musicgen.generation.prompts import Prompt, PromptSource
from musicgen.generation.selection import Selection
from musicgen.midi import Score, dumps, extend, loads
from musicgen.text import pluralize
from musicgen.validation import check_choice

KeepPrompt = Literal["original", "tokens"]


class MidiFile(NamedTuple):
    """A piece as it is written.

    Attributes:
        data: the bytes of the file.
        prompt_end: its tick at which the continuation begins.
        notice: one line if the prompt's own file could not be kept, or a part was left empty.
        written: the notes that are new, in the file's ticks; None: those behind the prompt.
    """

    data: bytes
    prompt_end: int
    notice: str = ""
    written: Score | None = None


@dataclass(frozen=True, repr=False)
class Continuation:
    """A prompt with a continuation: `tokens` [L] and `score` hold both, as the model sees them.

    A notebook shows the piano roll and a player. `selections` are the choices among several
    candidates that it is made of, one after another.
    """

    prompt: Prompt
    sample: int
    tokens: NDArray[np.int64]
    score: Score
    selections: tuple[Selection, ...] = ()

    def __repr__(self) -> str:
        notes = pluralize(self.new_score.num_notes, "notes")
        return (
            f"Continuation({self.prompt.name!r}, sample {self.sample}: {notes} in "
            f"{pluralize(self.num_new_tokens, 'new tokens')})"
        )

    def _repr_html_(self) -> str:
        from musicgen.report import ReportPiece, render_report  # matplotlib takes a while

        piece = ReportPiece(self.prompt.name, self.score, self.prompt.end_tick, None, {})
        page = render_report(title=self.prompt.name, pieces=[piece], metadata={})
        frame = 'style="width: 100%; height: 40em; border: 0"'
        return f'<iframe srcdoc="{html.escape(page)}" {frame}></iframe>'

    @property
    def num_new_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt.tokens)

    @property
    def new_score(self) -> Score:
        """The continuation alone, starting at tick 0."""
        return self.score.clip(self.prompt.end_tick, self.score.end + 1)

    def midi_file(self, keep_prompt: KeepPrompt = "original") -> MidiFile:
        """Return the piece as a MIDI file.

        Args:
            keep_prompt: `original` appends the continuation to the file that the prompt was read
                from, see `musicgen.midi.extend`; a prompt without one, and every prompt with
                `tokens`, is written as the model saw it.
        """
        check_choice("keep_prompt", keep_prompt, get_args(KeepPrompt))
        source, notice = self.prompt.source, ""
        if keep_prompt == "original" and source is not None:
            try:
                data = extend(
                    source.data,
                    source.end,
                    self._added(source),
                    source.find_track,
                    whole=source.whole,
                    sustain=source.bar,
                    programs=self.prompt.programs,
                )
                loads(data)
                return MidiFile(data, source.end)
            except UserError as error:
                notice = f"{self.prompt.name}: written as the model saw it, since {error}"
        return MidiFile(dumps(self.score), self.prompt.end_tick, notice)

    def save(self, path: str | Path, keep_prompt: KeepPrompt = "original") -> None:
        """Write the piece as a MIDI file, creating its folder. See `midi_file`."""
        write_bytes(path, self.midi_file(keep_prompt).data)

    def _added(self, source: PromptSource) -> Score:
        """Return the continuation alone, with the changes of tempo, metre and chord in it."""
        start = self.prompt.end_tick
        tempos = self.score.tempos[self.score.tempos["tick"] >= start].copy()
        tempos["tick"] -= start
        if self.prompt.tempo is not None:
            tempos = np.insert(tempos, 0, (0, self.prompt.tempo))

        def changes(events: Sequence[Any]) -> list[Any]:
            return [
                event._replace(tick=event.tick - start) for event in events if event.tick >= start
            ]

        signatures, markers = changes(self.score.time_signatures), changes(self.score.markers)
        if source.metre is not None and not (signatures and signatures[0].tick == 0):
            signatures.insert(0, source.metre)
        return replace(self.new_score, tempos=tempos, time_signatures=signatures, markers=markers)
