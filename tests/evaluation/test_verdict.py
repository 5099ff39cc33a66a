"""The verdict on figures made by hand."""

import numpy as np
import pytest

from musicgen.evaluation import verdict as n
from musicgen.evaluation import verdict as v
from musicgen.evaluation.groups import run_differences
from musicgen.evaluation.verdict import comparison_row

STYLE = "onset-duration similarity"


def row(measure, mean, baseline, other, width=0.01):
    """A row whose intervals reach `width` to both sides."""
    values = {"measure": measure, "baseline": baseline, "n": 12}
    means = {"mean": mean, "baseline_mean": other, "difference": mean - other}
    for name, prefix in (
        ("mean", ""),
        ("baseline_mean", "baseline_"),
        ("difference", "difference_"),
    ):
        ends = {f"{prefix}low": means[name] - width, f"{prefix}high": means[name] + width}
        values |= {name: means[name], **ends}
    return values


@pytest.mark.parametrize(
    ("given", "answer", "advice"),
    [
        (row(n.NATS_PER_NOTE, 2.0, n.TRIGRAM, 3.0), "better: lower than the trigram model", ""),
        (
            row(n.NATS_PER_NOTE, 3.0, n.TRIGRAM, 2.0),
            "worse: higher than the trigram model",
            "init=",
        ),
        (
            row(n.NATS_PER_NOTE, 3.0, n.TRAINING_PIECES, 1.0),
            "worse: higher than the training pieces",
            "dropout",
        ),
        (
            row(n.NATS_PER_NOTE, 2.0, n.INITIAL_WEIGHTS, 3.0),
            "better: lower than the initial weights",
            "",
        ),
        (row(n.NATS_PER_NOTE, 3.0, n.INITIAL_WEIGHTS, 2.0), "worse", "fewer steps"),
        (row(n.NOTES_IN_KEY, 0.79, n.INITIAL_WEIGHTS, 0.91), "worse: lower", "lower learning rate"),
        (
            row(n.TRAINING_MATCH, 30.0, n.HELD_OUT_PIECES, 8.0),
            "worse: higher than the held-out pieces",
            "more pieces",
        ),
        (row(n.NOTES_IN_KEY, 0.79, n.ORIGINALS, 0.91), "worse", "temperature"),
        (row(STYLE, 0.7, n.UNRELATED_PIECES, 0.5), "better: higher than the unrelated pieces", ""),
        (row(STYLE, 0.4, n.UNRELATED_PIECES, 0.5), "worse", "more pieces of this style"),
        (row(n.NOTES_PER_BAR, 2.0, n.ORIGINALS, 8.0), "worse: lower", "Train longer"),
        (
            row(n.NOTES_PER_BAR, 12.0, n.ORIGINALS, 8.0),
            "worse: higher",
            "lower sampling.temperature",
        ),
        (row(n.REPEATED_BARS, 0.0, n.ORIGINALS, 0.4), "worse: lower", "copy head"),
        (
            row(n.REPEATED_BARS, 0.9, n.ORIGINALS, 0.4),
            "worse: higher",
            "higher sampling.temperature",
        ),
        (row(n.SHORT_STRUCTURE, 0.2, n.ORIGINALS, 0.4), "worse: lower", "loader.length"),
        (row(n.PARALLELS[0], 2.5, n.ORIGINALS, 0.8), "worse: higher", "longer"),
    ],
)
def test_each_rule(given, answer, advice):
    (found,) = v.judge([given], n.FEW_HELD_OUT)
    assert [rule.question for rule in v.RULES].count(found.question) == 1
    assert found.answer.startswith(answer)
    assert f"{given['mean']:.{1 if given['mean'] >= 10 else 3}f} (" in found.figures
    assert advice in found.advice
    assert bool(advice) == bool(found.advice)


