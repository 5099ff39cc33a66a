"""The verdict on figures made by hand."""

from __future__ import annotations

import pytest

from musicgen.evaluation.verdict import (
    BEFORE,
    CHANCE,
    COPIES,
    DENSE,
    HELD_OUT,
    KEY_SHARE,
    KNOWN,
    NATS,
    ORIGINALS,
    OWN,
    RECALLED,
    RECITED,
    SHORT,
    TRAINING,
    TRIGRAM,
    VOICE_LEADING,
    Facts,
    judge,
    judge_differences,
)

FACTS = Facts(num_training=20, num_held_out=10, kept=1.0, improvement=0.001)
STYLE = "rhythm like the original's"


def row(measure, mean, beside, other, width=0.01, n=12):
    """A row whose intervals reach `width` to both sides."""
    names = {"mean": mean, "beside_mean": other, "difference": mean - other}
    values = {"measure": measure, "beside": beside, "n": n}
    for name, value in names.items():
        prefix = name.removesuffix("mean").removesuffix("_") + "_" if name != "mean" else ""
        values |= {name: value, f"{prefix}low": value - width, f"{prefix}high": value + width}
    return values


def alone(measure, mean, beside, other):
    """A row of a single piece, which has no interval."""
    nan = float("nan")
    return {
        key: nan if "low" in key or "high" in key else x
        for key, x in row(measure, mean, beside, other).items()
    }


def answers(*rows, facts=FACTS):
    return {each.question: each for each in judge(rows, facts)}


@pytest.mark.parametrize(
    ("given", "question", "answer", "advice"),
    [
        (row(NATS, 2.0, TRIGRAM, 3.0), "learned", "Yes", ""),
        (row(NATS, 3.0, TRIGRAM, 2.0), "learned", "No:", "Train longer"),
        (row(NATS, 2.0, TRIGRAM, 2.005), "learned", "No more", "Train longer"),
        (row(NATS, 3.0, TRAINING, 1.0), "overfitted", "Yes", "More pieces than these 20"),
        (row(NATS, 3.0, TRAINING, 2.7), "overfitted", "A little", ""),
        (row(NATS, 3.0, TRAINING, 2.9), "overfitted", "No", ""),
        (row(NATS, 2.0, BEFORE, 3.0), "teaching", "Yes", ""),
        (row(NATS, 3.0, BEFORE, 2.0), "teaching", "No", "fewer steps"),
        (row(KNOWN, 30.0, HELD_OUT, 8.0), "copy", "Yes", "more pieces"),
        (row(KNOWN, 11.0, HELD_OUT, 8.0), "copy", "No", ""),
        (row(KEY_SHARE, 0.79, ORIGINALS, 0.91), "key", "No", "temperature"),
        (row(KEY_SHARE, 0.89, ORIGINALS, 0.91), "key", "Nearly", ""),
        (row(KEY_SHARE, 0.91, ORIGINALS, 0.91), "key", "Yes, as the originals", ""),
        (row(KEY_SHARE, 0.91, ORIGINALS, 0.91, width=0.1), "key", "Yes, as far as", ""),
        (row(DENSE, 2.0, ORIGINALS, 8.0), "full", "No: it has fewer", "Train longer"),
        (row(DENSE, 12.0, ORIGINALS, 8.0), "full", "No: it has more", "lower sampling.temperature"),
        (row(DENSE, 7.0, ORIGINALS, 8.0), "full", "Not quite", ""),
        (row(DENSE, 9.0, ORIGINALS, 8.0), "full", "A little more", ""),
        (row(DENSE, 7.0, ORIGINALS, 8.0, width=2.0), "full", "Yes", ""),
        (row(RECALLED, 0.0, ORIGINALS, 0.4), "themes", "Less", "copy head"),
        (row(RECALLED, 0.9, ORIGINALS, 0.4), "themes", "More", "higher sampling.temperature"),
        (row(RECALLED, 0.38, ORIGINALS, 0.4), "themes", "As often", ""),
        (row(VOICE_LEADING[0], 2.5, ORIGINALS, 0.8), "voices", "No: parallel fifths", "longer"),
        (row(VOICE_LEADING[1], 0.9, ORIGINALS, 0.8), "voices", "Yes", ""),
        (row(VOICE_LEADING[1], 2.0, ORIGINALS, 0.8, width=2.0), "voices", "Yes", ""),
    ],
)
def test_each_rule(given, question, answer, advice):
    (found,) = (each for each in judge([given], FACTS) if question in each.question)
    assert found.answer.startswith(answer)
    assert f"{given['mean']:.{1 if given['mean'] >= 10 else 2}f} (" in found.figures
    assert advice in found.advice
    assert bool(advice) == bool(found.advice)


