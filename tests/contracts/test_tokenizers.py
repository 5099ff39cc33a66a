"""Contracts of every tokenizer in conf/tokenizer, of tiny ones, and of chorales in other orders.

The grammar is the language of the encodings; a sequence decodes and encodes to itself; coordinates
token by token are those of the whole; other libraries read what is decoded.
"""

import io
from contextlib import suppress
from itertools import product

import mido
import numpy as np
import pretty_midi
import pytest
import torch

from musicgen.errors import UserError
from musicgen.midi import dumps, loads
from musicgen.tokenization import REMI, Chorale, Groove2Groove, Songs
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import within
from tests.tokenization.conftest import random_walk
from tests.tokenizers import frozen_tokenizers

# Short pieces reach the maximum length; few tokens repeat often.
TINY = {
    "tiny remi": REMI(
        pitch_range=(60, 63), velocity_bins=(64, 64, 1), tempo_bins=(90, 93, 3), max_bars=3
    ),
    "tiny metres": REMI(
        time_signatures=("3/4", "6/8", "2/4"),
        positions_per_beat=2,
        pitch_range=(60, 61),
        velocity_bins=(64, 64, 1),
        tempo_bins=None,
        chords=False,
        max_bars=4,
    ),
    "remi without velocities": REMI(velocity_bins=None, max_bars=6),
    "tiny groove": Groove2Groove(tracks=[{"name": "Bass"}], max_beats=5),
    "tiny groove with velocities": Groove2Groove(
        tracks=[{"name": "Bass"}], max_beats=5, velocity_bins=(32, 96, 32)
    ),
    "short notes": Groove2Groove(
        tracks=[{"name": "Bass"}, {"name": "Drums", "is_drum": True}],
        max_beats=9,
        max_note_beats=3,
        max_drum_beats=1,
    ),
    "tiny chorale": Chorale(max_beats=2),
    "tiny songs": Songs(
        parts=[{"name": "Voice"}, {"name": "Drums", "is_drum": True}, {"name": "Bass"}],
        time_signatures=["3/16", "2/16"],
        pitch_range=(60, 61),
        velocity_bins=(64, 65, 1),
        tempo_bins=(90, 91, 2),
        max_bars=4,
    ),
    "tiny leading parts": Songs(
        parts=[{"name": "Voice"}, {"name": "Piano"}, {"name": "Drums", "is_drum": True}],
        time_signatures=["2/32"],
        pitch_range=(60, 60),
        tempo_bins=None,
        chords=False,
        max_bars=4,
    ),
    "leading voices": Chorale(max_beats=6, lead_probability=0.5),
    "chorales in keys": Chorale(max_beats=6, lead_probability=0.5, keys=True),
}
TOKENIZERS = frozen_tokenizers() | TINY
tokenizers = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
tiny = pytest.mark.parametrize("tokenizer", TINY.values(), ids=TINY)


def without_phrases(tokenizer, tokens):
    """Ids without keys with modes, and bars left, which encoding finds in the notes."""
    if not getattr(tokenizer, "phrases", False):
        return tokens
    is_found = [within(tokens, tokenizer.families[name]) for name in ("Key", "Left")]
    return tokens[~np.any(is_found, axis=0)]


def encoded_again(tokenizer, tokens):
    """The encoding of the music of ids, in their order."""
    again = without_phrases(tokenizer, tokenizer.encode(tokenizer.decode(tokens)))
    tokens = without_phrases(tokenizer, tokens)
    if getattr(tokenizer, "keys", False) and len(tokens) > 1:
        keys = tokenizer.families["Key"]
        if again[1] - tokens[1] == len(keys) // 2 and tokens[1] in keys:
            again[1] = tokens[1]  # a major key whose notes fit its relative better
    if tokenizer.name == "songs":
        sets = product([False, True], repeat=len(tokenizer.families["Part"]))
        orders = (tokenizer.lead(again, leads) for leads in sets)
        return next((each for each in orders if np.array_equal(each, tokens)), again)
    if tokenizer.families.get("Lead") and tokens[0] in tokenizer.families["Lead"]:
        leading = tokenizer.vocabulary.token(int(tokens[0])).partition("_")[2].split("+")
        return tokenizer.lead(again, [track.name in leading for track in voices(tokenizer)])
    return again


def voices(tokenizer):
    return tokenizer.decode(tokenizer.start_tokens()).tracks


def count_notes(data):
    """Number of notes that two libraries read from the bytes of a MIDI file."""
    messages = (m for track in mido.MidiFile(file=io.BytesIO(data)).tracks for m in track)
    note_ons = sum(m.type == "note_on" and m.velocity > 0 for m in messages)
    return note_ons, sum(len(i.notes) for i in pretty_midi.PrettyMIDI(io.BytesIO(data)).instruments)


