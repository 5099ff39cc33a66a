"""The verdict on figures made by hand."""

import numpy as np
import pytest

from musicgen.evaluation import verdict as v
from musicgen.evaluation.evaluation import Line, _differences, _row
from musicgen.evaluation.generated_files import KNOWN

STYLE = "rhythm like the original's"


def row(measure, mean, beside, other, width=0.01):
    """A row whose intervals reach `width` to both sides."""
    values = {"measure": measure, "beside": beside, "n": 12}
    means = {"mean": mean, "beside_mean": other, "difference": mean - other}
    for name, prefix in (("mean", ""), ("beside_mean", "beside_"), ("difference", "difference_")):
        ends = {f"{prefix}low": means[name] - width, f"{prefix}high": means[name] + width}
        values |= {name: means[name], **ends}
    return values


@pytest.mark.parametrize(
    ("given", "answer", "advice"),
    [
        (row(v.NATS, 2.0, v.TRIGRAM, 3.0), "better than the trigram model", ""),
        (row(v.NATS, 3.0, v.TRIGRAM, 2.0), "worse: more than the trigram model", "init="),
        (row(v.NATS, 3.0, v.TRAINING, 1.0), "worse: more than the training pieces", "dropout"),
        (row(v.NATS, 2.0, v.BEFORE, 3.0), "better than the weights before", ""),
        (row(v.NATS, 3.0, v.BEFORE, 2.0), "worse", "fewer steps"),
        (row(v.KEY_SHARE, 0.79, v.BEFORE, 0.91), "worse: less", "lower learning rate"),
        (row(KNOWN, 30.0, v.HELD_OUT, 8.0), "worse: more than the held-out pieces", "more pieces"),
        (row(v.KEY_SHARE, 0.79, v.ORIGINALS, 0.91), "worse", "temperature"),
        (row(STYLE, 0.7, v.CHANCE, 0.5), "better than the unrelated piece", ""),
        (row(STYLE, 0.4, v.CHANCE, 0.5), "worse", "such pieces"),
        (row(v.DENSE, 2.0, v.ORIGINALS, 8.0), "worse: less", "Train longer"),
        (row(v.DENSE, 12.0, v.ORIGINALS, 8.0), "worse: more", "lower sampling.temperature"),
        (row(v.RECALLED, 0.0, v.ORIGINALS, 0.4), "worse: less", "copy head"),
        (row(v.RECALLED, 0.9, v.ORIGINALS, 0.4), "worse: more", "higher sampling.temperature"),
        (row(v.SHORT, 0.2, v.ORIGINALS, 0.4), "worse: less", "loader.length"),
        (row(v.VOICE_LEADING[0], 2.5, v.ORIGINALS, 0.8), "worse: more", "longer"),
    ],
)
def test_each_rule(given, answer, advice):
    (found,) = v.judge([given])
    assert [rule.question for rule in v.RULES].count(found.question) == 1
    assert found.answer.startswith(given["answer"])
    assert found.answer.startswith(answer)
    assert f"{given['mean']:.{1 if given['mean'] >= 10 else 3}f} (" in found.figures
    assert advice in found.advice
    assert bool(advice) == bool(found.advice)


@pytest.mark.parametrize(
    ("measure", "beside", "margin"),  # of 10.0 beside it
    [
        *((v.NATS, beside, 0) for beside in (v.TRIGRAM, v.BEFORE)),
        *((v.KEY_SHARE, beside, 0.03) for beside in (v.BEFORE, v.ORIGINALS)),
        (v.NATS, v.TRAINING, 1.8),
        (KNOWN, v.HELD_OUT, 5),
        (STYLE, v.CHANCE, 0),
        (v.DENSE, v.ORIGINALS, 2),
        *((each, v.ORIGINALS, margin) for each, margin in ((v.RECALLED, 0.05), (v.SHORT, 0.1))),
        *((parallels, v.ORIGINALS, 1) for parallels in v.VOICE_LEADING),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_margins_decide_the_words(measure, beside, margin, sign):
    def answer(difference, width):
        given = row(measure, 10 + sign * difference, beside, 10.0, width)
        v.judge([given])
        return given["answer"]

    assert answer(margin + 0.002, 0.001) in ("better", "worse")
    assert answer(margin, 0.001) == "not told apart"  # the interval has the margin in it
    if margin:
        assert answer(margin - 0.002, 0.001) == f"as the {beside}"
        assert answer(0, margin + 0.001) == "not told apart"


@pytest.mark.parametrize("num_held_out", [3, 6, 12])
def test_music_as_any_other_is_hardly_ever_called_a_copy(num_held_out):
    rng, worse = np.random.default_rng(0), 0
    for _ in range(1000):  # a long tail of passages, of one distribution
        passages = np.round(6 * rng.lognormal(0, 0.8, 12 + num_held_out))
        pieces = dict(enumerate(passages))
        others = {i: pieces.pop(i) for i in range(12, len(passages))}
        found = _row(Line(KNOWN, pieces, v.HELD_OUT, others))
        v.judge([found])
        worse += found.get("answer") == "worse"
    assert worse / 1000 <= 0.05


def test_single_pieces_and_other_measures_answer_nothing():
    alone = row(v.NATS, 2.0, v.TRIGRAM, 3.0, width=float("nan"))
    assert v.judge([alone, row("structureness", 1.0, v.ORIGINALS, 0.0)]) == []


def test_differences_larger_than_chance():
    figures = (v.NATS, -0.2, 0.001, 12), (v.KEY_SHARE, 0.1, 0.2, 7), (v.RECALLED, 0.1, 0.09, 5)
    names = {"first": "A", "second": "B", "first_mean": 2.0, "second_mean": 1.8}
    rows = [
        {"measure": name, **names, "n": n, "difference": d, "low": d, "high": d, "p_holm": p}
        for name, d, p, n in figures
    ]
    first, others, few = v.judge_differences(rows)
    assert (first.question, first.answer) == ("Nats a note:", "better in B than in A")
    assert first.figures.startswith("1.8 and 2, a difference of -0.200")
    assert others.answer == "1 difference of 3 may be chance"
    assert few.answer == "too few pieces to tell 1 of 3 from chance"
    assert few.advice.startswith("Give 7 pieces or more")
    assert [row["answer"] for row in rows] == ["better", "not told apart", "too few pieces"]


def test_losses_of_tokens_are_compared_between_runs_of_one_vocabulary():
    lines = [Line(f"nats a {x}", {"a": 1.0, "b": 2.0}, v.TRIGRAM, {}) for x in ("token", "note")]
    rows = _differences({"A": lines, "B": lines, "C": lines}, ["one", "one", "two"], seed=0)
    assert [x["first"] + x["second"] for x in rows if "token" in x["measure"]] == ["AB"]
    assert len(rows) == 4
