"""The measure `evaluation` of one or several runs: losses, continuations and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from musicgen import load
from musicgen.console import log, warn, warn_of_first
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.data.prompt_files import HELD_OUT
from musicgen.errors import UserError
from musicgen.evaluation.descriptors import compare_continuations
from musicgen.evaluation.generated_files import file_names, write_manifest
from musicgen.evaluation.groups import judge_runs
from musicgen.evaluation.originality import training_matches
from musicgen.evaluation.position_loss import (
    Losses,
    Pieces,
    curve_of,
    last_position,
    losses_by_unit,
    piece_losses,
    plot_loss_curves,
    trigram_losses,
)
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN
from musicgen.evaluation.runs import (
    SAME_PIECES,
    Inputs,
    Run,
    open_runs,
    piece_readers,
    unequal_steps,
)
from musicgen.evaluation.verdict import (
    FEW_HELD_OUT,
    HELD_OUT_PIECES,
    INITIAL_WEIGHTS,
    NATS_PER_NOTE,
    TRAINING_MATCH,
    TRAINING_PIECES,
    TRIGRAM,
    Comparisons,
)
from musicgen.files import write_bytes, write_json, write_text
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import PROMPT_BARS, Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.metrics.intervals import Values
from musicgen.metrics.position_loss import range_means, unit_values
from musicgen.midi import without_suffix
from musicgen.report import ReportPiece, render_report, verdict_section
from musicgen.report.tables import TableRow, readable, without_nan
from musicgen.text import pluralize
from musicgen.validation import check_choice, check_int

PAGE = "index.html"
MAX_FACTOR = 2  # the last position that is measured, in training lengths
MAX_SHOWN = 12  # largest number of pieces on a page of several models
MAX_HELD_OUT = 100  # largest number of held-out pieces whose longest matches are compared
MAX_TOKENS = 4
"""Limit on new tokens per bar, as a multiple of the tokens per bar of the longest prompt.

It is needed as a model that has learned little may not end its bars.
"""


def evaluation(
    inputs: Inputs, out: Path, *, num_prompts: int, bars: int, num_pieces: int, baseline: str | None
) -> list[TableRow]:
    """Evaluate one or several runs: losses and continuations of held-out pieces, with a verdict.

    The rows compare the measures of a run with their baselines; with several runs, they are the
    differences between each two groups of runs on the same pieces, see `run_differences`.

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
    names, references = shared_held_out(runs, inputs.split)
    num_pieces = inputs.max_pieces or num_pieces
    trained = min(run.model.training_length for run in runs)
    last = min(last_position(run.model, MAX_FACTOR) for run in runs)
    compared: dict[str, Comparisons] = {}
    losses: dict[str, Losses] = {}
    shown: list[ReportPiece] = []
    for number, run in enumerate(runs, start=1):
        indices = run.indices(names)
        measured = Pieces(run.data, evenly_spaced(indices, num_pieces), last)
        comparisons, losses[run.name], of_trigram = compare_losses(
            run, measured, trained, num_pieces, inputs.seed
        )
        losses.setdefault(TRIGRAM, of_trigram)
        prompts = held_out_prompts(run.model, run.data, evenly_spaced(indices, num_prompts))
        request = continuation_request(run.model, prompts, bars, inputs.seed)
        folder = out / ("continuations" if len(runs) == 1 else f"continuations_{number}")
        of_music, pieces = evaluate_continuations(run, prompts, request, references, folder)
        compared[run.name] = comparisons | of_music
        if len(runs) > 1 or baseline is not None:
            pieces = with_label(pieces, run.name if len(runs) > 1 else "this run")
        shown += pieces
        if baseline is not None and number == 1:
            model = load(baseline).to(inputs.device)
            shown += baseline_pieces(model, run, prompts, request, references, out / "baseline")
    if len(runs) > 1 or baseline is not None:
        shown = sorted(shown, key=lambda piece: piece.title)[:MAX_SHOWN]
    rows, title, judgements = judge_runs(runs, compared, out, len(names), inputs.seed)
    plot = write_curves(losses, out, runs[0].model.training_length)
    summary = verdict_section(judgements, readable(rows), plot)
    notices = unequal_steps([run.model for run in runs])
    page = render_report(title=title, pieces=shown, metadata={}, notices=notices, summary=summary)
    write_text(out / PAGE, page)
    for each in judgements:
        advice = f". {each.advice}." if each.advice else ""
        log(f"{each.question} {each.answer}: {each.figures}{advice}")
    log(f"open {out / PAGE}")
    return rows