@tokenizers
@pytest.mark.parametrize("steps", [5, 300])
def test_random_pieces_encode_to_themselves_and_are_readable(tokenizer, steps):
    rows, positions = random_walk(tokenizer, 6, steps, seed=steps)
    pad = tokenizer.vocabulary.pad_id
    tokenizer.grammar().start(rows)
    for row, position in zip(rows, positions, strict=True):
        tokens = row[row != pad]
        assert np.array_equal(row[: len(tokens)], tokens), "PAD before the end"
        assert tokens[-1] == tokenizer.vocabulary.id("EOS")
        assert tokenizer in TINY.values() or len(tokens) > steps
        assert np.array_equal(encoded_again(tokenizer, tokens), without_phrases(tokenizer, tokens))
        assert np.array_equal(tokenizer.times(row), position[:, 1])
        assert np.array_equal(
            Coordinates(tokenizer).of(tokens, ("index", "time")), position[: len(tokens)]
        )
        last = position[len(tokens) - 1, 0]
        assert last == len(tokens) - 1 - getattr(tokenizer, "keys", False)
        assert (position[len(tokens) :, 0] == last).all(), "PAD does not count"
        score = tokenizer.decode(tokens)
        data = dumps(score)
        assert np.array_equal(tokenizer.encode(loads(data)), tokenizer.encode(score))
        assert count_notes(data) == (score.num_notes, score.num_notes)
        if tokenizer.name != "chorale":
            ignored = np.stack([tokens, np.full_like(tokens, -100)])
            assert tokenizer.num_notes(ignored) == score.num_notes


@tiny
@pytest.mark.parametrize("steps", [3, 12, 40])
def test_the_grammar_accepts_exactly_the_encodings(tokenizer, steps):
    """Pieces with one random error are accepted if they decode and encode to themselves, only."""
    rng, pad = np.random.default_rng(steps), tokenizer.vocabulary.pad_id
    damaged = []
    for row in np.repeat(random_walk(tokenizer, 8, steps, seed=steps)[0], 4, axis=0):
        tokens = row[row != pad]
        at, other = rng.integers(len(tokens), size=2)
        new = rng.choice(tokens) if rng.random() < 0.5 else rng.integers(pad)
        changed = np.where(np.arange(len(tokens)) == at, new, tokens)
        swapped = tokens.copy()
        swapped[[at, other]] = tokens[[other, at]]
        damaged += [np.delete(tokens, at), np.insert(tokens, at, new), changed, swapped]
    damaged = [tokens for tokens in damaged if len(tokens)]
    grammar, accepted = tokenizer.grammar(), np.zeros(len(damaged), bool)
    for number, tokens in enumerate(damaged):
        with suppress(UserError):
            accepted[number] = grammar.start(tokens[None]).finished[0]
    same = [np.array_equal(encoded_again(tokenizer, row), row) for row in damaged]
    assert np.array_equal(accepted, same)
    assert 0 < accepted.sum() < len(damaged)


@tokenizers
def test_coordinates_are_those_of_the_prefix_and_of_single_steps(tokenizer):
    rng, coordinates = np.random.default_rng(0), Coordinates(tokenizer)
    names = ["index", "time", *rng.permutation(["bar", "beat", *coordinates.values]).tolist()]
    bar_length = int(rng.integers(5, 60))
    rows, positions = random_walk(tokenizer, 3, 60, seed=1)
    whole = np.stack([coordinates.of(r, names, bar_length=bar_length) for r in rows])
    for length in rng.integers(1, rows.shape[1], 5):
        for row, full in zip(rows, whole, strict=True):
            prefix = coordinates.of(row[:length], names, bar_length=bar_length)
            assert np.array_equal(prefix, full[:length])
    step, bar_lengths = whole[:, 0], np.full(len(rows), bar_length)
    for n in range(1, rows.shape[1]):
        step = coordinates.next(names, step, rows[:, n], positions[:, n], bar_lengths)
        running = rows[:, n] != tokenizer.vocabulary.pad_id
        assert np.array_equal(step[running], whole[running, n])


@tokenizers
def test_rows_are_independent_states_are_kept_and_finished_rows_take_pad(tokenizer):
    grammar, pad = tokenizer.grammar(), tokenizer.vocabulary.pad_id
    rows = torch.from_numpy(random_walk(tokenizer, 4, 50, seed=5)[0])
    state = grammar.start(rows[:, :4])
    before = {name: value.copy() for name, value in vars(state).items()}
    mask = grammar.allowed(state)
    for number in range(len(rows)):
        alone = grammar.start(rows[number : number + 1, :4])
        choice = mask[number].nonzero()[-1]
        grammar.advance(state, choice.expand(len(rows)))
        after = grammar.advance(state.select(torch.tensor([number, number])), choice.expand(2))
        expected = grammar.advance(alone, choice)
        stacked = type(alone).cat([expected, expected])
        assert all(np.array_equal(getattr(after, name), x) for name, x in vars(stacked).items())
        assert torch.equal(grammar.allowed(after), grammar.allowed(stacked))
    assert all(np.array_equal(before[name], value) for name, value in vars(state).items())
    by_steps = grammar.start(rows[:, :0])
    for tokens in rows.T:
        by_steps = grammar.advance(by_steps, tokens)
    state = grammar.start(rows)
    for name in vars(state):
        assert np.array_equal(getattr(state, name), getattr(by_steps, name))
    assert state.finished.all()
    assert grammar.allowed(state).nonzero()[:, 1].tolist() == [pad] * 4
    after = grammar.advance(state, torch.full((4,), pad))
    assert np.array_equal(after.positions[:, 0], state.positions[:, 0])
    assert after.finished.all()
