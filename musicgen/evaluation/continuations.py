"""Continuations of held-out pieces in the measure `evaluation`, compared with the originals."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from musicgen.console import log, warn, warn_of_first
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import UserError
from musicgen.evaluation.comparison import Comparison
from musicgen.evaluation.descriptors import describe
from musicgen.evaluation.generated_files import file_names, write_manifest
from musicgen.evaluation.names import (
    DESCRIPTORS,
    HELD_OUT_PIECES,
    ORIGINALS,
    TRAINING_MATCH,
    UNRELATED_PIECES,
)
from musicgen.evaluation.originality import MAX_HELD_OUT, training_matches
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, SPLITS, Pair
from musicgen.evaluation.training_data import piece_readers
from musicgen.files import write_bytes
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import PROMPT_BARS, Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.metrics.part_writing import part_writing
from musicgen.metrics.style import (
    SIMILARITIES,
    UNRELATED,
    anchor_similarities,
    style_labels,
    style_similarity,
)
from musicgen.midi import TICKS_PER_BEAT, Score, without_suffix
from musicgen.report import ReportPiece
from musicgen.text import pluralize

MAX_TOKENS = 4
"""Limit on new tokens per bar, as a multiple of the tokens per bar of the longest prompt.

It is needed as a model that has learned little may not end its bars.
"""


class ContinuationTask(NamedTuple):
    """The prompts of an evaluation, and the request with which they are continued."""

    prompts: Sequence[Prompt]
    request: GenerationRequest
    split: str  # split of the prompts


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
        if len(prompt.tokens) < longest and prompt.piece.end > prompt.end.tick:
            prompts.append(prompt)
    warn_of_first(errors, NUM_SKIPPED_SHOWN)
    if not prompts:
        raise UserError(f"no held-out piece has more than {PROMPT_BARS} bars to continue")
    return prompts


def continuation_request(
    model: MusicModel, prompts: Sequence[Prompt], bars: int, seed: int
) -> GenerationRequest:
    """Return a request for one continuation of each prompt, with this number of bars."""
    tokens_per_bar = max(len(prompt.tokens) for prompt in prompts) / PROMPT_BARS
    max_new_tokens = round(MAX_TOKENS * tokens_per_bar * bars)
    return model.request(bars=bars, max_new_tokens=max_new_tokens, seed=seed)


def continue_prompts(
    model: MusicModel, prompts: Sequence[Prompt], request: GenerationRequest
) -> list[Continuation]:
    """Return one continuation of each prompt, in the order of the prompts."""
    log(f"continuing {pluralize(len(prompts), 'pieces')} with {model.path}")
    names = [prompt.name for prompt in prompts]
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = sampler.continuations([*prompts])
    return sorted(done, key=lambda continuation: names.index(continuation.prompt.name))


def compare_continuations(continuations: Sequence[Continuation]) -> list[Comparison]:
    """Return comparisons of continuations with the originals, by descriptors and style.

    Descriptors are compared with the music that follows the prompt in the original. The style is
    compared with the whole original; its baseline is the similarity of unrelated pieces.
    """
    pairs = []
    for continuation in continuations:
        prompt, music = continuation.prompt, continuation.new_on_grid
        beats = prompt.end.tick / TICKS_PER_BEAT
        pairs.append(Pair(prompt.name, prompt.name, music, prompt.piece, beats))
    generated, originals = {}, {}
    for pair in pairs:
        generated[pair.name] = _named_descriptors(pair.continuation, pair)
        originals[pair.name] = _named_descriptors(pair.original_continuation(), pair)
    comparisons = []
    for measure in DESCRIPTORS.values():
        values = {piece: measures[measure] for piece, measures in generated.items()}
        original_values = {piece: measures[measure] for piece, measures in originals.items()}
        comparisons.append(Comparison(measure, values, ORIGINALS, original_values))
    return comparisons + _compare_styles(pairs)


def _compare_styles(pairs: Sequence[Pair]) -> list[Comparison]:
    """Return comparisons of the style similarity to the originals with unrelated pieces."""
    pieces = {pair.name: pair.reference for pair in pairs}
    parts = [(pair.name, pair.original_continuation()) for pair in pairs]
    anchors = anchor_similarities(parts, style_labels(pieces), pieces.__getitem__)
    comparisons = []
    for profile, by_anchor in anchors.items():
        values = {
            pair.name: style_similarity(pair.continuation, pair.reference, profile)
            for pair in pairs
        }
        unrelated = dict(zip(pieces, by_anchor[UNRELATED], strict=True))
        measure = SIMILARITIES[profile]
        comparisons.append(Comparison(measure, values, UNRELATED_PIECES, unrelated))
    return comparisons


def _named_descriptors(score: Score, pair: Pair) -> Mapping[str, float]:
    """Return the measures in `DESCRIPTORS`, by name.

    Args:
        score: the continuation of the pair, or the original's.
    """
    values = describe(score, pair)
    if not any(track.is_drum for track in score.tracks):
        with suppress(UserError):  # it is not in four voices
            values |= part_writing(score)
    return {name: values.get(key, np.nan) for key, name in DESCRIPTORS.items()}


def write_continuations(
    model: MusicModel,
    data: EncodedCorpus,
    continuations: Sequence[Continuation],
    task: ContinuationTask,
    folder: Path,
) -> tuple[Comparison, list[ReportPiece]]:
    """Write the files of continuations, as generate.py does.

    Returns:
        The comparison of their longest matches with the training set to those of held-out pieces,
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
    matches = training_matches(data, scores, MAX_HELD_OUT)
    settings = {"checkpoint": str(model.path), **asdict(task.request)}
    references = task.split if task.split in SPLITS else None
    provenance = {"tokenizer": model.content.tokenizer, "references": references}
    shown = [
        replace(piece, midi_file=f"{folder.name}/{piece.midi_file}", metadata={})
        for piece in write_manifest(folder, files, settings, provenance, [], matches)
    ]
    lengths = {name: float(match.num_notes) for name, match in matches.generated.items()}
    held_out = {name: float(match.num_notes) for name, match in matches.held_out.items()}
    return Comparison(TRAINING_MATCH, lengths, HELD_OUT_PIECES, held_out), shown


def baseline_continuations(
    model: MusicModel, data: EncodedCorpus, task: ContinuationTask, folder: Path
) -> list[ReportPiece]:
    """Write the continuations of a baseline model; return the pieces of the report."""
    pieces = [data.cache.names.index(prompt.name) for prompt in task.prompts]
    request = replace(task.request, sampling=model.sampling())
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = [*sampler.continuations(held_out_prompts(model, data, pieces))]
    _, shown = write_continuations(model, data, done, task._replace(request=request), folder)
    return shown


def original_pieces(task: ContinuationTask) -> list[ReportPiece]:
    """Return the originals as pieces of the report, as long as the continuations."""
    num_bars = PROMPT_BARS + (task.request.bars or 0)
    shown = []
    for prompt in task.prompts:
        starts = prompt.piece.bar_starts()
        end = int(starts[num_bars]) if len(starts) > num_bars else prompt.piece.end
        title = f"{without_suffix(prompt.name)}, the original"
        original = prompt.piece.clip(0, end)
        shown.append(ReportPiece(title, original, prompt.end.tick, None, {}))
    return shown
