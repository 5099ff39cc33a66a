"""The verdict on a run, or on the differences between runs: one table of rules on intervals."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from musicgen.evaluation.generated_files import KNOWN, STYLE_NAMES
from musicgen.metrics.differences import holm, least_p
from musicgen.metrics.summary import CONFIDENCE
from musicgen.report.tables import TableRow, interval
from musicgen.text import pluralize

NATS, KEY_SHARE, RECALLED = "nats a note", "notes in key", "bars that return"
DENSE, SHORT = "notes a bar", "structureness, short segments"
VOICE_LEADING = ("parallel fifths", "parallel octaves")
TRIGRAM, TRAINING, BEFORE = "trigram model", "training pieces", "weights before"
ORIGINALS, HELD_OUT, CHANCE = "originals", "held-out pieces", "unrelated piece"


class Rule(NamedTuple):
    """How the difference of a measure from what it stands beside is judged.

    Attributes:
        wanted: what is better, `less` or `more`; `same` if either is worse.
        margin: the difference that does not matter.
        relative: the margin is a share of the mean of what it stands beside.
        if_less, if_more: what to do if that is worse.
    """

    question: str
    measure: str
    beside: str
    wanted: Literal["less", "more", "same"]
    margin: float = 0.0
    relative: bool = False
    if_less: str = ""
    if_more: str = ""


_TRAIN = "Train longer (trainer.max_steps=), or begin with a trained model: init=songs-small"
_LESS_TRAINING, _MORE = "Take fewer steps or a lower learning rate", "Train on more such pieces"
_COOLER, _WARMER = "Take a lower sampling.temperature", "Take a higher sampling.temperature"

RULES = (
    Rule("Has it learned the music?", NATS, TRIGRAM, "less", if_more=_TRAIN),
    Rule("Has training helped?", NATS, BEFORE, "less", if_more=_LESS_TRAINING),
    Rule("Does it still keep to the key?", KEY_SHARE, BEFORE, "more", 0.03, if_less=_LESS_TRAINING),
    Rule(
        *("Has it overfitted?", NATS, TRAINING, "same", 0.18, True),
        if_more="Give more pieces, or take a smaller model or more dropout (model.dropout=0.1)",
    ),
    Rule(
        *("Does it copy?", KNOWN, HELD_OUT, "less", 0.5, True),
        if_more=f"Train on more pieces, or for fewer steps. {_WARMER} too",
    ),
    Rule("Does it stay in key?", KEY_SHARE, ORIGINALS, "more", 0.03, if_less=_COOLER),
    *(
        Rule(f"Is the style kept in {name.split(' like')[0]}?", name, CHANCE, "more", if_less=_MORE)
        for name in STYLE_NAMES.values()
    ),
    Rule(
        *("Is it as full as the music?", DENSE, ORIGINALS, "same", 0.2, True),
        if_less=f"Train longer. {_WARMER} too",
        if_more=_COOLER,
    ),
    Rule(
        *("Do its themes return?", RECALLED, ORIGINALS, "same", 0.05),
        if_less="Take a copy head (model.copy={} loader.length=2048), or form=AABA with one",
        if_more=_WARMER,
    ),
    Rule("Has it structure?", SHORT, ORIGINALS, "more", 0.1, if_less="Take a longer loader.length"),
    *(
        Rule(f"Does it avoid {name}?", name, ORIGINALS, "less", 1.0, if_more="Train longer")
        for name in VOICE_LEADING
    ),
)
"""The rules: a margin of parallels is in 100 beats, of other measures in their own unit."""

_WANTED = {rule.measure: rule.wanted for rule in reversed(RULES)}


class Judgement(NamedTuple):
    """A question, its answer in words, the figures that it follows from, and what to do."""

    question: str
    answer: str
    figures: str
    advice: str = ""


def judge(rows: Iterable[TableRow]) -> list[Judgement]:
    """Answer the questions that the rows of one run have figures for; add `answer` to these rows.

    Args:
        rows: of `evaluation`: a measure, its mean and interval, what it stands beside and the
            difference from that, with its interval. A single piece has none, and answers nothing.
    """
    known = {(row["measure"], row["beside"]): row for row in rows}
    judgements = []
    for rule in RULES:
        row = known.get((rule.measure, rule.beside))
        if row is None or row["difference_low"] != row["difference_low"]:
            continue
        answer, more, advice = _answer(rule, row)
        row["answer"] = answer
        own = interval(row["mean"], row["low"], row["high"])
        other = interval(row["beside_mean"], row["beside_low"], row["beside_high"])
        figures = f"{rule.measure} {own}, {rule.beside} {other}"
        judgements.append(Judgement(rule.question, f"{answer}{more}", figures, advice))
    return judgements


def _answer(rule: Rule, row: TableRow) -> tuple[str, str, str]:
    """Return an answer, what follows it in a sentence, and what to do."""
    margin = rule.margin * (row["beside_mean"] if rule.relative else 1)
    low, high = row["difference_low"], row["difference_high"]
    if low > margin or high < -margin:
        side = "more" if low > margin else "less"
        if side == rule.wanted:
            return "better", f" than the {rule.beside}", ""
        advice = rule.if_more if side == "more" else rule.if_less
        return "worse", f": {side} than the {rule.beside}", advice
    if -margin <= low and high <= margin:
        return f"as the {rule.beside}", "", ""
    return "not told apart", f" from the {rule.beside} by so few pieces", ""


def judge_differences(rows: Sequence[TableRow]) -> list[Judgement]:
    """Say which differences between runs are larger than chance; add `answer` to the rows.

    Of runs that do not differ, at most 5% of the comparisons name a difference.

    Args:
        rows: with `measure`, `first`, `second`, `first_mean`, `second_mean`, and what
            `paired_difference` returns, its p corrected as `p_holm`.
    """
    judgements, level = [], 1 - CONFIDENCE
    clearest = holm([least_p(row["n"]) for row in rows])
    for row, least in zip(rows, clearest, strict=True):
        row["answer"] = "not told apart" if least < level else "too few pieces"
        if not row["p_holm"] < level:
            continue
        side = "more" if row["difference"] > 0 else "less"
        wanted = _WANTED.get(row["measure"], "same")
        row["answer"] = side if wanted == "same" else "better" if side == wanted else "worse"
        figures = (
            "{second_mean:.3g} and {first_mean:.3g}, a difference of {difference:+.3f} "
            "({low:+.3f} to {high:+.3f}), p = {p_holm:.2g} (Holm)".format(**row)
        )
        answer = f"{row['answer']} in {row['second']} than in {row['first']}"
        judgements.append(Judgement(f"{row['measure'].capitalize()}:", answer, figures))
    count = Counter(row["answer"] for row in rows)
    figures = f"p ≥ {level:g} with Holm's correction for {len(rows)} comparisons"
    if others := count["not told apart"]:
        answer = f"{pluralize(others, 'differences')} of {len(rows)} may be chance"
        judgements.append(Judgement("In all:", answer, figures))
    if others := count["too few pieces"]:
        answer = f"too few pieces to tell {others} of {len(rows)} from chance"
        enough = math.floor(math.log2(len(rows) / level)) + 2
        advice = f"Give {enough} pieces or more (metric.evaluation.num_prompts and num_pieces)"
        judgements.append(Judgement("In all:", answer, f"{figures}, whatever they are", advice))
    return judgements