def test_style_lies_between_chance_and_the_original():
    def judged(mean):
        found = answers(row(STYLE, mean, OWN, 0.95), row(STYLE, mean, CHANCE, 0.5))
        return found["Does it keep the style?"].answer

    assert judged(0.7).startswith("Yes")
    assert judged(0.505).startswith("Not measurably")
    assert judged(0.4).startswith("No: in rhythm it is less like")
    rows = [row(STYLE, 0.7, CHANCE, 0.5), row("accents like the original's", 0.5, CHANCE, 0.5)]
    rows += [{**each, "beside": OWN} for each in rows]
    answer = answers(*rows)["Does it keep the style?"].answer
    assert answer.startswith("Partly, in rhythm: more like")


def test_structureness_tells_of_returns_too():
    rows = [row(RECALLED, 0.1, ORIGINALS, 0.1), row(SHORT, 0.2, ORIGINALS, 0.4)]
    assert answers(*rows)["Do its themes return?"].answer.startswith("Less often")


def test_a_single_copy_is_named():
    rows = [row(KNOWN, 9.0, HELD_OUT, 8.0), row(COPIES, 0.25, HELD_OUT, 0.0)]
    assert answers(*rows)["Does it copy?"].answer.startswith("In 3 of 12")
    rows.append(row(RECITED, 50.0, HELD_OUT, 8.0))
    found = answers(*rows)["Does it copy?"]
    assert found.answer.startswith("Yes, after the first bars of a training piece")
    assert "50.0 (50.0 to 50.0) notes after training pieces" in found.figures


def test_teaching_that_costs_the_key_says_so():
    rows = [row(NATS, 2.0, BEFORE, 3.0), row(KEY_SHARE, 0.79, BEFORE, 0.91)]
    found = answers(*rows)["Has teaching helped?"]
    assert "but lost in notes in key" in found.answer
    assert "0.79 (0.78 to 0.80), before 0.91" in found.figures
    assert "lower learning rate" in found.advice
    little = answers(row(NATS, 2.0, BEFORE, 3.0), row(KEY_SHARE, 0.89, BEFORE, 0.91))
    assert "lost" not in little["Has teaching helped?"].answer
    falling = answers(*rows, facts=Facts(20, 10, 1.0, 0.05))  # of which more steps are the cure
    assert not falling["Has teaching helped?"].advice


def test_facts_that_no_figure_tells():
    learned, overfitted = row(NATS, 2.0, TRIGRAM, 3.0), row(NATS, 2.0, TRAINING, 1.0)
    none_held_out = answers(learned, overfitted, facts=Facts(5, 0, 1.0, None))
    assert [*none_held_out] == ["Has it learned the music?"]
    assert "cannot be told" in none_held_out["Has it learned the music?"].answer
    single = [alone(NATS, 2.0, TRIGRAM, 3.0), alone(KEY_SHARE, 0.5, ORIGINALS, 1.0)]
    assert [*answers(*single, facts=Facts(2, 1, 1.0, None))] == ["Has it learned the music?"]
    few = answers(learned, facts=Facts(20, 3, 1.0, None))
    assert "(but 3 held-out pieces tell little, here" in few["Has it learned the music?"].answer
    falling = answers(learned, facts=Facts(20, 10, 0.5, 0.05))
    assert "still falling" in falling["Has it learned the music?"].advice
    assert "50% of the notes" in falling["Can the tokenizer hold this music?"].figures


def test_differences_larger_than_chance():
    figures = (NATS, -0.2, 0.001), (KEY_SHARE, 0.1, 0.2), (RECALLED, 0.1, float("nan"))
    names = {"first": "A", "second": "B", "first_mean": 2.0, "second_mean": 1.8}
    rows = [
        {"measure": name, **names, "difference": d, "low": d, "high": d, "p": p}
        for name, d, p in figures
    ]
    first, others = judge_differences(rows, 0.05)
    assert (first.question, first.answer) == (
        *("Nats a note:", "less, which is better, in B than in A"),
    )
    assert first.figures.startswith("1.8 and 2, a difference of -0.200")
    assert others.answer == "2 differences of 3 may be chance"
