"""Referees of both languages in plain Python, written from the description of the formats."""

import pytest


def remi_fault(names, *, complete):
    """What is wrong with a sequence of REMI token names; None if nothing is."""
    bar, beat, pitch, chord, tempo = -1, -1, -1, None, None
    silent_from = {}  # pitch -> half position
    previous = ""
    for at, name in enumerate(names):
        family, _, value = name.partition("_")
        after_content = previous in ("Chord", "Tempo", "Duration")
        if family == "Bar":
            fine = after_content or previous in ("", "Bar")
            bar, beat = bar + 1, -1
        elif family == "EOS":
            fine = (after_content or previous == "") and at == len(names) - 1
        elif family == "Beat":
            fine = (after_content or previous == "Bar") and int(value) > beat
            beat, pitch = int(value), -1
        elif family == "Chord":
            fine = previous == "Beat" and value != chord
            chord = value
        elif family == "Tempo":
            fine = previous in ("Beat", "Chord") and value != tempo
            tempo = value
        elif family == "Pitch":
            now = 2 * (16 * bar + beat)
            fine = previous in ("Beat", "Chord", "Tempo", "Duration") and int(value) > pitch
            fine = fine and silent_from.get(int(value), 0) <= now
            pitch = int(value)
        elif family == "Velocity":
            fine = previous == "Pitch"
        elif family == "Duration":
            fine = previous == "Velocity"
            silent_from[pitch] = 2 * (16 * bar + beat) + round(2 * float(value))
        else:
            fine = False
        if not fine:
            return f"{name} at {at} after {previous}"
        previous = family
    return "no EOS" if complete and previous != "EOS" else None


def groove_fault(names, *, complete):
    """What is wrong with a sequence of Groove2Groove token names; None if nothing is."""
    tracks = {"Bass": 0, "Drums": 1, "Guitar": 2, "Piano": 3, "Strings": 4}
    tick = 0  # within the beat
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
                sounding.add(voice)
            else:
                fine = phase not in ("", "NoteOn") and ascending and voice in sounding
                sounding.discard(voice)
            last_voice = voice
        elif family == "TimeShift":
            beats, target = map(int, value.split("_"))
            fine = phase != "" and (phase != family or last_shift == (2, 0))
            fine = fine and (beats > 0 or target > tick)
            tick, last_shift = target, (beats, target)
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
        return referee(names, complete=complete)

    return find


@pytest.fixture(scope="session")
def names():
    """`names(tokenizer, tokens)`: the token names as one string."""

    def join(tokenizer, tokens):
        return " ".join(tokenizer.vocabulary.token(int(token)) for token in tokens)

    return join
