"""The measure `evaluation` of one or several runs: losses, continuations and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from musicgen import load
from musicgen.console import log
from musicgen.data.corpora.base import evenly_spaced
from musicgen.errors import UserError
from musicgen.evaluation.comparison import Comparison, comparison_row, run_differences
from musicgen.evaluation.continuations import (
    ContinuationTask,
    baseline_continuations,
    compare_continuations,
    continuation_request,
    continue_prompts,
    held_out_prompts,
    original_pieces,
    write_continuations,
)
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.losses import (
    Losses,
    Pieces,
    last_position,
    losses_by_unit,
    piece_losses,
    trigram_losses,
)
from musicgen.evaluation.names import (
    HELD_OUT_PIECES,
    INITIAL_WEIGHTS,
    NATS_PER_NOTE,
    NATS_PER_TOKEN,
    NATS_PER_TOKEN_BEYOND,
    TRAINING_PIECES,
    TRIGRAM,
)
from musicgen.evaluation.position_loss import curve_of, plot_loss_curves
from musicgen.evaluation.references import SPLITS
from musicgen.evaluation.runs import SAME_PIECES, Run, open_runs, short_paths, unequal_steps
from musicgen.evaluation.verdict import Judgement, judge, judge_differences
from musicgen.files import write_json, write_text
from musicgen.metrics.position_loss import unit_values
from musicgen.metrics.summary import mean_of_valid
from musicgen.report import ReportPiece, render_report, verdict_section
from musicgen.report.tables import TableRow, readable, without_nan, write_csv
from musicgen.validation import check_choice, check_int

PAGE = "index.html"
MAX_FACTOR = 2  # the last position that is measured, in training lengths
MAX_SHOWN = 12  # largest number of pieces on a page of several models
FEW_HELD_OUT = 12  # with fewer test pieces, the validation split is used as well


class HeldOut(NamedTuple):
    """The held-out pieces that all runs have."""

    names: list[str]
    split: str  # `test`, `val`, or words for both


class Range(NamedTuple):
    """The positions at which the losses of all runs are measured."""

    training_length: int  # the shortest of all runs
    last: int


class RunResults(NamedTuple):
    """The results of a run."""

    comparisons: list[Comparison]
    losses: Losses  # on held-out pieces
    trigram_losses: Losses  # on the same pieces


def evaluation(
    inputs: Inputs,
    out: Path,
    *,
    num_prompts: int,
    bars: int,
    num_pieces: int,
    baseline: str | None = None,
) -> list[TableRow]:
    """Evaluate one or several runs: losses and continuations of held-out pieces, with a verdict.

    The rows compare the measures of a run with their baselines. With several runs, all are measured
    on the same pieces, and the rows are the differences between each two runs, with p values.

    These files are written: `index.html` with the verdict and the continuations; the continuations
    as by generate.py; `position_loss.png` and the same curves as JSON; `evaluation_pieces.csv` with
    the values of each piece; and with several runs `evaluation_runs.csv` with the rows of each run.

    Args:
        num_prompts: number of held-out pieces to continue.
        bars: number of bars of a continuation.
        num_pieces: number of held-out pieces, and of training pieces, for the losses.
        baseline: a model whose continuations are on the page, with the originals, unmeasured.
    """
    check_int("num_prompts", num_prompts)
    check_int("bars", bars)
    check_int("num_pieces", num_pieces)
    runs = open_runs(inputs)
    held_out = shared_held_out(runs, inputs.split)
    positions = shared_positions(runs)
    results: dict[str, RunResults] = {}
    shown: list[ReportPiece] = []
    for number, run in enumerate(runs, start=1):
        result = compare_losses(
            run, held_out, positions, num_pieces=inputs.max_pieces or num_pieces, seed=inputs.seed
        )
        task = continuation_task(run, held_out, num_prompts, bars, seed=inputs.seed)
        folder = out / ("continuations" if len(runs) == 1 else f"continuations_{number}")
        comparisons, pieces = evaluate_continuations(run, task, folder)
        results[run.name] = result._replace(comparisons=result.comparisons + comparisons)
        if len(runs) > 1:
            pieces = with_label(pieces, run.name)
        elif baseline is not None:
            pieces = with_label(pieces, "this run")
        shown += pieces
        if baseline is not None:
            model = load(baseline).to(inputs.device)
            pieces = baseline_continuations(model, run.data, task, out / "baseline")
            shown += with_label(pieces, model.path.name)
            shown += original_pieces(task)
    if len(runs) > 1 or baseline is not None:
        shown = sorted(shown, key=lambda piece: piece.title)[:MAX_SHOWN]
    rows, title, judgements = judge_runs(runs, results, out, seed=inputs.seed)
    plot = write_curves(results, out, runs[0].model.training_length)
    summary = verdict_section(judgements, readable(rows), plot)
    notices = unequal_steps([run.model for run in runs])
    page = render_report(title=title, pieces=shown, metadata={}, notices=notices, summary=summary)
    write_text(out / PAGE, page)
    log_verdict(judgements, out / PAGE)
    return rows


def with_label(pieces: Sequence[ReportPiece], label: str) -> list[ReportPiece]:
    """Return the pieces with a label at the end of their titles, such as the name of the model."""
    return [replace(piece, title=f"{piece.title} ({label})") for piece in pieces]


def log_verdict(judgements: Sequence[Judgement], page: Path) -> None:
    """Log each question with its answer, figures and advice, and where the page is."""
    for each in judgements:
        advice = f". {each.advice}." if each.advice else ""
        log(f"{each.question} {each.answer}: {each.figures}{advice}")
    log(f"open {page}")


def shared_held_out(runs: Sequence[Run], split: str) -> HeldOut:
    """Return the pieces of a split that all runs have; copies of a piece count once.

    If the split of a run has few pieces, the other held-out split is used as well.

    Raises:
        UserError: the runs have no held-out piece in common.
    """
    check_choice("split", split, SPLITS)
    splits: Sequence[str] = [split]
    if any(len(run.data.cache.pieces(split)) < FEW_HELD_OUT for run in runs):
        splits, split = SPLITS, "validation and test"
    names_of_runs = []
    for run in runs:
        indices = sorted(index for each in splits for index in run.data.cache.pieces(each))
        names_of_runs.append([run.data.cache.names[index] for index in indices])
    shared = set(names_of_runs[0]).intersection(*names_of_runs[1:])
    if not shared:
        raise UserError(f"the runs have no held-out pieces in common; {SAME_PIECES}")
    names = [name for name in names_of_runs[0] if name in shared]
    indices = runs[0].indices(names)
    distinct = {
        runs[0].data.cache[index].tobytes(): name
        for index, name in zip(indices, names, strict=True)
    }
    return HeldOut(list(distinct.values()), split)


def shared_positions(runs: Sequence[Run]) -> Range:
    """Return the positions at which the losses of all runs can be compared."""
    training_length = min(run.model.training_length for run in runs)
    return Range(training_length, min(last_position(run.model, MAX_FACTOR) for run in runs))


def continuation_task(
    run: Run, held_out: HeldOut, num_prompts: int, bars: int, *, seed: int
) -> ContinuationTask:
    """Return the prompts of evenly spaced held-out pieces, and the request to continue them."""
    indices = evenly_spaced(run.indices(held_out.names), num_prompts)
    prompts = held_out_prompts(run.model, run.data, indices)
    request = continuation_request(run.model, prompts, bars, seed)
    return ContinuationTask(prompts, request, held_out.split)


def compare_losses(
    run: Run, held_out: HeldOut, positions: Range, *, num_pieces: int, seed: int
) -> RunResults:
    """Return the losses of a run, compared with three baselines.

    They are the loss of a trigram model, the loss on training pieces, and the loss of the initial
    weights if the run was not trained from scratch.
    """
    cache = run.data.cache
    indices = evenly_spaced(run.indices(held_out.names), num_pieces)
    pieces = Pieces(run.data, indices, positions.last)
    training = pieces._replace(indices=evenly_spaced(cache.pieces("train"), num_pieces))
    losses = piece_losses(run.model, pieces, seed=seed, name=HELD_OUT_PIECES)
    losses_of_trigram = trigram_losses(pieces)
    training_losses = piece_losses(run.model, training, seed=seed, name=TRAINING_PIECES)
    per_note = nats_per_note(losses, pieces)
    baselines = {
        TRIGRAM: nats_per_note(losses_of_trigram, pieces),
        TRAINING_PIECES: nats_per_note(training_losses, training),
    }
    if run.initial is not None:
        initial_losses = piece_losses(run.initial, pieces, seed=seed, name=INITIAL_WEIGHTS)
        baselines[INITIAL_WEIGHTS] = nats_per_note(initial_losses, pieces)
    comparisons = [
        Comparison(NATS_PER_NOTE, per_note, baseline, values)
        for baseline, values in baselines.items()
    ]
    trained = slice(positions.training_length)
    beyond = slice(positions.training_length, positions.last)
    for measure, part in ((NATS_PER_TOKEN, trained), (NATS_PER_TOKEN_BEYOND, beyond)):
        values = nats_per_token(losses, pieces, part)
        baseline_values = nats_per_token(losses_of_trigram, pieces, part)
        comparisons.append(Comparison(measure, values, TRIGRAM, baseline_values))
    return RunResults(comparisons, losses, losses_of_trigram)


def nats_per_note(losses: Losses, pieces: Pieces) -> dict[str, float]:
    """Return the nats per note of each piece, by its name."""
    values = unit_values(*losses_by_unit(losses, pieces, "note"))[:, 0, 0].tolist()
    names = [pieces.data.cache.names[index] for index in pieces.indices]
    return dict(zip(names, values, strict=True))


def nats_per_token(losses: Losses, pieces: Pieces, part: slice) -> dict[str, float]:
    """Return the mean loss of each piece in a range of positions, by its name."""
    names = [pieces.data.cache.names[index] for index in pieces.indices]
    means = [mean_of_valid(nats[0, part]) for nats in losses]
    return dict(zip(names, means, strict=True))


def evaluate_continuations(
    run: Run, task: ContinuationTask, folder: Path
) -> tuple[list[Comparison], list[ReportPiece]]:
    """Continue the prompts with a run; compare with the originals and with the initial weights.

    Returns:
        The comparisons whose measure is defined for at least one piece, and the pieces of the
        report.
    """
    continuations = continue_prompts(run.model, task.prompts, task.request)
    comparisons = compare_continuations(continuations)
    if run.initial is not None:
        by_initial = compare_continuations(
            continue_prompts(run.initial, task.prompts, task.request)
        )
        initial_values = {each.measure: each.values for each in by_initial}
        comparisons += [
            Comparison(each.measure, each.values, INITIAL_WEIGHTS, initial_values[each.measure])
            for each in comparisons
        ]
    match, shown = write_continuations(run.model, run.data, continuations, task, folder)
    comparisons.append(match)
    return [each for each in comparisons if not np.isnan([*each.values.values()]).all()], shown


def judge_runs(
    runs: Sequence[Run], results: Mapping[str, RunResults], out: Path, *, seed: int
) -> tuple[list[TableRow], str, list[Judgement]]:
    """Return the table, the title and the verdict; write the values of runs and pieces as CSV."""
    comparisons = {name: result.comparisons for name, result in results.items()}
    rows: list[TableRow] = []
    values_by_piece: dict[tuple[str, str, str], float] = {}
    for name, run_comparisons in comparisons.items():
        for comparison in run_comparisons:
            rows.append({"run": name, **comparison_row(comparison)})
            for piece, value in comparison.values.items():
                values_by_piece[name, comparison.measure, piece] = value
    columns = ("run", "measure", "piece")
    by_piece: list[TableRow] = [
        {**dict(zip(columns, key, strict=True)), "value": value}
        for key, value in values_by_piece.items()
    ]
    write_csv(by_piece, out / "evaluation_pieces.csv")
    judgements = judge(rows)
    if len(runs) == 1:
        return rows, f"Verdict on {short_paths([runs[0].model])[0]}", judgements
    write_csv(rows, out / "evaluation_runs.csv")
    vocabularies = [run.model.content.vocabulary_hash for run in runs]
    differences = run_differences(comparisons, vocabularies, seed=seed)
    title = f"Comparison of {', '.join(comparisons)}"
    return differences, title, judge_differences(differences)


def write_curves(results: Mapping[str, RunResults], out: Path, training_length: int) -> bytes:
    """Write the loss by position as a plot and as JSON; return the PNG, or b"" if it failed."""
    losses: dict[str, Losses] = {}
    for name, result in results.items():
        losses[name] = result.losses
        losses.setdefault(TRIGRAM, result.trigram_losses)
    curves = [{"run": name, **curve_of(each, training_length)} for name, each in losses.items()]
    plot = out / "position_loss.png"
    plot_loss_curves(curves, plot, training_length=training_length)
    write_json(plot.with_suffix(".json"), without_nan({"curves": curves}))
    return plot.read_bytes() if plot.exists() else b""
