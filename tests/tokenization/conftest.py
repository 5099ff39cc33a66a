"""Referees of both languages in plain Python, written from the description of the formats."""

from fractions import Fraction

import pytest
import torch


def remi_fault(names, settings, *, complete):
    """What is wrong with a sequence of REMI token names; None if nothing is."""
    metres = settings["time_signatures"]
    lengths = {metre: 4 * settings["positions_per_beat"] * Fraction(metre) for metre in metres}
    if len(metres) == 1:
        lengths[""] = lengths.pop(metres[0])
    num_bars, begin, end = 0, 0, 0
    beat, pitch, chord, tempo = -1, -1, None, None
    silent_from = {}  # pitch -> half position
    previous = ""
    for at, name in enumerate(names):
        family, _, value = name.partition("_")
        after_content = previous in ("Chord", "Tempo", "Duration")
        if family == "Bar":
            fine = after_content or previous in ("", "Bar")
            num_bars, beat = num_bars + 1, -1
            fine = fine and num_bars <= settings["max_bars"]
            begin, end = end, end + lengths[value]
        elif family == "EOS":
            fine = (after_content or previous == "") and at == len(names) - 1
        elif family == "Beat":
            fine = (after_content or previous == "Bar") and beat < int(value) < end - begin
            beat, pitch = int(value), -1
        elif family == "Chord":
            fine = previous == "Beat" and value != chord
            chord = value
        elif family == "Tempo":
            fine = previous in ("Beat", "Chord") and value != tempo
            tempo = value
        elif family == "Pitch":
            now = 2 * (begin + beat)
            fine = previous in ("Beat", "Chord", "Tempo", "Duration") and int(value) > pitch
            fine = fine and silent_from.get(int(value), 0) <= now
            pitch = int(value)
        elif family == "Velocity":
            fine = previous == "Pitch"
        elif family == "Duration":
            fine = previous == "Velocity"
            silent_from[pitch] = 2 * (begin + beat) + round(2 * float(value))
        else:
            fine = False
        if not fine:
            return f"{name} at {at} after {previous}"
        previous = family
    return "no EOS" if complete and previous != "EOS" else None


def groove_fault(names, settings, *, complete):
    """What is wrong with a sequence of Groove2Groove token names; None if nothing is."""
    tracks = {track["name"]: index for index, track in enumerate(settings["tracks"])}
    beat, tick = 0, 0
    sounding = set()
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
                fine = phase != "" and ascending and voice not in sounding
                fine = fine and beat < settings["max_beats"]
                sounding.add(voice)
            else:
                fine = phase not in ("", "NoteOn") and ascending and voice in sounding
                sounding.discard(voice)
            last_voice = voice
        elif family == "TimeShift":
            beats, target = map(int, value.split("_"))
            fine = phase != "" and (phase != family or last_shift == (2, 0))
            fine = fine and (beats > 0 or target > tick)
            beat, tick, last_shift = beat + beats, target, (beats, target)
            fine = fine and 12 * beat + tick <= 12 * settings["max_beats"]
        elif family == "BOS":
            fine = at == 0
        elif family == "EOS":
            fine = phase in ("NoteOff", "BOS") and not sounding
            family = "end"
        else:
            fine = False
        if not fine:
            return f"{name} at {at} after {phase}"
        phase = family
    return "no EOS" if complete and phase != "end" else None


@pytest.fixture(scope="session")
def fault():
    """`fault(tokenizer, tokens, complete=False)`: what is wrong with ids; None if nothing is."""

    def find(tokenizer, tokens, *, complete=False):
        names = [tokenizer.vocabulary.token(int(token)) for token in tokens]
        referee = {"remi": remi_fault, "groove2groove": groove_fault}[tokenizer.name]
        return referee(names, tokenizer.settings(), complete=complete)

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
    bias = {"EOS": 4e3, "NoteOff": 3e3, "TimeShift": 2e3, "Beat": 1e3}
    words = [vocabulary.token(i).partition("_")[0] for i in range(len(vocabulary))]
    return torch.tensor([bias.get(word, 0.0) for word in words])


def random_walk(tokenizer, num_rows, steps, seed):
    """Random walks under the grammar: `steps` tokens without EOS, then home. [num_rows, L]"""
    random = torch.Generator().manual_seed(seed)
    grammar = tokenizer.grammar()
    size = len(tokenizer.vocabulary)
    # Each row prefers some tokens throughout, so that time passes at different speeds.
    taste = 3 * torch.randn(num_rows, size, generator=random)
    taste += 3 * (closing_bias(tokenizer) > 0) * torch.rand(num_rows, 1, generator=random)
    home = closing_bias(tokenizer)
    state = grammar.start(torch.empty(num_rows, 0, dtype=torch.long))
    columns, times = [], []
    while not state.finished.all():
        allowed = grammar.allowed(state, end=len(columns) >= steps)
        assert allowed.dtype == torch.bool
        assert allowed.shape == (num_rows, size)
        assert allowed.any(dim=1).all()
        logits = taste + torch.randn(num_rows, size, generator=random)
        if len(columns) >= steps:
            logits = logits + home
        tokens = logits.masked_fill(~allowed, -torch.inf).argmax(dim=1)
        state = grammar.advance(state, tokens)
        columns.append(tokens)
        times.append(state.time)
        assert len(columns) < steps + 2000, "no way home"
    return torch.stack(columns, dim=1).numpy(), torch.stack(times, dim=1).numpy()


@pytest.fixture(scope="session")
def walk():
    """`walk(tokenizer, num_rows, steps, seed)`: see `random_walk`."""
    return random_walk
