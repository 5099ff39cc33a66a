"""The figures of a run, piece by piece: its losses, and its continuations of held-out pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from musicgen import load
from musicgen.console import log, warn, warn_of_first
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.descriptors import bars_with_prompt
from musicgen.evaluation.generated_files import KNOWN, STYLE_NAMES, file_names, write_manifest
from musicgen.evaluation.originality import MAX_HELD_OUT, KnownPassages, known_passages
from musicgen.evaluation.position_loss import Losses, in_units, piece_losses, trigram_losses
from musicgen.evaluation.prompt_files import SPLITS
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, Pair
from musicgen.evaluation.style import anchor_similarities, style_labels
from musicgen.evaluation.training_data import piece_readers
from musicgen.evaluation.verdict import (
    BEFORE,
    CHANCE,
    DENSE,
    HELD_OUT,
    KEY_SHARE,
    NATS,
    ORIGINALS,
    RECALLED,
    RECITED,
    TRAINING,
    TRIGRAM,
)
from musicgen.files import write_bytes
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.metrics.bars import bar_similarities, bars_recalled
from musicgen.metrics.differences import Values
from musicgen.metrics.key import in_key_share
from musicgen.metrics.originality import PassageIndex, passage_notes
from musicgen.metrics.part_writing import part_writing
from musicgen.metrics.position_loss import unit_values
from musicgen.metrics.scape import structureness
from musicgen.metrics.style import style_similarity
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score
from musicgen.report import ReportPiece
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT

PROMPT_BARS = 4
FEW_HELD_OUT = 12  # pieces; of fewer, validation pieces are used beside test pieces
FEW = 6  # pieces, with fewer of which no permutation test can reach p < .05
TOKENS = 4  # in a continuation's bars, at most so many times as in those of the longest prompt
KEPT = 0.95  # share of the notes that a tokenizer must represent
_VOICES = ("out_of_range", "crossed", "parallel_fifths", "parallel_octaves", "melody_fit")


class Line(NamedTuple):
    """A measure of a run by piece, and what it stands beside."""

    measure: str
    values: Values
    beside: str
    others: Values


class RunFigures(NamedTuple):
    """The figures of a run.

    Attributes:
        pieces: its continuations as a page shows them.
        curves: losses by name, for a plot by position.
        notices: what was measured, and what a reader must know.
    """

    lines: Sequence[Line]
    pieces: Sequence[ReportPiece]
    curves: Mapping[str, Losses]
    notices: Sequence[str]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        num_prompts: held-out pieces that are continued.
        bars: that are added to each.
        num_pieces: held-out pieces, and training pieces, of which the loss is computed.
        length: the furthest position of these losses.
        trained: the position up to which they are those of the trained length.
    """

    num_prompts: int
    bars: int
    num_pieces: int
    length: int
    trained: int


def held_out(data: EncodedCorpus, split: str) -> tuple[str, list[int]]:
    """Return the name of a split and its pieces; of few, those of both that are held out.

    It is `train` if there are no others.
    """
    if len(pieces := data.cache.pieces(split)) >= FEW_HELD_OUT:
        return split, pieces
    if pieces := sorted(data.cache.pieces("val") + data.cache.pieces("test")):
        return "validation and test", pieces
    return "train", data.cache.pieces("train")


def run_figures(
    model: MusicModel,
    data: EncodedCorpus,
    split: str,
    pieces: Sequence[int],
    sizes: Sizes,
    seed: int,
    out: Path,
) -> RunFigures:
    """Measure a run; write its continuations to the folder `out`.

    Args:
        split, pieces: as of `held_out`; pieces of several runs may be those that all have.
    """
    notices: list[str] = []
    # The same music again, as in a folder with copies of one piece, tells nothing.
    pieces = list({data.cache[i].tobytes(): i for i in reversed(pieces)}.values())[::-1]
    start = _start(model, notices)
    prompts, others, seen = _prompts(model, data, pieces, sizes.num_prompts)
    densest = max(len(prompt.tokens) for prompt in prompts) / PROMPT_BARS
    most = round(TOKENS * densest * sizes.bars)  # a model that has learned little ends no bar
    request = model.request(bars=sizes.bars, max_new_tokens=most, seed=seed)
    done = _continue(model, [*prompts, *seen], request)
    done, after_training = done[: len(prompts)], done[len(prompts) :]
    known = known_passages(data, {c.prompt.name: c.new_score for c in done}, MAX_HELD_OUT)
    shown = _write(model, done, request, split, out, known)
    lines, curves = _loss_lines(model, start, data, split, pieces, sizes, seed)
    wholes = {prompt.name: prompt.piece for prompt in (*prompts, *others, *seen)}
    music = list(_music_lines(done, wholes))
    lines += [*music, Line(RECITED, _recited(after_training), HELD_OUT, _recited(done))]
    lengths, unheard = (
        {name: float(passage.num_notes) for name, passage in passages.items()}
        for passages in (known.passages, known.held_out)
    )
    lines.append(Line(KNOWN, lengths, HELD_OUT, unheard))
    if start is not None:
        before = _continue(start, prompts, request)
        _write(start, before, request, split, out.with_name("before"), None)
        new = {line.measure: line.values for line in music}
        old = {line.measure: line.values for line in _music_lines(before, wholes)}
        lines += [Line(name, new[name], BEFORE, old[name]) for name in new if name in old]
    lines = [x for x in lines if x.others and not np.isnan([*x.values.values()]).all()]
    kept, read = np.array([(x.summary.notes_kept, x.summary.notes_read) for x in prompts]).sum(0)
    if kept < KEPT * read:
        cure = "take another tokenizer= or task=, see docs/tokenizers.md"
        notices.append(f"The tokenizer keeps {kept / read:.0%} of the notes: {cure}.")
    if split == "train":
        notices.append("Too few pieces differ to hold any out: it cannot be told what was learned.")
    elif len(pieces) < FEW:
        notices.append(f"{pluralize(len(pieces), 'held-out pieces')} tell little.")
    notices.append(
        f"Losses are of {min(len(pieces), sizes.num_pieces)} of "
        f"{pluralize(len(pieces), f'{split} pieces')}; continuations of {len(done)} prompts of "
        f"{PROMPT_BARS} bars, {request.bars} bars and one each, none chosen among several."
    )
    return RunFigures(lines, shown, curves, notices)