@pytest.mark.parametrize(
    ("measure", "baseline", "margin"),  # of a baseline of 10.0
    [
        *((n.NATS_PER_NOTE, baseline, 0) for baseline in (n.TRIGRAM, n.INITIAL_WEIGHTS)),
        *((n.NOTES_IN_KEY, baseline, 0.03) for baseline in (n.INITIAL_WEIGHTS, n.ORIGINALS)),
        (n.NATS_PER_NOTE, n.TRAINING_PIECES, 1.8),
        (n.TRAINING_MATCH, n.HELD_OUT_PIECES, 5),
        (STYLE, n.UNRELATED_PIECES, 0),
        (n.NOTES_PER_BAR, n.ORIGINALS, 2),
        *(
            (each, n.ORIGINALS, margin)
            for each, margin in ((n.REPEATED_BARS, 0.05), (n.SHORT_STRUCTURE, 0.1))
        ),
        *((parallels, n.ORIGINALS, 1) for parallels in n.PARALLELS),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_margins_decide_the_words(measure, baseline, margin, sign):
    def answer(difference, width):
        given = row(measure, 10 + sign * difference, baseline, 10.0, width)
        v.judge([given], n.FEW_HELD_OUT)
        return given["answer"]

    assert answer(margin + 0.002, 0.001) in ("better", "worse")
    assert answer(margin, 0.001) == "unclear"  # the interval has the margin in it
    if margin:
        assert answer(margin - 0.002, 0.001) == "same"
        assert answer(0, margin + 0.001) == "unclear"


@pytest.mark.parametrize("num_held_out", [3, 6, 12])
def test_music_with_matches_of_usual_length_is_rarely_called_a_copy(num_held_out):
    rng, worse = np.random.default_rng(0), 0
    for _ in range(1000):  # lengths of matches with a long tail, of one distribution
        matches = np.round(6 * rng.lognormal(0, 0.8, 12 + num_held_out))
        pieces = dict(enumerate(matches))
        others = {i: pieces.pop(i) for i in range(12, len(matches))}
        found = comparison_row(n.TRAINING_MATCH, n.HELD_OUT_PIECES, pieces, others)
        v.judge([found], num_held_out)
        worse += found.get("answer") == "worse"
    assert worse / 1000 <= 0.05


def test_single_pieces_and_other_measures_answer_nothing():
    alone = row(n.NATS_PER_NOTE, 2.0, n.TRIGRAM, 3.0, width=float("nan"))
    assert v.judge([alone, row("structureness", 1.0, n.ORIGINALS, 0.0)], n.FEW_HELD_OUT) == []


def test_unclear_answers_on_few_held_out_pieces_name_the_settings_that_hold_out_more():
    given = row(n.NATS_PER_NOTE, 2.9, n.TRIGRAM, 3.0, width=1)
    for num_held_out, expected in ((5, True), (12, False)):
        *_, last = v.judge([given], num_held_out)
        assert ("loader.val_fraction" in last.advice) == expected
    assert len(v.judge([row(n.NATS_PER_NOTE, 2.0, n.TRIGRAM, 3.0)], 5)) == 1
    (nothing,) = v.judge([], 1)
    assert (nothing.answer, nothing.figures) == ("0 of 0 answers unclear", "1 piece held out")


def test_differences_larger_than_chance():
    figures = (
        (n.NATS_PER_NOTE, -0.2, 0.001, 12),
        (n.NOTES_IN_KEY, 0.1, 0.2, 7),
        (n.REPEATED_BARS, 0.1, 0.09, 5),
    )
    names = {"first": "A", "second": "B", "first_mean": 2.0, "second_mean": 1.8}
    rows = [
        {"measure": name, **names, "n": n, "difference": d, "low": d, "high": d, "p_holm": p}
        for name, d, p, n in figures
    ]
    first, others, few = v.judge_differences(rows, {"A": 1, "B": 1}, 12)
    assert (first.question, first.answer) == ("Nats per note:", "better in B than in A")
    assert first.figures.startswith("1.8 and 2, a difference of -0.200")
    assert others.answer == "1 difference of 3 may be chance"
    assert few.answer == "too few pieces to tell 1 of 3 from chance"
    assert few.advice.startswith("Use 7 pieces or more")
    assert [row["answer"] for row in rows] == ["better", "unclear", "too few pieces"]


def test_losses_of_tokens_are_compared_between_runs_of_one_vocabulary():
    values = {"a": 1.0, "b": 2.0}
    lines = {f"nats per {x}": [values] for x in ("token", "note")}
    rows = run_differences({"A": lines, "B": lines, "C": lines}, ["one", "one", "two"], seed=0)
    assert [x["first"] + x["second"] for x in rows if "token" in x["measure"]] == ["AB"]
    assert len(rows) == 4
