import numpy as np
import pytest

from musicgen.composer import compose_groove, compose_pop
from musicgen.metrics.metre import BarFit, accents, best_shift, explained, fit_bars, grid_clarity
from musicgen.midi import Score, TimeSignature, Track, notes_from


def bars(num_beats, *, late=0, count=24, signature=(4, 4)):
    """Return bars of a bass note and chords, whose harmony changes with each bar."""
    rows = []
    for bar in range(count):
        start, root = 480 * (bar * num_beats + late), 36 + 5 * bar % 12
        rows.append((start, 480 * num_beats, root, 64))
        for beat in range(1, num_beats):
            rows += [(start + 480 * beat, 240, root + 24 + i, 64) for i in (0, 4, 7)]
    signatures = [TimeSignature(0, *signature)]
    return Score(480, [Track(notes=notes_from(rows))], time_signatures=signatures)


def test_bars_of_another_length_are_named():
    assert fit_bars(bars(3)) == BarFit("3/4 or 6/8", None)
    assert fit_bars(bars(4, signature=(3, 4))) == BarFit("4/4", None)
    assert fit_bars(bars(5)) == BarFit("5/4", None)
    for n in (3, 4, 5):
        assert fit_bars(bars(n, signature=(n, 4))) == BarFit(None, None)
    # A part or a multiple of the bars is not another metre.
    assert fit_bars(bars(4, signature=(2, 4))).metre is None


@pytest.mark.parametrize("late", [1, 3])
def test_bars_that_begin_on_another_beat_are_named(late):
    assert fit_bars(bars(4, late=late)) == BarFit(None, late)
    assert fit_bars(bars(3, late=1, signature=(3, 4))) == BarFit(None, 1)


def test_nothing_is_said_of_short_changing_or_empty_pieces():
    changing = bars(3)
    changing.time_signatures.append(TimeSignature(1920, 3, 4))
    for score in (bars(3, count=6), changing, Score(), bars(4, count=1)):
        assert fit_bars(score) == BarFit(None, None)


def test_composed_pieces_fit_their_bars():
    scores = [compose_pop(5, i) for i in range(12)]
    scores += [compose_groove(5, f, i, 0) for f in ("rock", "bossa", "swing") for i in range(3)]
    assert [fit_bars(score) for score in scores] == [BarFit(None, None)] * len(scores)


def test_the_explained_variance_is_the_adjusted_r_squared_of_a_regression():
    rng = np.random.default_rng(0)
    weights = rng.random(60) + np.tile([2, 0, 0, 1, 0, 0], 10)
    dummies = np.tile(np.eye(6), (10, 1))
    residual = weights - dummies @ np.linalg.lstsq(dummies, weights, rcond=None)[0]
    r2 = 1 - (residual**2).sum() / ((weights - weights.mean()) ** 2).sum()
    assert explained(weights, 6) == pytest.approx(1 - (1 - r2) * 59 / 54)
    assert explained(np.ones(60), 6) == 0
    assert best_shift(np.tile([0, 0, 1, 0, 0.3, 0, 0.6, 0], 8), 8, 2)[0] == 2


def test_accents_are_those_of_a_naive_count():
    rng = np.random.default_rng(1)
    rows = [
        (240 * int(t), 240 * int(d), int(p), 64)
        for t, d, p in rng.integers((1, 1, 50), (40, 40, 90), (60, 3))
    ]
    length = max(row[0] for row in rows) // 240 + 1
    median = np.median([row[2] for row in rows])
    begins, new = np.zeros(length), np.zeros(length)
    for start, duration, pitch, _ in rows:
        begins[start // 240] += min(duration / 480, 4) * (2 if pitch < median else 1)

    def sounding(first, last):
        counts = np.zeros(12)
        for eighth in range(max(0, first), min(last, length + 4)):
            for start, duration, pitch, _ in rows:
                counts[pitch % 12] += start <= 240 * eighth < start + duration
        return counts / max(np.linalg.norm(counts), 1e-9)

    for t in range(4, length):
        new[t] = 1 - sounding(t - 4, t) @ sounding(t, t + 4)
    expected = begins / begins.mean() + 3 * new / new.mean()
    found = accents(Score(480, [Track(notes=notes_from(rows))]))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_clarity_of_the_grid():
    rng = np.random.default_rng(0)
    anywhere = 50 * rng.random(400)
    assert grid_clarity(anywhere) < 0.15
    thirds, quarters = np.arange(60) / 3, np.arange(60) / 4
    assert grid_clarity(thirds) == pytest.approx(1)
    assert grid_clarity(quarters) == pytest.approx(1)
    # Of a normal deviation s, the mean resultant length is exp(-(2 pi k s)^2 / 2).
    quavers = rng.integers(0, 100, 20_000) / 2 + rng.normal(0, 0.06, 20_000)
    assert grid_clarity(quavers) == pytest.approx(
        np.exp(-((2 * np.pi * 2 * 0.06) ** 2) / 2), abs=0.02
    )
