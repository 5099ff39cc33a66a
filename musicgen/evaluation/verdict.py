"""The verdict on a run in words: rules on intervals, with their thresholds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from musicgen.text import pluralize

OVERFIT = 0.15
"""Share of the held-out loss by which that of the training pieces must be lower."""
COPIED = 1.5
"""How many times longer known passages must be than those of held-out pieces."""
KEY = 0.03
"""Share of the notes in key that continuations may have less than the originals."""
LOST = 0.03
"""What teaching may cost in notes in key, or in a similarity of style."""
RETURNS = 0.05
"""Share of the bars that may return less or more often than in the originals."""
STRUCTURE = 0.1
"""Structureness that continuations may lack."""
PARALLELS = 1.0
"""Parallel fifths, or octaves, in 100 beats that continuations may have more than the originals."""
IMPROVING = 0.01
"""Share of the validation loss that the last interval between validations took off."""
DENSITY = 0.2
"""Share of the notes in a bar that continuations may have less or more than the originals."""
KEPT = 0.95
"""Share of the notes that the tokenizer must represent."""
FEW_PIECES = 100
FEW = 6
"""Held-out pieces, with fewer of which no permutation test can reach p < .05."""

NATS, KEY_SHARE, RECALLED = "nats a note", "notes in key", "bars that return"
DENSE = "notes a bar"
SHORT = "structureness, short segments"
VOICE_LEADING = ("parallel fifths", "parallel octaves")
KNOWN, COPIES = "longest known passage (notes)", "continuations that copy"
RECITED = "longest passage of its own piece, after training pieces"
TRIGRAM, TRAINING, BEFORE = "trigram model", "training pieces", "before"
ORIGINALS, HELD_OUT, OTHERS = "originals", "held-out pieces", "other originals"
OWN, CHANCE = "the original's own continuation", "an unrelated piece"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Facts:
    """What the figures do not say.

    Attributes:
        num_training: pieces of the training set.
        num_held_out: held-out pieces; 0: there are none, and training pieces take their place.
        kept: share of the notes of the prompts' pieces that the tokenizer represents.
        improvement: share by which the validation loss fell between the last two validations; None
            if it is unknown.
    """

    num_training: int
    num_held_out: int
    kept: float
    improvement: float | None

    @property
    def improving(self) -> bool:
        return self.improvement is not None and self.improvement > IMPROVING


class Judgement(NamedTuple):
    """A question, its answer in words, the figures that it follows from, and what to do."""

    question: str
    answer: str
    figures: str
    advice: str = ""


def judge(rows: Iterable[Row], facts: Facts) -> list[Judgement]:
    """Answer the questions that the rows have figures for.

    Args:
        rows: of `Evaluation`: a measure, its mean and interval, what it stands beside and the
            difference from that, with its interval.
    """
    # A single piece has no interval, and answers nothing.
    known = (row for row in rows if row["difference_low"] == row["difference_low"])
    by_name = {(row["measure"], row["beside"]): row for row in known}
    rules = (
        _learned,
        _taught,
        _overfit,
        _copied,
        _in_key,
        _in_style,
        _dense,
        _returns,
        _voices,
        _represented,
    )
    found = [judgement for rule in rules for judgement in rule(by_name, facts)]
    if not 0 < facts.num_held_out < FEW:
        return found
    pieces = pluralize(facts.num_held_out, "held-out pieces")
    first = found[0]._replace(
        answer=f"{found[0].answer} (but {pieces} tell little, here and below)"
    )
    return [first, *found[1:]]


Rows = Mapping[tuple[str, str], Row]


def _learned(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    question, row = "Has it learned the music?", rows.get((NATS, TRIGRAM))
    if row is None or not facts.num_held_out:
        pieces = pluralize(facts.num_training, "pieces")
        figures = f"{pieces} to learn from, {facts.num_held_out} held out"
        advice = "Give more different pieces, so that some can be held out"
        yield Judgement(question, "It cannot be told: too few pieces that differ", figures, advice)
        return
    figures = f"{_mean(row)} nats a note on held-out pieces; a trigram model {_beside(row)}"
    longer = "Train longer: trainer.max_steps="
    advice = f"{longer}; its loss was still falling at the end" if facts.improving else ""
    if row["difference_high"] < 0:
        answer = "Yes: it predicts held-out pieces better than a trigram model"
    elif row["difference_low"] > 0:
        answer = "No: a trigram model predicts held-out pieces better"
        advice = "Begin with a trained model: init=pop-piano-small"
        if _overfit_share(rows) <= OVERFIT:
            advice = f"{longer}, or b{advice[1:]}"
    else:
        answer, advice = "No more than a trigram model, as far as these pieces tell", longer
    yield Judgement(question, answer, figures, advice)


def _taught(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    """Compare with the weights that the run began with."""
    if (row := rows.get((NATS, BEFORE))) is None:
        return
    words = {
        -1: "Yes: it predicts these pieces better than before",
        0: "Not measurably, as far as these pieces tell",
        1: "No: it predicts these pieces worse than before",
    }
    figures = [f"{_mean(row)} nats a note, before {_beside(row)}"]
    worse = []
    for name in (KEY_SHARE, *(measure for measure, beside in rows if beside == CHANCE)):
        if found := rows.get((name, BEFORE)):
            figures.append(f"{name} {_mean(found)}, before {_beside(found)}")
            if found["difference_high"] < -LOST:
                worse.append(name)
    sign = _sign(row)
    joined = ", and" if sign > 0 else ", but"
    answer = words[sign] + (f"{joined} lost in {' and '.join(worse)}" if worse else "")
    lost = (worse or sign > 0) and not facts.improving
    advice = "Take fewer steps or a lower learning rate" if lost else ""
    yield Judgement("Has teaching helped?", answer, "; ".join(figures), advice)


def _overfit(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    if (row := rows.get((NATS, TRAINING))) is None or not facts.num_held_out:
        return
    figures = f"{_mean(row)} nats a note on held-out pieces, {_beside(row)} on training pieces"
    least = _overfit_share(rows)
    answer, advice = "No: it predicts both as well, as far as these pieces tell", ""
    if least > OVERFIT:
        answer = "Yes: it knows its training pieces far better than others"
        pieces = pluralize(facts.num_training, "training pieces")
        more = f"{'More' if facts.num_training < FEW_PIECES else 'Other'} pieces than these"
        advice = f"{more} {pieces}, a smaller model or more dropout (model.dropout=0.1)"
    elif least > OVERFIT / 3:
        answer = "A little: it knows its training pieces better than others"
    yield Judgement("Has it overfitted?", answer, figures, advice)


def _overfit_share(rows: Rows) -> float:
    """Return the least share of the loss that training pieces lack, by its interval."""
    row = rows.get((NATS, TRAINING))
    return row["difference_low"] / row["mean"] if row else 0.0


def _copied(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    if (row := rows.get((KNOWN, HELD_OUT))) is None:
        return
    figures = (
        f"the longest passages that continuations share with a training piece, in any key, have "
        f"{_mean(row)} notes; those of held-out pieces {_beside(row)}"
    )
    copies, seen = rows.get((COPIES, HELD_OUT)), rows.get((RECITED, HELD_OUT))
    answer, advice = "No: it repeats no more of its training pieces than unheard music does", ""
    remedy = "Train on more pieces, or for fewer steps; a higher sampling.temperature helps too"
    if row["low"] > COPIED * row["beside_high"]:
        answer, advice = "Yes: it repeats passages of its training pieces", remedy
    elif seen and seen["low"] > COPIED * seen["beside_high"]:
        answer, advice = "Yes, after the first bars of a training piece: it goes on as that", remedy
        figures += (
            f"; of the piece that a continuation goes on, passages have {_mean(seen)} notes after "
            f"training pieces, {_beside(seen)} after held-out ones"
        )
    elif copies and copies["mean"] > 0:
        count = round(copies["mean"] * copies["n"])
        answer = f"In {count} of {copies['n']} continuations, which the page marks"
        advice = "Listen to the marked passages before you publish them"
    yield Judgement("Does it copy?", answer, figures, advice)


def _in_key(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    if (row := rows.get((KEY_SHARE, ORIGINALS))) is None:
        return
    figures = f"{_mean(row)} of the notes are in the prompt's key, in the originals {_beside(row)}"
    answer, advice = "Yes, as the originals are", ""
    if row["difference_high"] < -KEY:
        answer = "No: more notes are outside the key than in the originals"
        advice = "A lower sampling.temperature"
    elif row["difference_high"] < 0:
        answer = "Nearly: a little less than the originals"
    elif row["difference_low"] < -KEY:
        answer = "Yes, as far as these few pieces tell"
    yield Judgement("Does it stay in key?", answer, figures, advice)


def _in_style(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    found = {name: row for (name, beside), row in rows.items() if beside == CHANCE}
    if not found:
        return
    figures = "; ".join(
        f"{name}: {_mean(row)}, the original's own continuation "
        f"{_beside(rows[name, OWN])}, an unrelated piece {_beside(row)}"
        for name, row in found.items()
    )
    like = [name for name, row in found.items() if row["difference_low"] > 0]
    words = " and ".join(name.removesuffix(" like the original's") for name in like)
    answer, advice = f"Partly, in {words}: more like the prompt's piece than unrelated ones", ""
    if len(like) == len(found):
        answer = "Yes: more like the prompt's piece than unrelated pieces are"
    elif not like:
        answer = "Not measurably: it is no more like the prompt's piece than unrelated pieces are"
        advice = "Give longer prompts, or train longer on more such pieces"
        less = [name for name, row in found.items() if row["difference_high"] < 0]
        if words := " and ".join(name.removesuffix(" like the original's") for name in less):
            answer = f"No: in {words} it is less like the prompt's piece than unrelated pieces are"
            advice = "Train longer on more such pieces"
    yield Judgement("Does it keep the style?", answer, figures, advice)


def _dense(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    if (row := rows.get((DENSE, ORIGINALS))) is None:
        return
    figures = f"{_mean(row)} notes a bar, in the originals {_beside(row)}"
    answer, advice = "Yes, as far as these pieces tell", ""
    if row["difference_high"] < -DENSITY * row["beside_mean"]:
        answer, advice = "No: it has fewer notes", "Train longer, or a higher sampling.temperature"
    elif row["difference_low"] > DENSITY * row["beside_mean"]:
        answer, advice = "No: it has more notes", "A lower sampling.temperature"
    elif row["difference_high"] < 0:
        answer = "Not quite: it has somewhat fewer notes"
    elif row["difference_low"] > 0:
        answer = "A little more: it has somewhat more notes"
    yield Judgement("Is it as full as the music?", answer, figures, advice)


def _returns(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    if (row := rows.get((RECALLED, ORIGINALS))) is None:
        return
    figures = (
        f"{_mean(row)} of the bars are like one four or more bars before, in the originals "
        f"{_beside(row)}"
    )
    less = row["difference_high"] < -RETURNS
    if structure := rows.get((SHORT, ORIGINALS)):
        less |= structure["difference_high"] < -STRUCTURE
        figures += f"; {SHORT} {_mean(structure)}, in the originals {_beside(structure)}"
    answer, advice = "As often as in the originals, as far as these pieces tell", ""
    if less:
        answer = "Less often than in the originals"
        advice = "A copy head (model.copy={} loader.length=2048), or form=AABA with one"
    elif row["difference_low"] > RETURNS:
        answer = "More often than in the originals: it repeats itself"
        advice = "A higher sampling.temperature"
    yield Judgement("Do its themes return?", answer, figures, advice)


def _voices(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    found = {name: rows[name, ORIGINALS] for name in VOICE_LEADING if (name, ORIGINALS) in rows}
    if not found:
        return
    figures = "; ".join(
        f"{_mean(row)} {name} in 100 beats, in the originals {_beside(row)}"
        for name, row in found.items()
    )
    more = [name for name, row in found.items() if row["difference_low"] > PARALLELS]
    answer, advice = "Yes, as the originals do", ""
    if more:
        answer, advice = f"No: {' and '.join(more)} are more frequent", "Train longer"
    yield Judgement("Do its voices move well?", answer, figures, advice)


def _represented(rows: Rows, facts: Facts) -> Iterator[Judgement]:
    if facts.kept >= KEPT:
        return
    yield Judgement(
        "Can the tokenizer hold this music?",
        "No: it leaves out notes",
        f"{facts.kept:.0%} of the notes are kept",
        "Take another tokenizer= or task=, see docs/tokenizers.md",
    )


def judge_differences(rows: Sequence[Row], level: float) -> list[Judgement]:
    """Say which differences between runs are larger than chance.

    Args:
        rows: with `measure`, `first`, `second`, `first_mean`, `second_mean`, and what
            `paired_difference` returns, `p` corrected.
        level: below which a p value counts.
    """
    found = [row for row in rows if row["p"] < level]
    judgements = []
    for row in found:
        words = "more" if row["difference"] > 0 else "less"
        if row["measure"].startswith("nats"):
            words += ", which is worse," if row["difference"] > 0 else ", which is better,"
        judgements.append(
            Judgement(
                f"{row['measure'].capitalize()}:",
                f"{words} in {row['second']} than in {row['first']}",
                "{second_mean:.3g} and {first_mean:.3g}, a difference of {difference:+.3f} "
                "({low:+.3f} to {high:+.3f}), p = {p:.2g}".format(**row),
            )
        )
    if others := len(rows) - len(found):
        answer = f"{pluralize(others, 'differences')} of {len(rows)} may be chance"
        text = f"p ≥ {level:g} with Holm's correction for {len(rows)} comparisons"
        judgements.append(Judgement("All others:", answer, text))
    return judgements


def _sign(row: Row) -> int:
    """Return 1 or -1 if the interval of the difference is above or below 0, else 0."""
    return int(row["difference_low"] > 0) - int(row["difference_high"] < 0)


def _mean(row: Row) -> str:
    return interval(row["mean"], row["low"], row["high"])


def _beside(row: Row) -> str:
    return interval(row["beside_mean"], row["beside_low"], row["beside_high"])


def interval(mean: float, low: float, high: float) -> str:
    """Format a mean with its interval: two decimals, or one from 10 on; nothing of no values."""
    if mean != mean:
        return ""
    digits = 1 if abs(mean) >= 10 else 2
    text = f"{mean:.{digits}f}"
    return text if low != low else f"{text} ({low:.{digits}f} to {high:.{digits}f})"
