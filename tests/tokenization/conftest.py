"""Reference grammars of the tokenizers in plain Python, and random walks under the grammars."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from musicgen.tokenization.grammar import NEVER


def remi_error(names, settings, *, complete):
    """The first error in a sequence of REMI token names; None if it is valid."""
    metres = settings["time_signatures"]
    lengths = {metre: 4 * settings["positions_per_beat"] * Fraction(metre) for metre in metres}
    if len(metres) == 1:
        lengths[""] = lengths.pop(metres[0])
    num_bars, begin, end = 0, 0, 0
    beat, pitch, chord, tempo = -1, -1, None, None
    silent_at = {}  # pitch -> half position
    previous = ""
    for at, name in enumerate(names):
        family, _, value = name.partition("_")
        after_content = previous in ("Chord", "Tempo", "Duration")
        if family == "Bar":
            valid = after_content or previous in ("", "Bar")
            num_bars, beat = num_bars + 1, -1
            valid = valid and num_bars <= settings["max_bars"]
            begin, end = end, end + lengths[value]
        elif family == "EOS":
            valid = (after_content or previous == "") and at == len(names) - 1
        elif family == "Beat":
            valid = (after_content or previous == "Bar") and beat < int(value) < end - begin
            beat, pitch = int(value), -1
        elif family == "Chord":
            valid = previous == "Beat" and value != chord
            chord = value
        elif family == "Tempo":
            valid = previous in ("Beat", "Chord") and value != tempo
            tempo = value
        elif family == "Pitch":
            now = 2 * (begin + beat)
            valid = previous in ("Beat", "Chord", "Tempo", "Duration") and int(value) > pitch
            valid = valid and silent_at.get(int(value), 0) <= now
            pitch = int(value)
        elif family == "Velocity":
            valid = previous == "Pitch"
        elif family == "Duration":
            valid = previous == "Velocity"
            silent_at[pitch] = 2 * (begin + beat) + round(2 * float(value))
        else:
            valid = False
        if not valid:
            return f"{name} at {at} after {previous}"
        previous = family
    return "no EOS" if complete and previous != "EOS" else None


def groove_error(names, settings, *, complete):
    """The first error in a sequence of Groove2Groove token names; None if it is valid."""
    tracks = {track["name"]: index for index, track in enumerate(settings["tracks"])}
    beat, tick = 0, 0
    sounding = {}  # (track, key) -> tick by which it ends
    phase, last_voice, last_shift = "", None, None
    for at, name in enumerate(names):
        family, _, value = name.partition("_")
        if phase == "end":
            return f"{name} at {at} after EOS"
        if family in ("NoteOn", "NoteOff"):
            track, key = value.split("_")
            voice = tracks[track], int(key)
            ascending = phase != family or voice > last_voice
            if family == "NoteOn":
                valid = phase != "" and ascending and voice not in sounding
                valid = valid and beat < settings["max_beats"]
                valid = valid and 12 * beat + tick < min(sounding.values(), default=math.inf)
                drums = settings["tracks"][voice[0]]["is_drum"]
                longest = settings["max_drum_beats" if drums else "max_note_beats"]
                sounding[voice] = 12 * (beat + longest) + tick if longest else math.inf
            else:
                valid = phase not in ("", "NoteOn") and ascending and voice in sounding
                sounding.pop(voice, None)
            last_voice = voice
        elif family == "TimeShift":
            beats, target = map(int, value.split("_"))
            valid = phase != "" and (phase != family or last_shift == (2, 0))
            valid = valid and (beats > 0 or target > tick)
            beat, tick, last_shift = beat + beats, target, (beats, target)
            valid = valid and 12 * beat + tick <= 12 * settings["max_beats"]
            valid = valid and 12 * beat + tick <= min(sounding.values(), default=math.inf)
        elif family == "BOS":
            valid = at == 0
        elif family == "EOS":
            valid = phase in ("NoteOff", "BOS") and not sounding
            family = "end"
        else:
            valid = False
        if not valid:
            return f"{name} at {at} after {phase}"
        phase = family
    return "no EOS" if complete and phase != "end" else None


def chorale_error(names, settings, *, complete):
    """The first error in a sequence of Chorale token names; None if it is valid."""
    if names[0].startswith("Lead"):
        return leading_error(names, settings, complete=complete)
    frame = []  # of the last, complete or incomplete frame
    num_frames = 0
    for at, name in enumerate(names):
        silent = set(frame) == {"Silence"}
        if at == 0:
            valid = name == "BOS"
        elif name == "EOS":
            valid = len(frame) in (0, 4) and not silent and at == len(names) - 1
        elif name != "Silence" and not name.startswith("Pitch"):
            valid = False
        else:
            frame = [name] if len(frame) == 4 else [*frame, name]
            num_frames += len(frame) == 1
            last = num_frames == 4 * settings["max_beats"] and frame == ["Silence"] * 4
            valid = num_frames <= 4 * settings["max_beats"] and not last
        if not valid:
            return f"{name} at {at}"
    return "no EOS" if complete and names[-1] != "EOS" else None


def leading_error(names, settings, *, complete):
    """The first error in a Chorale sequence with voices ahead of the others."""
    leading = names[0].partition("_")[2].split("+")
    voices = [name in leading for name in ("Soprano", "Alto", "Tenor", "Bass")]
    end = math.inf  # of the leading voices, in frames
    tokens = {}
    for at, name in enumerate(names[1:], start=1):
        frame, voice = divmod(at - 1, 4)
        is_note = name.startswith("Ahead" if voices[voice] else "Pitch") or name == "Silence"
        stops = voice == voices.index(True) and end == math.inf and name == "Empty"
        if frame >= end + 16:
            valid = name == "EOS" and at == len(names) - 1
        elif voices[voice]:
            before = [tokens[frame - 1, v] for v in range(4) if voices[v]] if frame else []
            if stops and any(each.startswith("Ahead") for each in before):
                end = frame
            last = max(v for v in range(4) if voices[v])
            own = [tokens[frame, v] for v in range(voice) if voices[v]]
            forced = frame == 4 * settings["max_beats"] - 1 and voice == last
            forced = forced and {*own, name} == {"Silence"}
            valid = name == "Empty" if frame >= end else is_note and not forced
            valid = valid and (frame >= end or frame < 4 * settings["max_beats"])
        else:
            valid = name == "Empty" if frame < 16 else is_note
        if not valid:
            return f"{name} at {at}"
        tokens[frame, voice] = name
    return "no EOS" if complete and names[-1] != "EOS" else None


@pytest.fixture(scope="session")
def grammar_error():
    """`grammar_error(tokenizer, tokens, complete=False)`: the first error in ids, or None."""

    def find(tokenizer, tokens, *, complete=False):
        names = [tokenizer.vocabulary.token(int(token)) for token in tokens]
        references = {"remi": remi_error, "groove2groove": groove_error, "chorale": chorale_error}
        reference = references[tokenizer.name]
        return reference(names, tokenizer.settings(), complete=complete)

    return find


@pytest.fixture(scope="session")
def names():
    """`names(tokenizer, tokens)`: the token names as one string."""

    def join(tokenizer, tokens):
        return " ".join(tokenizer.vocabulary.token(int(token)) for token in tokens)

    return join


def closing_bias(tokenizer):
    """Logits that soon lead to EOS. [V]"""
    vocabulary = tokenizer.vocabulary
    bias = {"EOS": 4e3, "Empty": 3e3, "NoteOff": 3e3, "TimeShift": 2e3, "Beat": 1e3}
    families = [vocabulary.token(i).partition("_")[0] for i in range(len(vocabulary))]
    return torch.tensor([bias.get(family, 0.0) for family in families])


def random_walk(tokenizer, num_rows, steps, seed):
    """Random walks under the grammar: `steps` tokens without EOS, then on to EOS.

    Returns:
        Tokens [num_rows, L], and the grammar state's positions after each [num_rows, L, 2].
    """
    random = torch.Generator().manual_seed(seed)
    grammar = tokenizer.grammar()
    size = len(tokenizer.vocabulary)
    # Every row prefers other tokens, so that time passes at different speeds.
    preference = 3 * torch.randn(num_rows, size, generator=random)
    preference += 3 * (closing_bias(tokenizer) > 0) * torch.rand(num_rows, 1, generator=random)
    bias = closing_bias(tokenizer)
    state = grammar.start(torch.empty(num_rows, 0, dtype=torch.long))
    state = grammar.between(state, end=NEVER)
    columns, positions = [], []
    while not state.finished.all():
        if len(columns) >= steps:
            state = grammar.between(state)
        allowed = grammar.allowed(state)
        assert allowed.dtype == torch.bool
        assert allowed.shape == (num_rows, size)
        assert allowed.any(dim=1).all()
        logits = preference + torch.randn(num_rows, size, generator=random)
        if len(columns) >= steps:
            logits = logits + bias
        tokens = logits.masked_fill(~allowed, -torch.inf).argmax(dim=1)
        state = grammar.advance(state, tokens)
        columns.append(tokens)
        positions.append(state.positions)
        assert len(columns) < steps + 2000, "EOS is not reached"
    return torch.stack(columns, dim=1).numpy(), np.stack(positions, axis=1)


def random_crop(tokenizer, tokens, rng, length, bar_length, *, augment):
    """A training crop from a random bar on."""
    starts = tokenizer.crop_starts(tokens, bar_length=bar_length)
    bar = int(rng.integers(len(starts))) if len(starts) else 0
    rng = rng if augment else None
    return tokenizer.crop(tokens, starts[bar:], length, bar_length=bar_length, rng=rng)


@pytest.fixture(scope="session")
def crop():
    """`crop(tokenizer, tokens, rng, length, bar_length, augment=...)`: see `random_crop`."""
    return random_crop


@pytest.fixture(scope="session")
def walk():
    """`walk(tokenizer, num_rows, steps, seed)`: see `random_walk`."""
    return random_walk
