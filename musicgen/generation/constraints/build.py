"""The constraints of a request."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from musicgen.generation.constraints.base import Constraint
from musicgen.generation.constraints.bounds import (
    LimitedDurations,
    MaxNotes,
    MaxNotesOfParts,
    notes_of_each,
)
from musicgen.generation.constraints.chords import REMIChords, SongsChords
from musicgen.generation.constraints.closing import closing_chord, last_chord_constraints
from musicgen.generation.constraints.end import end_constraints
from musicgen.generation.constraints.fixed import FixedTempo, FixedTimeSignature
from musicgen.generation.constraints.kept import (
    KeptSongParts,
    KeptTokens,
    TargetParts,
    target_parts,
)
from musicgen.generation.constraints.parallels import NoParallels
from musicgen.generation.prompt import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.midi import TICKS_PER_BEAT
from musicgen.tokenization.bar_grammar import BarGrammar
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chorale.grammar import ChoraleGrammar
from musicgen.tokenization.chords.progression import schedule
from musicgen.tokenization.grammar import NEVER, Grammar
from musicgen.tokenization.groove2groove.grammar import GrooveGrammar
from musicgen.tokenization.remi.grammar import REMIGrammar
from musicgen.tokenization.songs.grammar import SongsGrammar
from musicgen.tokenization.vocabulary import IntArray


def request_constraints(
    request: GenerationRequest,
    tokenizer: Tokenizer,
    grammar: Grammar[Any],
    prompts: Sequence[Prompt],
) -> list[Constraint]:
    """Return what a request asks of the tokens after each prompt.

    The first constraints have priority, see `ConstrainedGrammar`.
    """
    if isinstance(grammar, SongsGrammar):
        constraints = songs_constraints(request, grammar, prompts)
    elif isinstance(grammar, REMIGrammar):
        constraints = [REMIChords(grammar, progressions(request, prompts))]
    elif isinstance(grammar, GrooveGrammar):
        constraints = groove_constraints(request, tokenizer, grammar, prompts)
    elif isinstance(grammar, ChoraleGrammar):
        constraints = chorale_constraints(request, grammar, prompts)
    else:
        constraints = []
    if isinstance(grammar, BarGrammar):
        if request.decoding.fix_tempo:
            constraints.append(FixedTempo(grammar))
        if request.decoding.fix_time_signature and not request.piece.is_whole_piece:
            constraints.append(FixedTimeSignature(grammar))
    if request.piece.ending == "close" and request.piece.progression is None:
        closing = last_chord_constraints(tokenizer, grammar, prompts, request)
        constraints = [*closing, *constraints]
    return [*constraints, *request_end(request, grammar, prompts)]


def songs_constraints(
    request: GenerationRequest, grammar: SongsGrammar, prompts: Sequence[Prompt]
) -> list[Constraint]:
    """Return the constraints on parts, chords and notes at once of songs."""
    targets = target_parts(len(grammar.is_drum), [prompt.targets for prompt in prompts])
    targets |= grammar.is_chords
    constraints: list[Constraint] = [TargetParts(grammar, "Part", targets)]
    if request.piece.is_whole_piece:
        constraints = [KeptSongParts(grammar, conditioning_tokens(prompts), targets)]
    if grammar.is_chords.any():
        asked = progressions(request, prompts)
        if request.piece.ending == "close" and request.piece.progression is None:
            asked = [closing_chord(prompt, request.end_time(prompt)) for prompt in prompts]
        is_whole = request.piece.is_whole_piece
        constraints.append(SongsChords(grammar, asked, targets, always_chooses=is_whole))
    if max_notes := request.sampling.max_notes:
        each = notes_of_each(grammar, max_notes)
        constraints.append(MaxNotesOfParts(grammar, each, targets))
    return constraints


def groove_constraints(
    request: GenerationRequest,
    tokenizer: Tokenizer,
    grammar: GrooveGrammar,
    prompts: Sequence[Prompt],
) -> list[Constraint]:
    """Return the constraints on tracks, on notes at once, and on durations, of a band."""
    # No others than the file's.
    targets = target_parts(grammar.num_instruments, [prompt.targets for prompt in prompts])
    constraints: list[Constraint] = [TargetParts(grammar, "NoteOn", targets)]
    if max_notes := request.sampling.max_notes:  # prompts may have more
        constraints.append(MaxNotes(grammar, notes_of_each(grammar, max_notes)))
    if request.decoding.limit_durations:
        step = TICKS_PER_BEAT // tokenizer.steps_per_beat
        longest = np.zeros((len(prompts), grammar.num_instruments), np.int64)
        for of_prompt, prompt in zip(longest, prompts, strict=True):
            for number, track in enumerate(prompt.score.tracks):
                of_prompt[number] = int(track.notes["duration"].max(initial=0)) // step
        constraints.append(LimitedDurations(grammar, longest))
    return constraints


def chorale_constraints(
    request: GenerationRequest, grammar: ChoraleGrammar, prompts: Sequence[Prompt]
) -> list[Constraint]:
    """Return the constraints on the voices of chorales."""
    constraints: list[Constraint] = []
    if request.piece.is_whole_piece:
        constraints.append(KeptTokens(grammar, conditioning_tokens(prompts)))
    if request.sampling.avoid_parallels:
        constraints.append(NoParallels(grammar))
    return constraints


def conditioning_tokens(prompts: Sequence[Prompt]) -> list[IntArray]:
    """Return the ids of what each prompt keeps, -1 where the model writes. [L] each"""
    return [prompt.kept.conditioning.ids for prompt in prompts if prompt.kept is not None]


def progressions(request: GenerationRequest, prompts: Sequence[Prompt]) -> list[IntArray]:
    """Return grid step and index of each chord that is asked for, [N, 2] for each prompt."""
    return [_progression(request, prompt) for prompt in prompts]


def _progression(request: GenerationRequest, prompt: Prompt) -> IntArray:
    if prompt.kept is not None:
        return prompt.kept.progression
    end = request.end_time(prompt)
    if request.piece.progression is None or end is None:
        return np.empty((0, 2), np.int64)
    lines = range(prompt.end_time, end + 1, prompt.bar_length)
    return schedule(request.piece.progression, lines)


def request_end(
    request: GenerationRequest, grammar: Grammar[Any], prompts: Sequence[Prompt]
) -> list[Constraint]:
    """Return the constraints on where the new music begins and ends."""
    start = np.array([prompt.end_time for prompt in prompts])
    end = np.array([request.end_time(prompt) or NEVER for prompt in prompts])
    may_end = np.full_like(end, 0 if request.decoding.allow_end else NEVER)
    if request.piece.ending != "close":
        return end_constraints(grammar, start, may_end, None)
    if isinstance(grammar, ChoraleGrammar):  # the last chord is held to the end
        may_end = np.minimum(may_end, end)
    else:
        may_end = np.minimum(may_end, end - [prompt.bar_length for prompt in prompts])
    return end_constraints(grammar, start, may_end, end)