def with_label(pieces: Sequence[ReportPiece], label: str) -> list[ReportPiece]:
    """Return the pieces with a label at the end of their titles, such as the name of the model."""
    return [replace(piece, title=f"{piece.title} ({label})") for piece in pieces]


def shared_held_out(runs: Sequence[Run], split: str) -> tuple[list[str], str | None]:
    """Return the pieces of a split that all runs have; copies of a piece count once.

    If the split of a run has few pieces, the other held-out split is used as well.

    Returns:
        The names of the pieces, and their split: `test`, `val`, or None for both.

    Raises:
        UserError: the runs have no held-out piece in common.
    """
    check_choice("split", split, HELD_OUT)
    few = any(len(run.data.cache.pieces(split)) < FEW_HELD_OUT for run in runs)
    splits: Sequence[str] = HELD_OUT if few else [split]
    pieces = []  # indices by name, of each run
    for cache in (run.data.cache for run in runs):
        indices = sorted(index for each in splits for index in cache.pieces(each))
        pieces.append({cache.names[index]: index for index in indices})
    first, cache = pieces[0], runs[0].data.cache
    shared = [name for name in first if all(name in names for names in pieces)]
    if not shared:
        raise UserError(f"the runs have no held-out pieces in common; {SAME_PIECES}")
    distinct = {cache[first[name]].tobytes(): name for name in shared}
    return list(distinct.values()), None if few else split


def compare_losses(
    run: Run, pieces: Pieces, training_length: int, num_pieces: int, seed: int
) -> tuple[Comparisons, Losses, Losses]:
    """Compare the losses of a run on held-out pieces with three baselines.

    They are the loss of a trigram model, the loss on training pieces, and the loss of the initial
    weights if the run was not trained from scratch.

    Args:
        training_length: the shortest of all runs.
        num_pieces: number of training pieces.

    Returns:
        The comparisons, and the losses of the run and of the trigram model on the pieces.
    """
    indices = evenly_spaced(run.data.cache.pieces("train"), num_pieces)
    training = pieces._replace(indices=indices)
    losses = piece_losses(run.model, pieces, seed=seed, name=HELD_OUT_PIECES)
    of_trigram = trigram_losses(pieces)
    of_training = piece_losses(run.model, training, seed=seed, name=TRAINING_PIECES)
    baselines = {TRIGRAM: (of_trigram, pieces), TRAINING_PIECES: (of_training, training)}
    if run.initial is not None:
        of_initial = piece_losses(run.initial, pieces, seed=seed, name=INITIAL_WEIGHTS)
        baselines[INITIAL_WEIGHTS] = of_initial, pieces

    def per_note(losses: Losses, pieces: Pieces) -> dict[str, float]:
        return pieces.by_name(unit_values(*losses_by_unit(losses, pieces, "note")))

    values = per_note(losses, pieces)
    comparisons = {(NATS_PER_NOTE, name): (values, per_note(*x)) for name, x in baselines.items()}
    for part, start, end in (
        ("training length", 0, training_length),
        ("beyond training length", training_length, pieces.length),
    ):
        values, baseline = (
            pieces.by_name(range_means(each, start, end)) for each in (losses, of_trigram)
        )
        comparisons[f"nats per token, {part}", TRIGRAM] = values, baseline
    return comparisons, losses, of_trigram


def held_out_prompts(model: MusicModel, data: EncodedCorpus, pieces: Sequence[int]) -> list[Prompt]:
    """Return the first bars of pieces as prompts.

    Pieces without more bars are left out. So are pieces whose prompt is longer than the last
    position of the model.

    Args:
        pieces: indices of the pieces in the cache.

    Raises:
        UserError: no piece remains.
    """
    longest = model.model.position.max_length or np.inf
    prompts, errors = [], []
    for name, read in piece_readers(data, pieces).items():
        try:
            prompt = model.prompt(read(), name, PROMPT_BARS)
        except UserError as error:
            errors.append(f"left out: {error}")
            continue
        if len(prompt.tokens) >= longest:
            found = f"{len(prompt.tokens)} tokens are too many for max_length={longest}"
            errors.append(f"left out: {name}: {PROMPT_BARS} bars of {found}")
        elif prompt.piece.end > prompt.end.tick:
            prompts.append(prompt)
    warn_of_first(errors, NUM_SKIPPED_SHOWN)
    if not prompts:
        why = "" if not errors else f"; {errors[0]}"
        raise UserError(f"no held-out piece has more than {PROMPT_BARS} bars to continue{why}")
    return prompts


