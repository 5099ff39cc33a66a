"""REMI with what follows some bars ahead of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from musicgen.composer import compose_pop
from musicgen.errors import ParameterError, UserError
from musicgen.midi import Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI

remi = REMI(fill_probability=0.5)
BAR = 16  # grid steps
metric = REMI(fill_probability=0.5, time_signatures=["4/4", "3/4"])


def bars(tokenizer, *numbers, beats=4, signatures=()):
    """A bar for each number: a half note of that pitch, then one that sounds into the next bar."""
    rows = []
    for i, pitch in enumerate(numbers):
        rows += [(480 * beats * i, 960, pitch, 64), (480 * beats * i + 960, 1440, pitch + 1, 64)]
    return tokenizer.encode(
        Score(480, [Track(notes=notes_from(rows))], time_signatures=list(signatures))
    )


def emptied(score, first, last):
    """A score without the notes of some bars."""
    (track,) = score.tracks
    notes = track.notes[
        (track.notes["onset"] // 1920 < first) | (track.notes["onset"] // 1920 >= last)
    ]
    return replace(score, tracks=[replace(track, notes=notes)])


def bar(pitch, last="12"):
    return (
        f"Bar Beat_0 Pitch_{pitch} Velocity_64 Duration_8 "
        f"Beat_8 Pitch_{pitch + 1} Velocity_64 Duration_{last}"
    )


def test_what_follows_a_gap_precedes_it(names):
    moved = remi.fill(remi.until_end(bars(remi, *range(50, 80, 2))), 1, 3)
    # Eight bars follow. Notes end at the edges of the gap: in the bar before it, and in its last.
    after = [bar(pitch) for pitch in range(56, 72, 2)]
    expected = [bar(50, "8"), "Gap_2", *after, "Fill", bar(52), bar(54, "8"), "EOS"]
    assert names(remi, moved) == " ".join(expected)
    at_end = remi.fill(remi.until_end(bars(remi, 50, 52, 54)), 1, 3)
    assert names(remi, at_end).endswith(f"Gap_2 Fill {bar(52)} {bar(54, '8')} EOS")


def test_decoding_puts_the_bars_in_their_order():
    """Also of every beginning, and of the whole as of the piece without its notes' tails."""
    tokens = remi.until_end(bars(remi, *range(60, 80, 2)))
    moved = remi.fill(tokens, 1, 3)
    whole = remi.decode(remi.until_end(tokens)).tracks[0].notes
    cut = whole.copy()
    cut["duration"][[1, 5]] = 960
    assert np.array_equal(remi.decode(moved).tracks[0].notes, cut)
    for end in range(len(moved)):
        notes = remi.decode(moved[:end]).tracks[0].notes
        assert {*notes.tolist()} <= {*cut.tolist()}
        assert len(notes) == remi.num_notes(moved[: max(0, end - 2)])


@pytest.mark.parametrize("tokenizer", [remi, metric], ids=["4/4", "metres"])
def test_the_grammar_accepts_exactly_the_arrangements(walk, grammar_error, tokenizer):
    """Random walks, each with one error: the masks agree with the reference in plain Python."""
    small = REMI(
        **{
            **tokenizer.settings(),
            "pitch_range": (60, 63),
            "max_bars": 12,
            "velocity_bins": (64, 64, 1),
        }
    )
    rng, pad = np.random.default_rng(0), small.vocabulary.pad_id
    rows, positions = walk(small, 24, 90, seed=3)
    damaged, filled = [], 0
    for row, position in zip(rows, positions, strict=True):
        tokens = row[row != pad]
        filled += np.isin(tokens, small.families["Fill"]).sum()
        assert np.array_equal(small.positions(tokens), position[: len(tokens)])
        assert grammar_error(small, tokens, complete=True) is None
        again = small.encode(small.decode(tokens))
        assert np.array_equal(small.encode(small.decode(again)), again)
        for _ in range(4):
            at = int(rng.integers(len(tokens)))
            new = rng.choice(tokens) if rng.random() < 0.5 else rng.integers(pad)
            changed = np.where(np.arange(len(tokens)) == at, new, tokens)
            damaged += [np.delete(tokens, at), np.insert(tokens, at, new), changed]
    assert filled > 5
    batch = pad_sequence(list(map(torch.from_numpy, damaged)), True, padding_value=pad)
    accepted = small.grammar().accepts(batch).tolist()
    assert accepted == [grammar_error(small, row) is None for row in damaged]
    assert 0.02 < np.mean(accepted) < 0.8


