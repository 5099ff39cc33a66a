"""Closed pieces end where the model would begin the next bar, on the tonic chord."""

import numpy as np
import torch

import musicgen
from benchmarks.endings import ends_on_tonic, has_pile, last_bar
from musicgen.data.corpora import BachChorales
from musicgen.generation.constraints import EndBy
from musicgen.midi import TICKS_PER_BEAT, KeySignature, pitched_notes, read
from musicgen.midi.key import Key, final_key, find_key
from musicgen.tokenization.bar_constraints import LastChordOfBars, last_pitches
from musicgen.tokenization.chords import ROOTS
from musicgen.tokenization.constraints import tonic_pitches
from tests.generation.builders import TOKENIZERS


def test_the_end_has_the_probability_of_going_on():
    tokenizer = TOKENIZERS["remi"]
    grammar = tokenizer.grammar()
    names = ["Bar", "Beat_0", "Pitch_60", "Velocity_64", "Duration_4"]
    state = grammar.start(np.array([[tokenizer.vocabulary.id(name) for name in names]]))
    constraint = EndBy(grammar, np.array([16]))
    closing = constraint.restrict(state)
    logits = torch.randn(1, len(tokenizer.vocabulary), dtype=torch.float64)
    allowed = grammar.allowed(closing)
    assert allowed[0, grammar.eos]
    found = constraint.redirect(closing, logits, allowed).softmax(-1)
    bar, p = tokenizer.vocabulary.id("Bar"), logits.softmax(-1)
    assert not allowed[0, bar]
    # The mass of the end is its own and the bar's; ratios of the others stay.
    pitches = tokenizer.families["Pitch"]
    together = p[0, grammar.eos] + p[0, bar]
    torch.testing.assert_close(found[0, grammar.eos] / found[0, 99], together / p[0, 99])
    torch.testing.assert_close(
        found[0, pitches.start] / found[0, 99], p[0, pitches.start] / p[0, 99]
    )
    # Within a note the piece cannot end, and nothing changes.
    inside = grammar.advance(closing, np.array([pitches.start + 50]))
    same = constraint.redirect(inside, logits, grammar.allowed(inside))
    assert torch.equal(same, logits)


def test_a_part_that_would_go_on_in_the_second_half_of_the_last_bar_is_over():
    tokenizer = TOKENIZERS["remi"]
    grammar, index = tokenizer.grammar(), tokenizer.vocabulary.id
    names = ["Bar", "Beat_8", "Pitch_60", "Velocity_64", "Duration_4"]
    start = grammar.start(np.array([[index(name) for name in names]]))
    state, earlier = (EndBy(grammar, np.array([end])).restrict(start) for end in (16, 32))
    constraint = LastChordOfBars(
        grammar, np.array([0]), last_pitches([Key(0, True)], tokenizer.pitches)
    )
    mask = torch.from_numpy(constraint.allowed(state, np.arange(1)))
    allowed = grammar.allowed(state) & mask
    late = [index(f"Beat_{beat}") for beat in range(9, 16)]
    assert not allowed[0, late].any()
    assert grammar.allowed(state)[0, late].any()
    logits = torch.randn(1, len(tokenizer.vocabulary), dtype=torch.float64)
    found, p = constraint.redirect(state, logits, allowed).softmax(-1)[0], logits.softmax(-1)[0]
    late = [beat for beat in late if grammar.allowed(state)[0, beat]]
    other = index("Pitch_64")
    torch.testing.assert_close(
        found[grammar.eos] / found[other], (p[grammar.eos] + p[late].sum()) / p[other]
    )
    # Before the last bar nothing changes.
    assert constraint.redirect(earlier, logits, allowed) is logits


def test_notes_do_not_pile_up_at_the_end_and_the_last_chord_is_the_tonic():
    model = musicgen.load("songs-small")
    options = {"prompt_bars": 4, "bars": 1, "ending": "close", "batch_size": 48}
    pieces = model.generate("example.mid", num_samples=48, seed=1, **options)
    # Most of them pile up if the mask shares the probability among notes.
    assert sum(map(has_pile, pieces)) <= 1
    assert all(ends_on_tonic(piece.score, final_key(piece.prompt.score)) for piece in pieces)
    for notes in (last_bar(piece.score) for piece in pieces):
        in_bar = notes["onset"] % (4 * TICKS_PER_BEAT)
        assert in_bar.max() <= 2 * TICKS_PER_BEAT
        assert set((notes["pitch"][notes["pitch"] < 48] % 12).tolist()) <= {0}
    chords = [piece.score.markers[-1].text for piece in pieces]
    assert {chord.split("_")[0] for chord in chords} <= {*ROOTS}
    assert len(set(chords)) == 1
    assert chords[0].startswith("C_M")


def test_a_chorale_ends_on_a_held_tonic_chord():
    corpus = BachChorales()
    scores = [corpus.read_piece(piece) for piece in [*corpus.pieces()][:2]]
    model = musicgen.load("bach-chorales")
    pieces = model.generate(scores, prompt_bars=2, bars=2, ending="close", num_samples=3)
    for piece in pieces:
        assert ends_on_tonic(piece.score, final_key(piece.prompt.score))
        ends = [
            int((track.notes["onset"] + track.notes["duration"]).max())
            for track in piece.score.tracks
        ]
        assert ends == 4 * [piece.score.end]


def test_triads_of_keys():
    keys = [Key(0, True), Key(9, False), None]
    assert [np.flatnonzero(row).tolist() for row in tonic_pitches(keys, range(12))] == [
        [0, 4, 7],
        [0, 4, 9],
        [*range(12)],
    ]


def test_the_bass_of_the_last_chord_is_the_tonic():
    (allowed,) = last_pitches([Key(2, False)], range(36, 60))
    assert (np.flatnonzero(allowed) + 36).tolist() == [38, 50, 53, 57]


def test_the_key_is_one_of_the_signature():
    prompt = musicgen.load("songs-small").prompt("example.mid", prompt_bars=6)
    assert find_key(pitched_notes(prompt.score)) == Key(7, True)
    assert final_key(prompt.score) == Key(0, True)
    assert find_key(pitched_notes(prompt.score), fifths=-6).fifths in (-6, 6)


def test_a_signature_of_c_that_the_notes_contradict_is_none():
    score = read("example.mid")
    for track in score.tracks:
        track.notes["pitch"] += 1
    score.key_signatures = [KeySignature(0, 0)]
    prompt = musicgen.load("songs-small").prompt(score, prompt_bars=6)
    assert prompt.score.key_signatures == [KeySignature(0, 0)]
    assert final_key(prompt.score) == find_key(pitched_notes(prompt.score)) == Key(8, True)
