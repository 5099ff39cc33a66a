"""Tokens sampled from random logits under every grammar are music that other libraries can read.

RANDOM_TOKENS=1000000 python -m pytest -s tests/tokenization/test_random_logits.py samples that many
under each, and prints statistics.
"""

import io
import os

import mido
import numpy as np
import pretty_midi
import pytest
import symusic

from musicgen.midi import dumps, loads
from musicgen.tokenization import frozen_tokenizers

NUM_TOKENS = int(os.environ.get("RANDOM_TOKENS", 3_000))
NUM_ROWS = max(8, min(64, NUM_TOKENS // 200))
LONGEST = max(10, min(3000, NUM_TOKENS // NUM_ROWS // 3))


def count_notes(data):
    """Number of notes that each of three libraries reads from the bytes of a MIDI file."""
    note_ons = sum(
        message.type == "note_on" and message.velocity > 0
        for track in mido.MidiFile(file=io.BytesIO(data)).tracks
        for message in track
    )
    pretty = pretty_midi.PrettyMIDI(io.BytesIO(data))
    parsed = symusic.Score.from_midi(data)
    return [note_ons, sum(len(i.notes) for i in pretty.instruments), parsed.note_num()]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", frozen_tokenizers())
def test_random_pieces_are_readable_and_encode_to_themselves(name, walk, grammar_error):
    tokenizer = frozen_tokenizers()[name]
    rng = np.random.default_rng(0)
    lengths = []
    while sum(lengths) < NUM_TOKENS:
        # Pieces of one event up to long ones.
        steps = int(LONGEST ** rng.random())
        rows, _ = walk(tokenizer, NUM_ROWS, steps, seed=len(lengths))
        for row in rows:
            tokens = row[row != tokenizer.vocabulary.pad_id]
            assert grammar_error(tokenizer, tokens, complete=True) is None
            score = tokenizer.decode(tokens)
            assert np.array_equal(tokenizer.encode(score), tokens)
            data = dumps(score)
            assert np.array_equal(tokenizer.encode(loads(data)), tokens)
            assert count_notes(data) == [score.num_notes] * 3
            # Chorale counts as the literature does: every voice of every frame.
            expected = len(tokens) - 2 if name == "chorale" else score.num_notes
            ignored = np.stack([tokens, np.full_like(tokens, -100)])
            assert tokenizer.num_notes(row) == tokenizer.num_notes(ignored) == expected
            lengths.append(len(tokens))
    print(
        f"\n{name}: {sum(lengths):,} tokens in {len(lengths):,} pieces "
        f"of {min(lengths)} to {max(lengths):,}; not one invalid"
    )