def test_training_crops_are_arranged_as_often_as_asked(grammar_error):
    """They are grammatical, use nearly all tokens, and hold the music of the window."""
    rng = np.random.default_rng(0)
    tokens = remi.encode(compose_pop(0, 0))
    kinds, used, bars_after, at_end = [], [], [], 0
    for number in range(200):
        length = [1000, 1500, 5, len(tokens) + 9][number % 4]
        first = int(rng.integers(20))
        window = remi.sample_window(tokens, rng, length, bar_length=BAR, augment=True, bar=first)
        moved = remi.arrange(window, rng, length, BAR)
        assert 0 < len(moved) <= length
        fill = int(np.isin(moved, remi.families["Fill"]).argmax())
        if length == 5:
            assert moved is window
            continue
        kinds.append(fill > 0)
        if not fill:
            assert moved is window
            continue
        assert grammar_error(remi, moved, complete=True) is None
        assert remi.grammar().accepts(torch.from_numpy(moved)[None]).all()
        used.append(len(moved) / len(window))
        is_bar = np.isin(moved, remi.families["Bar"])
        gap = np.flatnonzero(np.isin(moved, remi.families["Gap"]))[0]
        bars_after.append(is_bar[gap:fill].sum())
        at_end += window[-1] == remi.vocabulary.id("EOS")
        assert is_bar[fill:].sum() == moved[gap] - remi.families["Gap"].start + 1
        notes = remi.decode(moved).tracks[0].notes
        own = remi.decode(window).tracks[0].notes[: len(notes)]
        for name in ("onset", "pitch", "velocity"):
            assert np.array_equal(notes[name], own[name])
        assert (notes["duration"] <= own["duration"]).all()
    assert abs(np.mean(kinds) - 0.5) < 0.1
    assert min(used) > 0.85
    assert np.mean(used) > 0.95
    assert {0, 8} <= set(bars_after) <= set(range(9))
    assert at_end > 20
    plain = REMI()
    assert np.array_equal(plain.arrange(tokens, rng, len(tokens), BAR), tokens)


def test_a_gap_has_the_metre_before_it():
    signatures = [TimeSignature(0, 3, 4), TimeSignature(3 * 3 * 480, 4, 4)]
    tokens = metric.until_end(bars(metric, *range(40, 84, 2), signatures=signatures))
    every, length = [True], 10**6
    gap = metric.gap(tokens, 12, 36, every, length)
    state = metric.grammar().start(torch.from_numpy(gap.tokens)[None])
    shown = metric.grammar().allowed(state)[0].nonzero()[:, 0].tolist()
    assert [metric.vocabulary.token(i) for i in shown] == ["Bar_3/4"]
    for start, end in ((24, 52), (36, 52), (0, 12)):
        with pytest.raises(UserError, match="must have the metre of those before them"):
            metric.gap(tokens, start, end, every, length)
    with pytest.raises(UserError, match="none of this model's, which are in 4/4, 3/4"):
        metric.gap(tokens, 12, 38, every, length)
    rng = np.random.default_rng(0)
    crops = [metric.arrange(tokens, rng, 10**6, BAR) for _ in range(60)]
    gaps = [crop for crop in crops if np.isin(crop, metric.families["Gap"]).any()]
    assert len(gaps) > 5
    assert all(metric.grammar().accepts(torch.from_numpy(crop)[None]).all() for crop in gaps)


