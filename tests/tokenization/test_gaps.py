"""Gaps of pieces, filled by random walks under the grammars."""

import itertools

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.midi import Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.gap import Gap

remi = REMI(velocity_bins=(40, 60, 10))
metric = REMI(time_signatures=["4/4", "3/4"], velocity_bins=(40, 60, 10))
groove = Groove2Groove()
chorale = Chorale()
BAR = 1920  # ticks


def piece(tokenizer, seed, num_bars=8):
    """Music in 4/4: two tracks of the tokenizer's, or two parts of its only one; chords change."""
    rng = np.random.default_rng(seed)
    names = [track.name for track in tokenizer.decode(tokenizer.start_tokens()).tracks]
    tracks = []
    for part in range(2):
        onsets = 240 * np.sort(rng.choice(8 * num_bars, 4 * num_bars, replace=False))
        rows = [
            (int(x), int(rng.integers(1, 9)) * 120, int(rng.integers(48, 60)), 50) for x in onsets
        ]
        tracks.append(Track(names[part % len(names)], notes=notes_from(rows)))
    chords = [Marker(BAR * i, f"{'CDEFGAB'[i % 7]}_M") for i in range(num_bars)]
    return Score(480, tracks, markers=chords)


def with_gap(tokenizer, score, first, last, kept):
    """The encoding without the notes of bars [first, last) that are not kept, and the bars' time."""
    start, end = BAR * first, BAR * last
    tracks = []
    for part, track in enumerate(score.tracks):
        notes = track.notes.copy()
        if part not in kept:
            sounds = (notes["onset"] < start) & (notes["onset"] + notes["duration"] > start)
            notes["duration"][sounds] = start - notes["onset"][sounds]
            notes = notes[(notes["onset"] < start) | (notes["onset"] >= end)]
        tracks.append(Track(track.name, notes=notes))
    steps = 4 * tokenizer.steps_per_beat
    return tokenizer.encode(Score(480, tracks, markers=score.markers)), first * steps, last * steps


def walk_part(tokenizer, tokens, gap, random):
    """Ids with a random walk to the end of a part of a gap, and the one that reaches it."""
    grammar, size = tokenizer.grammar(), len(tokenizer.vocabulary)
    state = grammar.start(torch.from_numpy(tokens)[None])
    state = grammar.hold(state, tempo=True, metre=True)
    state, tokens = grammar.fill(state, [gap]), tokens.tolist()
    preference = 2 * torch.randn(size, generator=random)
    for _ in range(3000):
        mask = grammar.allowed(state, end=False, not_before=torch.tensor([gap.start]))
        assert mask.any()
        assert not mask[0, grammar.eos]
        logits = preference + torch.randn(size, generator=random)
        token = logits.masked_fill(~mask[0], -torch.inf).argmax()
        state = grammar.advance(state, token[None])
        if int(state.time) >= gap.end:
            return np.array(tokens), int(token)
        tokens.append(int(token))
    raise AssertionError("the gap has no end")


def filled_by_walks(tokenizer, tokens, start, end, written, seed):
    random, found = torch.Generator().manual_seed(seed), tokens[:0]
    parts = tokenizer.gaps(tokens, start, end, written, 4 * tokenizer.steps_per_beat)
    assert (parts[0].start, parts[-1].end) == (start, end)
    for part in parts:
        found, last = walk_part(tokenizer, np.append(found, part.tokens), part, random)
    return np.append(found, last)


def note_set(tokenizer, tokens):
    tracks = tokenizer.decode(tokens).tracks
    return {(i, *note) for i, track in enumerate(tracks) for note in track.notes.tolist()}


@pytest.mark.parametrize(
    ("tokenizer", "kept"),
    [*itertools.product([remi, metric, groove], [(), (0,)]), (chorale, ())],
    ids=lambda each: getattr(each, "name", len(each) if isinstance(each, tuple) else None),
)
@pytest.mark.parametrize("bars", [(2, 4), (0, 2), (5, 8)])
def test_a_filled_gap_has_what_is_kept_and_changes_nothing_else(
    tokenizer, kept, bars, grammar_error
):
    num_tracks = len(tokenizer.decode(tokenizer.start_tokens()).tracks)
    num_new = 0
    for seed in range(4):
        # Also beside what is kept of the same track.
        written = [num_tracks == 1 or seed > 1 or i not in kept for i in range(num_tracks)]
        tokens, start, end = with_gap(tokenizer, piece(tokenizer, seed), *bars, kept)
        filled = filled_by_walks(tokenizer, tokens, start, end, written, seed)
        closed = tokenizer.close_gap(tokens, start, end, written, filled)
        assert grammar_error(tokenizer, closed, complete=True) is None
        # What follows can be added to the walk.
        if tokenizer.end_time(tokens) > end:
            assert closed[: len(filled) - 1].tolist() == filled[:-1].tolist()
        old, found = note_set(tokenizer, tokens), note_set(tokenizer, closed)
        step = 480 // tokenizer.steps_per_beat
        if tokenizer is not chorale:  # where notes of one pitch become one note
            assert old <= found
        for voice, onset, duration, _, _ in found - old:
            inside = start * step <= onset < onset + duration <= end * step
            assert (inside and written[voice]) or tokenizer is chorale
        num_new += len(found - old)
        times = tokenizer.times(closed), tokenizer.times(tokens)
        assert closed[times[0] < start].tolist() == tokens[times[1] < start].tolist()
    assert num_new > 20


