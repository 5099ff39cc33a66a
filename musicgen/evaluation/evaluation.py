"""Evaluation of a run, or of several: losses, continuations and a verdict, on one page."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from musicgen import load
from musicgen.console import log, warn, warn_of_first
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.descriptors import describe
from musicgen.evaluation.generated_files import KNOWN, STYLE_NAMES, file_names, write_manifest
from musicgen.evaluation.inputs import Inputs
from musicgen.evaluation.originality import MAX_HELD_OUT, known_passages
from musicgen.evaluation.position_loss import (
    Losses,
    curve_of,
    furthest,
    in_units,
    piece_losses,
    plot_loss_curves,
    trigram_losses,
)
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, SPLITS, Pair
from musicgen.evaluation.runs import SAME_PIECES, load_runs, name_runs, short_paths
from musicgen.evaluation.training_data import open_training_data, piece_readers
from musicgen.evaluation.verdict import (
    BEFORE,
    CHANCE,
    DENSE,
    HELD_OUT,
    KEY_SHARE,
    NATS,
    ORIGINALS,
    RECALLED,
    TRAINING,
    TRIGRAM,
    judge,
    judge_differences,
)
from musicgen.files import write_bytes, write_text
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.metrics.differences import Values, holm, paired_difference, unpaired_difference
from musicgen.metrics.part_writing import part_writing
from musicgen.metrics.position_loss import unit_values
from musicgen.metrics.style import anchor_similarities, style_labels, style_similarity
from musicgen.metrics.summary import Summary, mean_of_valid
from musicgen.midi import Score, without_suffix
from musicgen.report import ReportPiece, render_report, verdict_section
from musicgen.report.tables import TableRow, readable, write_csv, write_json
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT
from musicgen.validation import check_choice, check_int

PAGE = "index.html"
MAX_FACTOR = 2  # longest position, as a multiple of the training length
MAX_SHOWN = 12  # pieces on the page of several runs
PROMPT_BARS = 4
FEW_HELD_OUT = 12  # pieces; of fewer, validation pieces are used beside test pieces
TOKENS = 4  # in a continuation's bars, at most so many times as in those of the longest prompt
_VOICES = ("out_of_range", "crossed", "parallel_fifths", "parallel_octaves", "melody_fit")
MEASURES = {  # of `describe`, and of music in four voices, in words
    "in_key_share": KEY_SHARE,
    "notes_per_bar": DENSE,
    "bars_recalled": RECALLED,
    **{f"structureness_{x}": f"structureness, {x} segments" for x in ("short", "mid", "long")},
    **{name: name.replace("_", " ") for name in _VOICES},
}


class Line(NamedTuple):
    """A measure of a run by piece, and what it stands beside."""

    measure: str
    values: Values
    beside: str
    others: Values


def evaluation(
    inputs: Inputs,
    out: Path,
    *,
    num_prompts: int,
    bars: int,
    num_pieces: int,
    beside: str | None = None,
) -> list[TableRow]:
    """Judge what a run has learned, and its continuations of held-out pieces.

    Writes `index.html`, with the verdict and the continuations, `position_loss.png` with its curves
    as JSON, the values by piece as CSV, and the continuations as generate.py does. Of several runs,
    it measures the same pieces, and returns the differences with the p values that chance explains
    them; `evaluation_runs.csv` has the figures of each run.

    Args:
        num_prompts: held-out pieces that are continued.
        bars: that are added to each.
        num_pieces: held-out pieces, and training pieces, of which the loss is computed.
        beside: another model, whose music stands on the page with the originals, not measured.
    """
    for name, value in (("num_prompts", num_prompts), ("bars", bars), ("num_pieces", num_pieces)):
        check_int(name, value)
    models = load_runs(inputs, same_tokens=False)
    names = [name for _, name in name_runs(models)]
    data = [open_training_data(model, inputs.root) for model in models]
    split, pieces = _held_out_pieces(data, inputs.split)
    # The same tokens of all runs, whatever the lengths that they were trained at.
    length = min(furthest(model, MAX_FACTOR) for model in models)
    trained = min(model.training_length for model in models)
    num_pieces = inputs.max_pieces or num_pieces
    lines: dict[str, list[Line]] = {}
    losses: dict[str, Losses] = {}
    shown: list[ReportPiece] = []
    for number, (name, model, corpus) in enumerate(zip(names, models, data, strict=True), start=1):
        before, held = _model_before(model), [corpus.cache.names.index(piece) for piece in pieces]
        lines[name], losses[name], trigram = _loss_lines(
            model, before, corpus, held, num_pieces, length, trained, inputs.seed
        )
        losses.setdefault(TRIGRAM, trigram)
        prompts = _prompts(model, corpus, evenly_spaced(held, num_prompts))
        densest = max(len(prompt.tokens) for prompt in prompts) / PROMPT_BARS
        most = round(TOKENS * densest * bars)  # a model that has learned little ends no bar
        request = model.request(bars=bars, max_new_tokens=most, seed=inputs.seed)
        done, new = _music_lines(model, prompts, request)
        if before is not None:
            old = {x.measure: x.values for x in _music_lines(before, prompts, request)[1]}
            new += [x._replace(beside=BEFORE, others=old[x.measure]) for x in new]
        folder = out / ("continuations" if len(models) == 1 else f"continuations_{number}")
        known, written = _write(model, corpus, done, request, split, folder)
        lines[name] += [x for x in (*new, known) if not np.isnan([*x.values.values()]).all()]
        several = f" ({name})" if len(models) > 1 else " (this run)" if beside else ""
        shown += [replace(x, title=x.title + several) for x in written]
        if beside is not None:
            given = prompts, request, split, out / "beside"
            shown += _music_beside(load(beside).to(inputs.device), corpus, *given)
    rows = [{"run": name, **_row(x)} for name, each in lines.items() for x in each]
    values = {(name, x.measure): x.values for name, each in lines.items() for x in each}
    by_piece = [
        {"run": name, "measure": measure, "piece": piece, "value": value}
        for (name, measure), own in values.items()
        for piece, value in own.items()
    ]
    write_csv(by_piece, out / "evaluation_pieces.csv")
    title, judgements = f"Verdict on {short_paths(models)[0]}", judge(rows)
    if len(models) > 1 or beside:
        shown = sorted(shown, key=lambda piece: piece.title)[:MAX_SHOWN]
    if len(models) > 1:
        write_csv(rows, out / "evaluation_runs.csv")
        rows = _differences(lines, [x.content.vocabulary_hash for x in models], inputs.seed)
        title, judgements = f"Comparison of {', '.join(names)}", judge_differences(rows)
    plot, length = out / "position_loss.png", models[0].training_length
    curves = [{"run": name, **curve_of(each, length)} for name, each in losses.items()]
    plot_loss_curves(curves, plot, training_length=length)
    write_json({"curves": curves}, plot.with_suffix(".json"))
    image = plot.read_bytes() if plot.exists() else b""
    summary = verdict_section(judgements, readable(rows), image)
    write_text(out / PAGE, render_report(title=title, pieces=shown, metadata={}, summary=summary))
    for question, answer, figures, advice in judgements:
        log(f"{question} {answer}: {figures}" + (f". {advice}." if advice else ""))
    log(f"open {out / PAGE}")
    return rows


def _held_out_pieces(data: Sequence[EncodedCorpus], split: str) -> tuple[str, list[str]]:
    """Return the held-out pieces that all runs have, by name, and the name of their split.

    If a split has few, they are those of both that are held out. Copies of a piece count once.
    """
    check_choice("split", split, SPLITS)
    splits: Sequence[str] = (split,)
    if any(len(corpus.cache.pieces(split)) < FEW_HELD_OUT for corpus in data):
        splits, split = SPLITS, "validation and test"
    pieces = [sorted(i for each in splits for i in x.cache.pieces(each)) for x in data]
    first, *others = (
        {x.cache.names[i]: i for i in own} for x, own in zip(data, pieces, strict=True)
    )
    common = [name for name in first if all(name in other for other in others)]
    if not common:
        raise UserError(f"no held-out pieces, or not the same of all runs; {SAME_PIECES}")
    return split, [*{data[0].cache[first[name]].tobytes(): name for name in common}.values()]


def _model_before(model: MusicModel) -> MusicModel | None:
    """Return the model that a run began with, if it is here and has the same vocabulary."""
    if (init := model.content.config.get("init")) is None:
        return None
    try:
        before = load(init)
        if before.content.vocabulary_hash != model.content.vocabulary_hash:
            raise UserError(f"{init} has another vocabulary")
    except UserError as error:
        warn(f"nothing is compared with the weights before: {error}")
        return None
    return before.to(next(model.model.parameters()).device.type)


def _loss_lines(
    model: MusicModel,
    before: MusicModel | None,
    data: EncodedCorpus,
    held: Sequence[int],
    num_pieces: int,
    length: int,
    trained: int,
    seed: int,
) -> tuple[list[Line], Losses, Losses]:
    """Return losses beside others, and those of held-out pieces: the model's, the trigram model's.

    They reach up to the position `length`; those of the trained length up to `trained`.
    """
    names, held = data.cache.names, evenly_spaced(held, num_pieces)
    training = evenly_spaced(data.cache.pieces("train"), num_pieces)
    losses = {
        HELD_OUT: piece_losses(model, data, held, length, seed, HELD_OUT),
        TRIGRAM: trigram_losses(data, held, length),
        TRAINING: piece_losses(model, data, training, length, seed, TRAINING),
    }
    if before is not None:
        losses[BEFORE] = piece_losses(before, data, held, length, seed, BEFORE)
    a_note = {}
    for kind, nats in losses.items():
        indices = training if kind == TRAINING else held
        values = unit_values(*in_units(nats, data, indices, length, "note"))[:, 0, 0].tolist()
        a_note[kind] = {names[i]: x for i, x in zip(indices, values, strict=True)}
    own = a_note.pop(HELD_OUT)
    lines = [Line(NATS, own, beside, values) for beside, values in a_note.items()]
    for measure, part in (
        ("nats a token, trained length", slice(trained)),
        ("nats a token, beyond it", slice(trained, length)),
    ):
        values, others = (
            {names[i]: mean_of_valid(x[0, part]) for i, x in zip(held, losses[kind], strict=True)}
            for kind in (HELD_OUT, TRIGRAM)
        )
        lines.append(Line(measure, values, TRIGRAM, others))
    return lines, losses[HELD_OUT], losses[TRIGRAM]


def _prompts(model: MusicModel, data: EncodedCorpus, pieces: Sequence[int]) -> list[Prompt]:
    """Return the beginnings of pieces that are longer, and short enough for the model."""
    longest = model.model.position.max_length or np.inf
    prompts, errors = [], []
    for name, read in piece_readers(data, pieces).items():
        try:
            prompt = model.prompt(read(), name, PROMPT_BARS)
        except UserError as error:
            errors.append(f"left out: {error}")
            continue
        if len(prompt.tokens) < longest and prompt.piece.end > prompt.end_tick:
            prompts.append(prompt)
    warn_of_first(errors, NUM_SKIPPED_SHOWN)
    if not prompts:
        raise UserError(f"no held-out piece has more than {PROMPT_BARS} bars to continue")
    return prompts


def _write(
    model: MusicModel,
    data: EncodedCorpus,
    done: Sequence[Continuation],
    request: GenerationRequest,
    split: str,
    out: Path,
) -> tuple[Line, list[ReportPiece]]:
    """Write continuations as generate.py does; return their known passages, and what is shown."""
    names = file_names([c.prompt for c in done], 1)
    files = {names[id(c.prompt), c.sample]: (c, c.midi_file()) for c in done}
    for file, (_, (content, _, _)) in files.items():
        write_bytes(out / file, content)
    known = known_passages(data, {f: c.new_score for f, (c, _) in files.items()}, MAX_HELD_OUT)
    settings = {"checkpoint": str(model.path), **asdict(request)}
    references = split if split in SPLITS else None
    provenance = {"tokenizer": model.content.tokenizer, "references": references}
    shown = write_manifest(out, files, settings, provenance, [], known)
    shown = [replace(x, midi_file=f"{out.name}/{x.midi_file}", metadata={}) for x in shown]
    kinds = known.passages, known.held_out
    lengths, others = ({k: float(x.num_notes) for k, x in kind.items()} for kind in kinds)
    return Line(KNOWN, lengths, HELD_OUT, others), shown


def _music_beside(
    model: MusicModel,
    data: EncodedCorpus,
    prompts: Sequence[Prompt],
    request: GenerationRequest,
    split: str,
    out: Path,
) -> list[ReportPiece]:
    """Return the prompts as another model continues them, and as they go on in their pieces."""
    held = [data.cache.names.index(prompt.name) for prompt in prompts]
    request = replace(request, sampling=model.sampling())
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = [*sampler.continuations(_prompts(model, data, held))]
    _, written = _write(model, data, done, request, split, out)
    shown = [replace(x, title=f"{x.title} ({model.path.name})") for x in written]
    for prompt in prompts:
        later = prompt.piece.bar_starts()[PROMPT_BARS + (request.bars or 0) :]
        own = prompt.piece.clip(0, int([*later, prompt.piece.end][0]))
        title = f"{without_suffix(prompt.name)}, the original"
        shown.append(ReportPiece(title, own, prompt.end_tick, None, {}))
    return shown


def _row(line: Line) -> TableRow:
    """Return the means of a measure and of what it stands beside, and their difference."""
    paired = line.values.keys() == line.others.keys()
    compare = paired_difference if paired else unpaired_difference
    row: TableRow = {"measure": line.measure}
    for prefix, values in (("", line.values), ("beside_", line.others)):
        found = Summary.of(values.values())
        row |= {f"{prefix}{name}": getattr(found, name) for name in ("n", "mean", "low", "high")}
        row.setdefault("beside", line.beside)
    _, mean, low, high, *_ = compare(line.values, line.others)
    return row | {"difference": mean, "difference_low": low, "difference_high": high}


def _differences(
    lines: Mapping[str, Sequence[Line]], vocabularies: Sequence[str], seed: int
) -> list[TableRow]:
    """Return a row for each measure and pair of runs: the second less the first."""
    values = {run: {x.measure: x.values for x in each} for run, each in lines.items()}
    rows: list[TableRow] = []
    for (first, own), (second, other) in combinations(zip(values, vocabularies, strict=True), 2):
        shared = (name for name in values[first] if name in values[second])
        # A token of one vocabulary says more or less than one of another.
        for measure in (x for x in shared if own == other or "a token" not in x):
            old, new = values[first][measure], values[second][measure]
            n, mean, low, high, p, (new_mean, old_mean) = paired_difference(new, old, seed=seed)
            row = {"measure": measure, "first": first, "second": second, "n": n}
            row |= {"first_mean": old_mean, "second_mean": new_mean}
            rows.append({**row, "difference": mean, "low": low, "high": high, "p_holm": p})
    corrected = holm([row["p_holm"] for row in rows])
    return [{**row, "p_holm": p} for row, p in zip(rows, corrected, strict=True)]


def _music_lines(
    model: MusicModel, prompts: Sequence[Prompt], request: GenerationRequest
) -> tuple[list[Continuation], list[Line]]:
    """Continue prompts; return also what this is like, beside the music that follows them."""
    log(f"continuing {pluralize(len(prompts), 'pieces')} with {model.path}")
    names = [prompt.name for prompt in prompts]
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = sorted(sampler.continuations([*prompts]), key=lambda c: names.index(c.prompt.name))
    pairs = [
        Pair(p.name, p.name, c.new_score, p.piece, p.end_tick / TICKS_PER_BEAT)
        for c, p in zip(done, prompts, strict=True)
    ]
    own = [(pair.name, pair.own_continuation()) for pair in pairs]
    new = {pair.name: _describe(pair.continuation, pair) for pair in pairs}
    old = {pair.name: _describe(score, pair) for (_, score), pair in zip(own, pairs, strict=True)}
    lines = []
    for measure in MEASURES.values():
        values, others = ({k: row[measure] for k, row in rows.items()} for rows in (new, old))
        lines.append(Line(measure, values, ORIGINALS, others))
    wholes = {pair.name: pair.reference for pair in pairs}
    anchors = anchor_similarities(own, style_labels(wholes), wholes.__getitem__)
    for profile, found in anchors.items():
        values = {x.name: style_similarity(x.continuation, x.reference, profile) for x in pairs}
        others = dict(zip(names, found["chance"], strict=True))
        lines.append(Line(STYLE_NAMES[f"style, {profile}"], values, CHANCE, others))
    return done, lines


def _describe(score: Score, pair: Pair) -> dict[str, float]:
    """Return the measures of `MEASURES` of a pair's continuation, or the original's own."""
    found = describe(score, pair)
    if not any(track.is_drum for track in score.tracks):
        with suppress(UserError):  # it is not in four voices
            found |= part_writing(score)
    return {words: found.get(name, np.nan) for name, words in MEASURES.items()}