def _start(model: MusicModel, notices: list[str]) -> MusicModel | None:
    """Return the model that a run began with, if it is here and has the same vocabulary."""
    if (init := model.content.config.get("init")) is None:
        return None
    try:
        start = load(init)
    except UserError as error:
        notices.append(f"Nothing is compared with the weights that the run began with: {error}")
        return None
    if start.content.vocabulary_hash != model.content.vocabulary_hash:
        notices.append(f"{init}, with which the run began, has another vocabulary.")
        return None
    return start.to(next(model.model.parameters()).device.type)


def _loss_lines(
    model: MusicModel,
    start: MusicModel | None,
    data: EncodedCorpus,
    split: str,
    pieces: Sequence[int],
    sizes: Sizes,
    seed: int,
) -> tuple[list[Line], dict[str, Losses]]:
    """Return the losses of held-out pieces beside others, and the losses for the curves."""
    length = sizes.length
    held, training = (
        evenly_spaced(some, sizes.num_pieces) for some in (pieces, data.cache.pieces("train"))
    )
    own = piece_losses(model, data, held, length, seed, "held-out pieces")
    trigram = trigram_losses(data, held, length)
    curves = {"model": own, TRIGRAM: trigram}
    if split == "train":
        return [], curves

    def a_note(losses: Losses, indices: Sequence[int]) -> Values:
        values = unit_values(*in_units(losses, data, indices, length, "note"))[:, 0, 0]
        return {data.cache.names[i]: float(x) for i, x in zip(indices, values, strict=True)}

    def a_token(losses: Losses, first: int, last: int) -> Values:
        parts = (mean_of_valid(x[0, first:last]) for x in losses)
        return {data.cache.names[i]: x for i, x in zip(held, parts, strict=True)}

    seen = piece_losses(model, data, training, length, seed, "training pieces")
    values = a_note(own, held)
    lines = [
        Line(NATS, values, TRIGRAM, a_note(trigram, held)),
        Line(NATS, values, TRAINING, a_note(seen, training)),
    ]
    if start is not None:
        before = piece_losses(start, data, held, length, seed, "the weights before")
        lines.append(Line(NATS, values, BEFORE, a_note(before, held)))
    for name, part in (
        ("nats a token, trained length", (0, sizes.trained)),
        ("nats a token, beyond it", (sizes.trained, length)),
    ):
        lines.append(Line(name, a_token(own, *part), TRIGRAM, a_token(trigram, *part)))
    return lines, curves


def _prompts(
    model: MusicModel, data: EncodedCorpus, pieces: Sequence[int], count: int
) -> tuple[list[Prompt], list[Prompt], list[Prompt]]:
    """Return the beginnings of pieces, of other held-out pieces, and of training pieces.

    Raises:
        UserError: no piece is longer than a prompt, or no prompt short enough for the model.
    """
    names = data.cache.names
    longest = model.model.position.max_length
    chosen = evenly_spaced(pieces, count)
    others = [i for i, x in enumerate(data.cache.splits) if x != "train" and i not in chosen]
    seen = [i for i in data.cache.pieces("train") if i not in chosen]
    found: list[list[Prompt]] = []
    errors: list[str] = []
    for some in (chosen, evenly_spaced(others, count), evenly_spaced(seen, count)):
        found.append([])
        for name, read in piece_readers(data, [names[i] for i in some]).items():
            try:
                prompt = model.prompt(read(), name, PROMPT_BARS)
            except UserError as error:
                errors.append(f"left out: {error}")
                continue
            fits = longest is None or len(prompt.tokens) < longest
            if fits and prompt.piece.end > prompt.end_tick:
                found[-1].append(prompt)
    warn_of_first(errors, NUM_SKIPPED_SHOWN)
    if not found[0]:
        raise UserError(f"no held-out piece has more than {PROMPT_BARS} bars to continue")
    return found[0], found[1], found[2]


