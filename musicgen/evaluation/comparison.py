"""Comparisons of a measure with its baseline, and of runs with each other, as rows of tables."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from musicgen.metrics.differences import Values, holm, paired_difference, unpaired_difference
from musicgen.metrics.style import SIMILARITIES
from musicgen.metrics.summary import Summary
from musicgen.report.tables import TableRow

SUMMARY_COLUMNS = ("n", "mean", "low", "high")


class Comparison(NamedTuple):
    """The values of a measure for a run, by piece, and of the baseline it is compared with."""

    measure: str
    values: Values
    baseline: str
    baseline_values: Values


def comparison_row(comparison: Comparison) -> TableRow:
    """Return a row with the means of a measure and of its baseline, and with their difference.

    The difference is paired if both have the same pieces.
    """
    measure, values, baseline, baseline_values = comparison
    if values.keys() == baseline_values.keys():
        difference = paired_difference(values, baseline_values)
    else:
        difference = unpaired_difference(values, baseline_values)
    row: TableRow = {"measure": measure}
    similarities = measure in SIMILARITIES.values()
    summary = Summary.of(values.values(), similarities=similarities)
    row |= {name: getattr(summary, name) for name in SUMMARY_COLUMNS}
    row["baseline"] = baseline
    baseline_summary = Summary.of(baseline_values.values(), similarities=similarities)
    row |= {f"baseline_{name}": getattr(baseline_summary, name) for name in SUMMARY_COLUMNS}
    row["difference"] = difference.mean
    row["difference_low"] = difference.low
    row["difference_high"] = difference.high
    return row


def run_differences(
    comparisons: Mapping[str, Sequence[Comparison]], vocabularies: Sequence[str], *, seed: int
) -> list[TableRow]:
    """Return a row for each measure and pair of runs, with the second run minus the first.

    Args:
        comparisons: comparisons of each run, by its name. Their baselines are not used.
        vocabularies: hash of the vocabulary of each run. Losses per token are compared only between
            runs with the same vocabulary, as tokens of different tokenizers differ in content.
        seed: seed of the permutation test.
    """
    rows: list[TableRow] = []
    runs = zip(comparisons.items(), vocabularies, strict=True)
    for (first, vocabulary), (second, other_vocabulary) in combinations(runs, 2):
        (first_name, first_measures), (second_name, second_measures) = first, second
        second_values = {each.measure: each.values for each in second_measures}
        for measure, values in {each.measure: each.values for each in first_measures}.items():
            if measure not in second_values:
                continue
            if "per token" in measure and vocabulary != other_vocabulary:
                continue
            found = paired_difference(second_values[measure], values, seed=seed)
            second_mean, first_mean = found.means
            rows.append(
                {
                    "measure": measure,
                    "first": first_name,
                    "second": second_name,
                    "n": found.n,
                    "first_mean": first_mean,
                    "second_mean": second_mean,
                    "difference": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "p_holm": found.p,
                }
            )
    corrected = holm([row["p_holm"] for row in rows])
    for row, p in zip(rows, corrected, strict=True):
        row["p_holm"] = p
    return rows
