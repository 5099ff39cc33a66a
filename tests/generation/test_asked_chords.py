"""Chords of a request: at each token the grammar and all constraints leave one that may come."""

import numpy as np
import pytest

from musicgen.generation import constraints
from musicgen.generation.sampler import Sampler
from musicgen.tokenization import REMI, TIME_SIGNATURES
from tests.generation.builders import SCORES, music_model
from tests.generation.test_keep import SONGS, accompanied

SYMBOLS = ["C", "Am", "F#m7", "Bb", "N.C.", "G7"]
METRICAL = REMI(time_signatures=TIME_SIGNATURES)


def random_request(rng, is_song):
    """Options of a request with chords, of which some are for songs alone."""
    counts = rng.integers(1, 4, rng.integers(1, 5))  # chords of each bar
    bars = [" ".join(rng.choice(SYMBOLS, count)) for count in counts]
    options = {"chords": " | ".join(bars), "seed": int(rng.integers(99))}
    kind = rng.choice(["continue", "keep", "rewrite"]) if is_song else "continue"
    if kind == "keep":
        return options | {"keep": rng.choice(["voice", "piano"])}
    if kind == "rewrite":
        return options | {"rewrite": rng.choice(["1", "2-3", "4"])}
    closes = {"ending": str(rng.choice(["open", "close"])), "allow_end": bool(rng.integers(2))}
    fixed = {name: bool(rng.integers(2)) for name in ("fix_tempo", "fix_time_signature")}
    limits = {"max_notes": int(rng.integers(1, 4))} if is_song else {}
    return options | closes | fixed | limits | {"bars": int(rng.integers(1, 5))}


def walk(tokenizer, sampler, prompt, rng, steps):
    """Tokens of a prompt and of random steps behind it, in which families are equally probable."""
    grammar = sampler.constrained_grammar([prompt])
    state, tokens = grammar.start([prompt.tokens]), prompt.tokens.tolist()
    family = np.empty(len(tokenizer.vocabulary), int)
    for number, ids in enumerate(tokenizer.families.values()):
        family[ids.start : ids.stop] = number
    while not state.finished.any() and len(tokens) < len(prompt.tokens) + steps:
        allowed = np.flatnonzero(grammar.allowed(state)[0])
        assert len(allowed)
        own = allowed[family[allowed] == rng.choice(np.unique(family[allowed]))]
        tokens.append(int(rng.choice(own)))
        state = grammar.advance(state, tokens[-1:])
    return np.array(tokens)


def chords_in(tokenizer, tokens):
    """Grid step and index of each chord of some tokens."""
    names = tokenizer.families["Chord"]
    times = tokenizer.times(tokens).tolist()
    return [
        (time, token - names.start)
        for time, token in zip(times, tokens.tolist(), strict=True)
        if token in names
    ]


@pytest.mark.parametrize("tokenizer", [SONGS, METRICAL], ids=["songs", "remi"])
def test_a_token_is_left_whatever_chords_are_asked_for(tokenizer, monkeypatch):
    """And what comes is what was asked for: no constraint is ignored for want of a token."""

    def ignored(allowed, masks):
        raise AssertionError("a constraint left no token")

    monkeypatch.setattr(constraints, "narrowed_where_possible", ignored)
    model, num_chords = music_model(tokenizer, "auto"), 0
    is_song = tokenizer is SONGS
    music = accompanied() if is_song else SCORES["remi"]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        request = model.request(**random_request(rng, is_song))
        prompt = model.prompt(music, prompt_bars=None, request=request)
        if not request.piece.is_whole_piece:
            bars = [None, 1, 2][rng.integers(3)]
            source = None if rng.random() < 0.3 else music
            prompt = model.prompt(source, prompt_bars=bars, request=request)
        sampler = Sampler(model.model, tokenizer, request)
        tokens = walk(tokenizer, sampler, prompt, rng, 100)
        asked = request.progression(prompt)
        start, end = asked[0, 0], request.end_time(prompt)
        found = chords_in(tokenizer, tokens)
        in_force = next((chord for step, chord in found[::-1] if step < start), None)
        expected = []
        for step, chord in asked.tolist():
            if chord != in_force:
                expected.append((step, chord))
            in_force = chord
        written = [(step, chord) for step, chord in found if start <= step < end]
        assert written == expected[: len(written)]
        last_bar = tokenizer.bar_starts(tokens, prompt.bar_length)[-1]
        assert all(step >= last_bar for step, _ in expected[len(written) :]), "none is passed"
        num_chords += len(written)
    assert num_chords > 20