def test_a_gap_is_filled_by_whole_bars():
    """The sequence ends with the gap's last bar, and no note passes it."""
    tokens = remi.encode(emptied(remi.decode(bars(remi, *range(60, 84, 2))), 2, 4))
    gap = remi.gap(tokens, 2 * BAR, 4 * BAR, [True], 10**6)
    grammar, random = remi.grammar(), torch.Generator().manual_seed(0)
    state = grammar.start(torch.from_numpy(gap.tokens)[None].repeat(30, 1))
    state = grammar.hold(state, tempo=True, metre=True)
    rows = []
    while not state.finished.all():
        allowed = grammar.allowed(state)
        token = torch.multinomial(allowed.double(), 1, generator=random)[:, 0]
        if not rows:
            assert remi.vocabulary.token(int(gap.given[0])) == "Bar"
            token = torch.full_like(token, gap.given[0])
        state = grammar.advance(state, token)
        rows.append(token)
    for row in torch.stack(rows, dim=1).numpy():
        assert not np.isin(row, [*remi.families["Tempo"], *remi.families["Gap"]]).any()
        closed = remi.close_gap(tokens, 2 * BAR, 4 * BAR, [True], np.append(gap.tokens, row))
        notes = remi.decode(closed).tracks[0].notes
        new = (notes["onset"] >= 960 * 4) & (notes["onset"] < 1920 * 4)
        assert new.sum() == remi.num_notes(row)
        assert (notes["onset"] + notes["duration"])[new].max(initial=0) <= 1920 * 4
        others = remi.decode(tokens).tracks[0].notes
        others["duration"][3] = 960  # which sounds into the gap
        assert np.array_equal(notes[~new], others)


def test_the_bars_before_a_gap_are_given_behind_what_follows():
    """As many as fit, and one before them for the metre."""
    tokens = remi.encode(emptied(remi.decode(bars(remi, *range(30, 90))), 40, 42))
    gap = remi.gap(tokens, 40 * BAR, 42 * BAR, [True], 0)
    fill = int(np.isin(gap.tokens, remi.families["Fill"]).argmax())
    parts = gap.tokens[:fill], gap.tokens[fill + 1 :]
    assert np.isin(gap.tokens, remi.vocabulary.id("Gap_32")).sum() == 1
    before, near = (remi.decode(part).tracks[0].notes["pitch"].tolist() for part in parts)
    assert before == [39, 40, *(72 + i // 2 + i % 2 for i in range(16))]
    assert near == [40 + i // 2 + i % 2 for i in range(60)]
    filled = np.append(gap.tokens, remi.until_end(bars(remi, 100, 101)))
    closed = remi.close_gap(tokens, 40 * BAR, 42 * BAR, [True], filled)
    pitches = remi.decode(closed).tracks[0].notes["pitch"]
    assert pitches[[79, 80, 81, 82, 83, 84]].tolist() == [70, 100, 101, 101, 102, 72]
    with pytest.raises(UserError, match="at most 16 bars at a time"):
        remi.gap(tokens, 20 * BAR, 37 * BAR, [True], 0)


def test_a_continuation_never_has_a_gap():
    prompt = torch.from_numpy(remi.until_end(bars(remi, 60, 62)))[None]
    grammar = remi.grammar()
    state = grammar.start(prompt)
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        allowed = grammar.allowed(state, end=False)
        assert not allowed[:, [*remi.families["Gap"], *remi.families["Fill"]]].any()
        token = torch.multinomial(allowed.double(), 1, generator=generator)[:, 0]
        state = grammar.advance(state, token)


def test_chords_before_and_after_a_gap_are_independent():
    """A chord after the gap may be that before it; the first in the gap is another."""
    score = Score(480, [Track(notes=notes_from([(1920 * i, 960, 60, 64) for i in range(4)]))])
    score.markers = [Marker(0, "C_M"), Marker(1920, "F_M"), Marker(3840, "C_M")]
    tokens = remi.until_end(remi.encode(score))
    moved = remi.fill(tokens, 1, 2)
    assert remi.grammar().accepts(torch.from_numpy(moved)[None]).all()
    again = np.where(
        moved == remi.vocabulary.id("Chord_F_M"), remi.vocabulary.id("Chord_C_M"), moved
    )
    assert not remi.grammar().accepts(torch.from_numpy(again)[None]).all()
    assert remi.decode(moved).markers == score.markers


def test_the_probability_decides_the_vocabulary():
    plain = REMI()
    assert "fill_probability" not in plain.settings()
    assert remi.settings()["fill_probability"] == 0.5
    added = [f"Gap_{n}" for n in range(1, 33)] + ["Fill"]
    assert remi.vocabulary.tokens == (*plain.vocabulary.tokens, *added)
    with pytest.raises(ParameterError, match="fill_probability"):
        REMI(fill_probability=1.5)