def continuation_request(
    model: MusicModel, prompts: Sequence[Prompt], bars: int, seed: int
) -> GenerationRequest:
    """Return a request for one continuation of each prompt, with this number of bars."""
    tokens_per_bar = max(len(prompt.tokens) for prompt in prompts) / PROMPT_BARS
    max_new_tokens = round(MAX_TOKENS * tokens_per_bar * bars)
    return model.request(bars=bars, max_new_tokens=max_new_tokens, seed=seed)


def evaluate_continuations(
    run: Run,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    references: str | None,
    folder: Path,
) -> tuple[Comparisons, list[ReportPiece]]:
    """Continue the prompts with a run; compare with the originals and with the initial weights.

    Returns:
        The comparisons whose measure is defined for at least one piece, and the pieces of the
        report.
    """
    continuations = continue_prompts(run.model, prompts, request)
    comparisons = compare_continuations(continuations)
    if run.initial is not None:
        initial = compare_continuations(continue_prompts(run.initial, prompts, request))
        comparisons |= {
            (measure, INITIAL_WEIGHTS): (values, initial[measure, baseline][0])
            for (measure, baseline), (values, _) in comparisons.items()
        }
    match, shown = write_continuations(
        run.model, run.data, continuations, request, references, folder
    )
    comparisons[TRAINING_MATCH, HELD_OUT_PIECES] = match
    defined = {
        names: pair
        for names, pair in comparisons.items()
        if not np.isnan([*pair[0].values()]).all()
    }
    return defined, shown


def continue_prompts(
    model: MusicModel, prompts: Sequence[Prompt], request: GenerationRequest
) -> list[Continuation]:
    """Return one continuation of each prompt, in the order of the prompts."""
    log(f"continuing {pluralize(len(prompts), 'pieces')} with {model.path}")
    names = [prompt.name for prompt in prompts]
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = sampler.continuations([*prompts])
    return sorted(done, key=lambda continuation: names.index(continuation.prompt.name))


def write_continuations(
    model: MusicModel,
    data: EncodedCorpus,
    continuations: Sequence[Continuation],
    request: GenerationRequest,
    references: str | None,
    folder: Path,
) -> tuple[tuple[Values, Values], list[ReportPiece]]:
    """Write the files of continuations, as generate.py does.

    Args:
        references: the split of the prompts; None: both held-out splits.

    Returns:
        The lengths of their longest matches with the training set and of those of held-out pieces,
        and the pieces of the report.
    """
    names = file_names([each.prompt for each in continuations], 1)
    files = {}
    for each in continuations:
        file = names[each.prompt, each.sample]
        written = each.midi_file()
        files[file] = each, written
        write_bytes(folder / file, written.data)
    scores = {file: each.new_on_grid for file, (each, _) in files.items()}
    matches, held_out, _ = training_matches(data, scores, MAX_HELD_OUT)
    settings = {"checkpoint": str(model.path), **request.options()}
    provenance = {"tokenizer": model.content.tokenizer, "references": references}
    shown = [
        replace(piece, midi_file=f"{folder.name}/{piece.midi_file}", metadata={})
        for piece in write_manifest(folder, files, settings, provenance, [], matches)
    ]
    lengths, of_held_out = (
        {name: float(match.num_notes) for name, match in each.items()}
        for each in (matches, held_out)
    )
    return (lengths, of_held_out), shown


def baseline_pieces(
    model: MusicModel,
    run: Run,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    references: str | None,
    folder: Path,
) -> list[ReportPiece]:
    """Write the continuations of a baseline model.

    Returns:
        These continuations and as many bars of the originals, as pieces of the report.
    """
    indices = run.indices([prompt.name for prompt in prompts])
    request = replace(request, sampling=model.sampling())
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = [*sampler.continuations(held_out_prompts(model, run.data, indices))]
    _, shown = write_continuations(model, run.data, done, request, references, folder)
    shown = with_label(shown, model.path.name)
    num_bars = PROMPT_BARS + (request.bars or 0)
    for prompt in prompts:
        starts = prompt.piece.bar_starts()
        end = int(starts[num_bars]) if len(starts) > num_bars else prompt.piece.end
        title = f"{without_suffix(prompt.name)}, the original"
        original = prompt.piece.clip(0, end)
        shown.append(ReportPiece(title, original, prompt.end.tick, None, {}))
    return shown


def write_curves(losses: Mapping[str, Losses], out: Path, training_length: int) -> bytes:
    """Write the loss by position as a plot and as JSON; return the PNG, or b"" if it failed."""
    curves = [{"run": name, **curve_of(each, training_length)} for name, each in losses.items()]
    plot = out / "position_loss.png"
    plot_loss_curves(curves, plot, training_length=training_length)
    write_json(plot.with_suffix(".json"), without_nan({"curves": curves}))
    return plot.read_bytes() if plot.exists() else b""
