"""The order future, past, gap: its tokens, its times, its grammar, and crops in it."""

import numpy as np
import pytest

from musicgen.composer import compose_song
from musicgen.tokenization import Songs
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.gaps import FUTURE_BARS, future_length
from musicgen.tokenization.vocabulary import within
from tests.tokenization.test_songs import song
from tests.tokenizers import frozen_tokenizers

PLAIN = frozen_tokenizers()["songs"]
GAPS = Songs(**PLAIN.settings() | {"gap_probability": 1.0, "lead_probability": 0})
BAR = GAPS.families["Bar"]


def bars_of(tokens):
    """Whole bars, as lists of ids."""
    return [part.tolist() for part in np.split(tokens, np.flatnonzero(within(tokens, BAR)))]


def test_the_marks_are_new_tokens_at_the_end_of_the_vocabulary():
    assert PLAIN.vocabulary.names == GAPS.vocabulary.names[:-2]
    assert GAPS.vocabulary.names[-2:] == ("Gap_Future", "Gap_Now")


def test_the_order_of_tokens_by_hand(names):
    tokens = GAPS.encode(song())[:-1]  # two bars of 36 grid steps
    future = GAPS.future(tokens, 1, None)
    assert names(GAPS, future) == (
        "Gap_Future Bar_3/4 Key_-3 Tempo_95 Part_Chords Beat_0 Chord_G_7 "
        "Part_Piano Beat_0 Pitch_67 Duration_4 Beat_4 Pitch_68 Duration_4 "
        "Part_Drums Beat_0 Drum_36 Gap_Now"
    )
    assert not len(GAPS.future(tokens, 2, None))  # nothing follows
    assert not len(PLAIN.future(tokens, 1, None))  # the vocabulary has no marks
    gap = np.concatenate([future, GAPS.until_end(tokens[: np.flatnonzero(tokens == BAR[1])[-1]])])
    assert future_length(gap, GAPS.families["Gap"]) == len(future)
    assert GAPS.decode(gap) == GAPS.decode(gap[len(future) :])


def test_the_future_is_where_the_gap_ends_in_musical_time():
    tokens = GAPS.encode(song())[:-1]
    line = np.flatnonzero(within(tokens, BAR))[1]
    future, past = GAPS.future(tokens, 1, None), tokens[:line]
    gap, names = np.concatenate([future, past]), ("index", "time", "bar", "beat")
    index, time, bar, beat = Coordinates(GAPS).of(gap, names).T
    assert index.tolist() == [*range(len(gap))]
    at_first = Coordinates(GAPS).of(tokens, names)[:, 1]
    first = len(future)
    assert time[first:].tolist() == at_first[:line].tolist()
    assert time[0] == 36
    assert time[first - 1] == 0
    assert time[1 : first - 1].max() == 36 + 4
    assert bar[first - 1] == 0
    assert bar[first] == 1
    assert beat.min() == 0
    assert beat[:first].max() == 4
    later = Coordinates(GAPS).of(gap, names, gap_end=100)[:, 1]
    assert (later - time).tolist() == [64] * (first - 1) + [0] * (len(gap) - first + 1)


@pytest.mark.parametrize("seed", range(6))
def test_crops_have_all_bars_before_the_gap_and_some_behind_it(seed):
    window = PLAIN.encode(compose_song(seed, 0))[:700]
    turned = GAPS.rearrange(window, np.random.default_rng(seed))
    assert len(turned) <= len(window)
    first = GAPS.future_length(turned)
    future, rest = bars_of(turned[:first])[1:], bars_of(turned[first:])[1:]
    future[-1] = future[-1][:-1]  # without the second mark
    bars = bars_of(window)[1:]
    gap_end = len(rest) - 1
    assert rest[:-1] == bars[:gap_end]
    assert rest[-1] == bars[gap_end][:1]  # the token that ends the gap
    assert 1 <= len(future) <= FUTURE_BARS
    assert future[1:] == bars[gap_end + 1 : gap_end + len(future)]
    assert future[0][-1:] == bars[gap_end][-1:]  # but its header
    GAPS.grammar().start(turned[None])


def test_the_grammar_begins_anew_after_the_future():
    window = PLAIN.encode(compose_song(3, 0))[:400]
    turned = GAPS.rearrange(window, np.random.default_rng(1))
    first = GAPS.future_length(turned)
    state, alone = (GAPS.grammar().start(x[None]) for x in (turned, turned[first:]))
    assert state.positions.tolist() == [[len(turned) - 1, alone.positions[0, 1]]]
    allowed = GAPS.grammar().allowed(state)
    assert (allowed == GAPS.grammar().allowed(alone)).all()
    assert not allowed[0, GAPS.families["Gap"]].any()


def test_parts_that_lead_do_so_in_the_future_too():
    tokenizer = Songs(**GAPS.settings() | {"lead_probability": 1.0})
    window = PLAIN.encode(compose_song(1, 0))[:900]
    for seed in range(8):
        turned = tokenizer.rearrange(window, np.random.default_rng(seed))
        tokenizer.grammar().start(turned[None])
        first = tokenizer.future_length(turned)
        segments = turned[1 : first - 1], turned[first:]
        orders = [tokenizer.grammar().start(x[None]).orders for x in segments]
        assert (orders[0] & orders[1]).any()