def test_kept_notes_stop_others_of_their_key():
    """A random walk of one key alone beside kept notes of that key."""
    onsets = [BAR + 480, BAR + 1440]
    score = Score(480, [Track("Piano", notes=notes_from([(x, 240, 60, 50) for x in onsets]))])
    tokens, start, end = with_gap(remi, score, 1, 2, (0,))
    (part,) = remi.gaps(tokens, start, end, [True], 16)
    grammar = remi.grammar()
    context = remi.until_end(part.tokens)
    state = grammar.fill(grammar.start(torch.from_numpy(context)[None]), [part])
    for name in ("Beat_0", "Pitch_60", "Velocity_50"):
        token = torch.tensor([remi.vocabulary.id(name)])
        assert grammar.allowed(state)[0, token]
        state = grammar.advance(state, token)
    allowed = grammar.allowed(state)[0].nonzero()[:, 0].tolist()
    assert [remi.vocabulary.token(i) for i in allowed][-1] == "Duration_4"  # up to the kept note
    state = grammar.advance(state, torch.tensor([remi.vocabulary.id("Duration_1")]))
    allowed = [remi.vocabulary.token(i) for i in grammar.allowed(state)[0].nonzero()[:, 0].tolist()]
    beats = [name for name in allowed if name.startswith("Beat")]
    assert beats == [f"Beat_{i}" for i in range(1, 5)]  # none behind it, and no end of the bar
    assert not {"EOS", "Bar"} & set(allowed)


@pytest.mark.parametrize("tokenizer", [remi, groove], ids=lambda t: t.name)
def test_rows_of_a_batch_fill_gaps_of_their_own(tokenizer):
    """Their masks are those of each row alone."""
    grammar, random = tokenizer.grammar(), torch.Generator().manual_seed(0)
    gaps = []
    for seed, (bars, kept) in enumerate([((2, 4), (0,)), ((3, 4), ()), ((2, 3), (0, 1))]):
        tokens, start, end = with_gap(tokenizer, piece(tokenizer, seed), *bars, kept)
        written = [True] * len(tokenizer.decode(tokens).tracks)
        gaps.append(tokenizer.gaps(tokens, start, end, written, 4 * tokenizer.steps_per_beat)[0])
    states = [grammar.start(torch.from_numpy(gap.tokens)[None]) for gap in gaps]
    together = grammar.fill(type(states[0]).cat(states), gaps)
    alone = [grammar.fill(state, [gap]) for state, gap in zip(states, gaps, strict=True)]
    starts = torch.tensor([gap.start for gap in gaps])
    for _ in range(60):
        mask = grammar.allowed(together, end=False, not_before=starts)
        own = [
            grammar.allowed(state, end=False, not_before=starts[i : i + 1])
            for i, state in enumerate(alone)
        ]
        assert torch.equal(mask, torch.cat(own))
        noise = torch.rand(mask.shape, generator=random)
        token = noise.masked_fill(~mask, -1.0).argmax(dim=1)
        together = grammar.advance(together, token)
        alone = [grammar.advance(state, token[i : i + 1]) for i, state in enumerate(alone)]


def test_a_gap_without_kept_notes_is_one_part_and_with_them_a_part_for_each_bar():
    for tokenizer in (remi, groove):
        written = [True] * len(tokenizer.decode(tokenizer.start_tokens()).tracks)
        for kept, number in ((), 1), ((0,), 3):
            tokens, start, end = with_gap(tokenizer, piece(tokenizer, 0), 2, 5, kept)
            parts = tokenizer.gaps(tokens, start, end, written, 4 * tokenizer.steps_per_beat)
            assert len(parts) == number
            assert {part.silent_by for part in parts} == {end}
            before = tokenizer.until_end(parts[0].tokens)
            size = int((tokenizer.times(tokens) < start).sum())
            assert before[:size].tolist() == tokens[:size].tolist()


def test_bars_of_several_metres_are_parts_and_keep_their_metre():
    rows = [(240 * i, 240, 60 + i % 5, 50) for i in range(40)]
    score = Score(480, [Track(notes=notes_from(rows))])
    score.time_signatures = [TimeSignature(0, 4, 4), TimeSignature(2 * BAR, 3, 4)]
    tokens = metric.encode(score)
    bars = metric.bar_starts(tokens, 16).tolist()
    assert bars[:5] == [0, 16, 32, 44, 56]
    filled = filled_by_walks(metric, tokens, 16, 44, [True], 0)
    closed = metric.close_gap(tokens, 16, 44, [True], filled)
    assert metric.bar_starts(closed, 16).tolist() == bars
    with pytest.raises(UserError, match="none of this model's, which are in 4/4, 3/4"):
        metric.gaps(tokens, 16, 40, [True], 16)


def test_chords_and_tempi_of_the_gap_end_with_it():
    score = piece(remi, 0)
    score.markers.append(Marker(9 * BAR, "A_m"))  # behind the last note
    tokens, start, end = with_gap(remi, score, 2, 4, ())
    (part,) = remi.gaps(tokens, start, end, [True], 16)
    names = ["Beat_0", "Chord_F#_m", "Pitch_60", "Velocity_50", "Duration_2", "Bar"]
    filled = np.append(part.tokens, [remi.vocabulary.id(name) for name in names])
    closed = remi.decode(remi.close_gap(tokens, start, end, [True], filled))
    texts = {marker.tick // BAR: marker.text for marker in closed.markers}
    assert [texts.get(i) for i in (1, 2, 4, 9)] == ["D_M", "F#_m", "G_M", "A_m"]
    assert 3 not in texts


def test_what_is_kept_in_a_part():
    kept = np.array([[16, 0, 0, 0], [31, 0, 0, 0], [32, 0, 0, 0]])
    assert Gap(kept[:0, 0], 16, 32, 48, kept=kept).num_kept == 2