def _continue(
    model: MusicModel, prompts: Sequence[Prompt], request: GenerationRequest
) -> list[Continuation]:
    log(f"continuing {pluralize(len(prompts), 'pieces')} with {model.path}")
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = {c.prompt.name: c for c in sampler.continuations(list(prompts))}
    return [done[prompt.name] for prompt in prompts]


def _write(
    model: MusicModel,
    done: Sequence[Continuation],
    request: GenerationRequest,
    split: str,
    out: Path,
    known: KnownPassages | None,
) -> list[ReportPiece]:
    """Write continuations as generate.py does; return them as the page shows them."""
    names = file_names([c.prompt for c in done], 1)
    files = {names[id(c.prompt), c.sample]: (c, c.midi_file()) for c in done}
    for file, (_, (data, _, _)) in files.items():
        write_bytes(out / file, data)
    settings: dict[str, Any] = {"checkpoint": str(model.path), "bars": request.bars}
    settings |= {"seed": request.seed, **asdict(request.sampling)}
    references = split if split in SPLITS else None
    provenance = {"tokenizer": model.content.tokenizer, "references": references}
    if known is not None:
        by_file = {file: known.passages[c.prompt.name] for file, (c, _) in files.items()}
        known = known._replace(passages=by_file)
    shown = write_manifest(out, files, settings, provenance, [], known)
    return [replace(x, midi_file=f"{out.name}/{x.midi_file}", metadata={}) for x in shown]


def _music_lines(done: Sequence[Continuation], wholes: Mapping[str, Score]) -> Iterator[Line]:
    """Yield what continuations are like, beside the music that follows their prompts.

    Args:
        wholes: the prompts' pieces and others by name, which may be unrelated ones.
    """
    pairs = {c.prompt.name: _pair(c) for c in done}
    own = {name: pair.own_continuation() for name, pair in pairs.items()}
    new = {name: _describe(pair, pair.continuation) for name, pair in pairs.items()}
    old = {name: _describe(pair, own[name]) for name, pair in pairs.items()}
    for measure in dict.fromkeys(key for found in new.values() for key in found):
        values, others = (
            {name: found.get(measure, np.nan) for name, found in rows.items()}
            for rows in (new, old)
        )
        yield Line(measure, values, ORIGINALS, others)
    anchors = anchor_similarities(own.items(), style_labels(wholes), wholes.__getitem__)
    for profile, found in anchors.items():
        values = {
            name: style_similarity(pair.continuation, pair.reference, profile)
            for name, pair in pairs.items()
        }
        others = dict(zip(pairs, found["chance"], strict=True))
        yield Line(STYLE_NAMES[f"style, {profile}"], values, CHANCE, others)


def _recited(done: Sequence[Continuation]) -> Values:
    """Return the notes of the longest passage that a continuation shares with its prompt's piece.

    What a piece repeats of its beginning is in it whether the model knows it or not: those of
    training pieces are longer only if it does.
    """
    found = {}
    for each in done:
        index = PassageIndex({each.prompt.name: passage_notes(each.prompt.piece)})
        passage = index.longest_passage(passage_notes(each.new_score))
        found[each.prompt.name] = float(passage.num_notes) if passage else 0.0
    return found


def _pair(continuation: Continuation) -> Pair:
    prompt = continuation.prompt
    beats = prompt.end_tick / TICKS_PER_BEAT
    return Pair(prompt.name, prompt.name, continuation.new_score, prompt.piece, beats)


def _describe(pair: Pair, score: Score) -> dict[str, float]:
    """Return measures of a continuation of a pair's prompt, without those that it has not."""
    events, first = bars_with_prompt(pair, score)
    num_bars = len(score.bar_starts())
    found = {
        KEY_SHARE: in_key_share(score, pair.key()),
        DENSE: score.num_notes / max(1, num_bars),
        RECALLED: bars_recalled(bar_similarities(events[:, :3]), first),
    }
    structure = structureness(events, first + num_bars)
    found |= {f"structureness, {name} segments": value for name, value in structure.items()}
    if any(track.is_drum for track in score.tracks):
        return found
    try:
        voices = part_writing(score)
    except UserError:  # it is not in four voices
        return found
    return found | {name.replace("_", " "): voices[name] for name in _VOICES}
