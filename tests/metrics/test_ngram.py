import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.metrics.position_loss import InterpolatedTrigram

V = 4
corpora = st.lists(st.lists(st.integers(0, V - 1), max_size=12), max_size=4)


def witten_bell(corpus, history, token):
    """Compute the interpolated probability by recursion on lists."""
    lower = witten_bell(corpus, history[1:], token) if history else 1 / V
    size = len(history)
    after = [
        s[i + size]
        for s in corpus
        for i in range(len(s) - size)
        if list(s[i : i + size]) == list(history)
    ]
    if not after:
        return lower
    return (after.count(token) + len(set(after)) * lower) / (len(after) + len(set(after)))


@settings(max_examples=60)
@given(corpus=corpora, sequence=st.lists(st.integers(0, V - 1), max_size=8))
def test_losses_match_the_recursion(corpus, sequence):
    model = InterpolatedTrigram(V, corpus)
    expected = [
        -math.log(witten_bell(corpus, sequence[max(0, i - 2) : i], token))
        for i, token in enumerate(sequence)
    ]
    np.testing.assert_allclose(model.losses(sequence), expected, atol=1e-12)


def test_empty_corpus_is_uniform_and_large_vocabularies_are_supported():
    np.testing.assert_allclose(InterpolatedTrigram(50, []).losses([3, 4, 5]), math.log(50))
    top = np.array([2_000_000 - 1] * 5, dtype=np.uint32)
    assert np.isfinite(InterpolatedTrigram(2_000_000, [top]).losses(top)).all()
