"""Groups of runs that differ in nothing but their seeds: differences, tables and the verdict."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

from musicgen.evaluation.runs import Run, short_paths
from musicgen.evaluation.verdict import (
    NATS_PER_NOTE,
    Comparisons,
    Judgement,
    comparison_row,
    judge,
    judge_differences,
)
from musicgen.metrics.intervals import Values, crossed_difference, holm
from musicgen.metrics.style import SIMILARITIES
from musicgen.report.tables import TableRow, interval, write_csv
from musicgen.text import pluralize


def run_differences(
    values: Mapping[str, Mapping[str, Sequence[Values]]], vocabularies: Sequence[str], *, seed: int
) -> list[TableRow]:
    """Return a row per measure and pair of groups, with the second group minus the first.

    Intervals and p values are over pieces, and over seeds if a group has several runs, see
    `crossed_difference`.

    Args:
        values: values of the runs of each group, by its name and by measure.
        vocabularies: hash of the vocabulary of each group. Losses per token are compared only
            between groups with the same vocabulary, as tokens of different tokenizers differ in
            content.
        seed: seed of the permutation test.
    """
    rows: list[TableRow] = []
    groups = zip(values.items(), vocabularies, strict=True)
    for ((first, measures), vocabulary), ((second, others), other_vocabulary) in combinations(
        groups, 2
    ):
        for measure in measures:
            if measure not in others:
                continue
            if "per token" in measure and vocabulary != other_vocabulary:
                continue
            found = crossed_difference(others[measure], measures[measure], seed=seed)
            second_mean, first_mean = found.means
            rows.append(
                {
                    "measure": measure,
                    "first": first,
                    "second": second,
                    "n": found.n,
                    "first_mean": first_mean,
                    "second_mean": second_mean,
                    "difference": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "p_holm": found.p,
                }
            )
    for row, p in zip(rows, holm([row["p_holm"] for row in rows]), strict=True):
        row["p_holm"] = p
    return rows


def group_means(group: str, values: Mapping[str, Sequence[Values]]) -> list[TableRow]:
    """Return a row per measure of one group, with its mean over seeds and pieces.

    Args:
        values: values of each run of the group, by measure.
    """
    rows = []
    for measure, runs in values.items():
        found = crossed_difference(runs, similarities=measure in SIMILARITIES.values())
        ends = {"mean": found.mean, "low": found.low, "high": found.high}
        rows.append({"run": group, "measure": measure, "n": found.n, "seeds": len(runs), **ends})
    return rows


def judge_runs(
    runs: Sequence[Run],
    compared: Mapping[str, Comparisons],
    out: Path,
    num_held_out: int,
    seed: int,
) -> tuple[list[TableRow], str, list[Judgement]]:
    """Return the table, the title and the verdict; write the values of runs and pieces as CSV.

    Args:
        compared: the comparisons of each run, by its name.
        num_held_out: number of pieces that could be measured.
        seed: seed of the permutation test.
    """
    rows = [
        {"run": run, **comparison_row(*names, *pair)}
        for run, comparisons in compared.items()
        for names, pair in comparisons.items()
    ]
    values = {
        run: {measure: values for (measure, _), (values, _) in comparisons.items()}
        for run, comparisons in compared.items()
    }
    by_piece = [
        {"run": run, "measure": measure, "piece": piece, "value": value}
        for run, measures in values.items()
        for measure, pieces in measures.items()
        for piece, value in pieces.items()
    ]
    write_csv(by_piece, out / "evaluation_pieces.csv")
    judgements = judge(rows, num_held_out)
    if len(runs) == 1:
        return rows, f"Verdict on {short_paths([runs[0].model])[0]}", judgements
    write_csv(rows, out / "evaluation_runs.csv")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    by_group = {
        group: {
            measure: [values[run.name][measure] for run in members]
            for measure in values[members[0].name]
            if all(measure in values[run.name] for run in members)
        }
        for group, members in groups.items()
    }
    if len(groups) == 1:
        return one_group(runs[0].group, by_group[runs[0].group], len(runs))
    vocabularies = [members[0].model.content.vocabulary_hash for members in groups.values()]
    differences = run_differences(by_group, vocabularies, seed=seed)
    num_runs = {group: len(members) for group, members in groups.items()}
    title = ", ".join(f"{x} ({n} seeds)" if n > 1 else x for x, n in num_runs.items())
    return (
        differences,
        f"Comparison of {title}",
        judge_differences(differences, num_runs, num_held_out),
    )


def one_group(
    group: str, values: Mapping[str, Sequence[Values]], num_runs: int
) -> tuple[list[TableRow], str, list[Judgement]]:
    """Return the table, the title and the verdict of runs that all differ in their seeds alone."""
    rows = group_means(group, values)
    loss = next(row for row in rows if row["measure"] == NATS_PER_NOTE)
    mean = interval(loss["mean"], loss["low"], loss["high"])
    judgement = Judgement(
        "In all:",
        "one group, as the runs differ in nothing but their seeds",
        f"{NATS_PER_NOTE} {mean} over {pluralize(loss['n'], 'pieces')} and {num_runs} seeds",
        "To compare settings, give runs of another setting, too",
    )
    return rows, f"{group}, {num_runs} seeds", [judgement]
