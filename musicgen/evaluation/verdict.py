"""Comparisons of a measure with its baseline and of runs with each other, and their verdicts."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from musicgen.metrics.intervals import (
    CONFIDENCE,
    Summary,
    Values,
    holm,
    least_p,
    paired_difference,
    unpaired_difference,
)
from musicgen.metrics.style import SIMILARITIES, Profile
from musicgen.package_data import DEFAULT_MODEL
from musicgen.report.tables import TableRow, interval
from musicgen.text import pluralize

# Measures, by their names in tables, reports and verdicts.
NATS_PER_NOTE = "nats per note"
NOTES_IN_KEY = "notes in key"
NOTES_PER_BAR = "notes per bar"
REPEATED_BARS = "repeated bars"
SHORT_STRUCTURE = "structureness, short segments"
PARALLELS = ("parallel fifths", "parallel octaves")
TRAINING_MATCH = "longest match with the training set (notes)"

# Baselines.
TRIGRAM = "trigram model"
TRAINING_PIECES = "training pieces"
INITIAL_WEIGHTS = "initial weights"
ORIGINALS = "originals"
HELD_OUT_PIECES = "held-out pieces"
UNRELATED_PIECES = "unrelated pieces"

Comparisons = dict[tuple[str, str], tuple[Values, Values]]
"""Values of a run and of a baseline, by the names of the measure and of the baseline."""


def comparison_row(
    measure: str, baseline: str, values: Values, baseline_values: Values
) -> TableRow:
    """Return a row with the means of a measure and of its baseline, and with their difference.

    The difference is paired if both have the same pieces.
    """
    if values.keys() == baseline_values.keys():
        difference = paired_difference(values, baseline_values)
    else:
        difference = unpaired_difference(values, baseline_values)

    def columns(values: Values, prefix: str) -> TableRow:
        summary = Summary.of(values.values(), similarities=measure in SIMILARITIES.values())
        return {f"{prefix}{name}": getattr(summary, name) for name in ("n", "mean", "low", "high")}

    return {
        "measure": measure,
        **columns(values, ""),
        "baseline": baseline,
        **columns(baseline_values, "baseline_"),
        "difference": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
    }


class Rule(NamedTuple):
    """How to judge the difference between a measure and its baseline.

    Attributes:
        question: the question that the measure answers.
        wanted: whether `lower` or `higher` is better; `same` if both are worse.
        margin: the largest difference that does not matter.
        relative: the margin is a fraction of the mean of the baseline.
        if_lower, if_higher: advice if the measure is lower or higher and that is worse.
    """

    question: str
    measure: str
    baseline: str
    wanted: Literal["lower", "higher", "same"]
    margin: float = 0.0
    relative: bool = False
    if_lower: str = ""
    if_higher: str = ""


_TRAIN_LONGER = (
    f"Train longer (trainer.max_steps=), or start from a trained model: init={DEFAULT_MODEL}"
)
_TRAIN_LESS = "Use fewer steps or a lower learning rate"
_LOWER_TEMPERATURE = "Use a lower sampling.temperature"
_HIGHER_TEMPERATURE = "Use a higher sampling.temperature"

_STYLE_QUESTIONS: dict[Profile, str] = {
    "onset_duration": "Is the rhythm similar to the original's?",
    "time_pitch": "Are melody and harmony similar to the original's?",
    "onset_velocity": "Are the accents similar to the original's?",
    "onset_drum": "Are the drum patterns similar to the original's?",
}

RULES = (
    Rule(
        question="Has it learned the music?",
        measure=NATS_PER_NOTE,
        baseline=TRIGRAM,
        wanted="lower",
        if_higher=_TRAIN_LONGER,
    ),
    Rule(
        question="Has training helped?",
        measure=NATS_PER_NOTE,
        baseline=INITIAL_WEIGHTS,
        wanted="lower",
        if_higher=_TRAIN_LESS,
    ),
    Rule(
        question="Does it stay in key as before training?",
        measure=NOTES_IN_KEY,
        baseline=INITIAL_WEIGHTS,
        wanted="higher",
        margin=0.03,
        if_lower=_TRAIN_LESS,
    ),
    Rule(
        question="Has it overfitted?",
        measure=NATS_PER_NOTE,
        baseline=TRAINING_PIECES,
        wanted="same",
        margin=0.18,
        relative=True,
        if_higher="Add pieces, or use a smaller model or more dropout (model.dropout=0.1)",
    ),
    Rule(
        question="Does it copy the training set?",
        measure=TRAINING_MATCH,
        baseline=HELD_OUT_PIECES,
        wanted="lower",
        margin=0.5,
        relative=True,
        if_higher=f"Train on more pieces, or for fewer steps. {_HIGHER_TEMPERATURE} too",
    ),
    Rule(
        question="Does it stay in key?",
        measure=NOTES_IN_KEY,
        baseline=ORIGINALS,
        wanted="higher",
        margin=0.03,
        if_lower=_LOWER_TEMPERATURE,
    ),
    *(
        Rule(
            question=question,
            measure=SIMILARITIES[profile],
            baseline=UNRELATED_PIECES,
            wanted="higher",
            if_lower="Train on more pieces of this style",
        )
        for profile, question in _STYLE_QUESTIONS.items()
    ),
    Rule(
        question="Does it have as many notes as the originals?",
        measure=NOTES_PER_BAR,
        baseline=ORIGINALS,
        wanted="same",
        margin=0.2,
        relative=True,
        if_lower=f"Train longer. {_HIGHER_TEMPERATURE} too",
        if_higher=_LOWER_TEMPERATURE,
    ),
    Rule(
        question="Does it repeat bars as often as the originals?",
        measure=REPEATED_BARS,
        baseline=ORIGINALS,
        wanted="same",
        margin=0.05,
        if_lower="Use a copy head (model.copy={} loader.length=2048), or form=AABA with one",
        if_higher=_HIGHER_TEMPERATURE,
    ),
    Rule(
        question="Does it have structure?",
        measure=SHORT_STRUCTURE,
        baseline=ORIGINALS,
        wanted="higher",
        margin=0.1,
        if_lower="Use a longer loader.length",
    ),
    *(
        Rule(
            question=f"Does it avoid {parallels}?",
            measure=parallels,
            baseline=ORIGINALS,
            wanted="lower",
            margin=1.0,  # per 100 beats
            if_higher="Train longer",
        )
        for parallels in PARALLELS
    ),
)

_WANTED = {rule.measure: rule.wanted for rule in reversed(RULES)}
"""Whether `lower`, `higher` or `same` is better, per measure, by its first rule."""

_SIGNIFICANCE = 1 - CONFIDENCE

FEW_HELD_OUT = 12
"""With fewer test pieces, the validation split is used as well."""

HOLD_OUT_MORE = (
    "Train on more pieces, or, if the corpus has no published split, with a larger "
    "loader.val_fraction and loader.test_fraction"
)

UNCLEAR = "unclear"


class Judgement(NamedTuple):
    """A question, its answer, the figures behind the answer, and advice."""

    question: str
    answer: str
    figures: str
    advice: str = ""


def judge(rows: Iterable[TableRow], num_held_out: int) -> list[Judgement]:
    """Return the verdict on one run: answers to all questions for which there is a row.

    The column `answer` is added to these rows.

    Args:
        rows: rows of `comparison_row`. Rows without an interval, such as for a single piece, are
            skipped.
        num_held_out: number of pieces that could be measured. If that is few, and they answer no
            question or not all, the last judgement says how to hold out more.
    """
    by_measure = {(row["measure"], row["baseline"]): row for row in rows}
    judgements = []
    for rule in RULES:
        row = by_measure.get((rule.measure, rule.baseline))
        if row is None or math.isnan(row["difference_low"]):
            continue
        row["answer"], words, advice = _answer(rule, row)
        mean = interval(row["mean"], row["low"], row["high"])
        baseline = interval(row["baseline_mean"], row["baseline_low"], row["baseline_high"])
        figures = f"{rule.measure} {mean}, {rule.baseline} {baseline}"
        answer = f"{words} the {rule.baseline}"
        judgements.append(Judgement(rule.question, answer, figures, advice))
    unclear = sum(judgement.answer.startswith(UNCLEAR) for judgement in judgements)
    if num_held_out < FEW_HELD_OUT and (unclear or not judgements):
        answer = f"{unclear} of {pluralize(len(judgements), 'answers')} unclear"
        figures = f"{pluralize(num_held_out, 'pieces')} held out"
        judgements.append(Judgement("In all:", answer, figures, HOLD_OUT_MORE))
    return judgements


def _answer(rule: Rule, row: TableRow) -> tuple[str, str, str]:
    """Return an answer as a word and as words before the baseline, and advice."""
    margin = rule.margin * row["baseline_mean"] if rule.relative else rule.margin
    low, high = row["difference_low"], row["difference_high"]
    if low > margin or high < -margin:
        side = "higher" if low > margin else "lower"
        if side == rule.wanted:
            return "better", f"better: {side} than", ""
        return "worse", f"worse: {side} than", rule.if_higher if low > margin else rule.if_lower
    if -margin <= low and high <= margin:
        return "same", "about the same as", ""
    return "unclear", f"{UNCLEAR}: too few pieces to tell it from", ""


def judge_differences(
    rows: Sequence[TableRow], num_runs: Mapping[str, int], num_held_out: int
) -> list[Judgement]:
    """Return the verdict on differences between groups of runs: which are larger than chance.

    If groups do not differ, the probability that any difference is reported is at most 5%. The
    column `answer` is added to the rows.

    Args:
        rows: rows of `run_differences`.
        num_runs: number of runs of each group, by its name.
        num_held_out: number of pieces that could be measured.
    """
    judgements = []
    # Only the permutation test of two single runs has a least p value.
    is_single = [num_runs[row["first"]] == num_runs[row["second"]] == 1 for row in rows]
    least_of_n = [least_p(row["n"]) for row in rows]
    least_possible = holm(
        [p if single else 0 * p for p, single in zip(least_of_n, is_single, strict=True)]
    )
    for row, least in zip(rows, least_possible, strict=True):
        if not row["p_holm"] < _SIGNIFICANCE:
            row["answer"] = "unclear" if least < _SIGNIFICANCE else "too few pieces"
            continue
        side = "higher" if row["difference"] > 0 else "lower"
        wanted = _WANTED.get(row["measure"], "same")
        row["answer"] = side if wanted == "same" else "better" if side == wanted else "worse"
        figures = (
            f"{row['second_mean']:.3g} and {row['first_mean']:.3g}, a difference of "
            f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}), "
            f"p = {row['p_holm']:.2g} (Holm)"
        )
        answer = f"{row['answer']} in {row['second']} than in {row['first']}"
        judgements.append(Judgement(f"{row['measure'].capitalize()}:", answer, figures))
    return judgements + _undecided(rows, num_held_out)


def _undecided(rows: Sequence[TableRow], num_held_out: int) -> list[Judgement]:
    """Return judgements with the number of differences that may be chance.

    For some of them, there are too few pieces to tell any difference from chance.
    """
    judgements = []
    count = Counter(row["answer"] for row in rows)
    figures = f"p ≥ {_SIGNIFICANCE:g} with Holm's correction for {len(rows)} comparisons"
    if unclear := count["unclear"]:
        answer = f"{pluralize(unclear, 'differences')} of {len(rows)} may be chance"
        judgements.append(Judgement("In all:", answer, figures))
    if too_few := count["too few pieces"]:
        answer = f"too few pieces to tell {too_few} of {len(rows)} from chance"
        enough = math.floor(math.log2(len(rows) / _SIGNIFICANCE)) + 2
        advice = f"Use {enough} pieces or more (metric.evaluation.num_prompts and num_pieces)"
        if enough > num_held_out:
            needed = f"{enough} pieces or more are needed, where {num_held_out} can be measured"
            advice = f"{needed}. {HOLD_OUT_MORE}"
        judgements.append(Judgement("In all:", answer, f"{figures}, for any values", advice))
    return judgements
