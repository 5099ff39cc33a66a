"""Evaluation of a run, or of several: losses, continuations and a verdict, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
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
from musicgen.evaluation.originality import MAX_HELD_OUT, KnownPassages, known_passages
from musicgen.evaluation.position_loss import (
    Losses,
    furthest,
    in_units,
    piece_losses,
    plot_loss_curves,
    trigram_losses,
)
from musicgen.evaluation.prompt_files import SPLITS
from musicgen.evaluation.references import NUM_SKIPPED_SHOWN, Pair
from musicgen.evaluation.runs import SAME_PIECES, load_runs, name_runs
from musicgen.evaluation.style import anchor_similarities, style_labels
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
from musicgen.metrics.position_loss import loss_curve, unit_values
from musicgen.metrics.style import style_similarity
from musicgen.metrics.summary import CONFIDENCE, Summary, mean_of_valid
from musicgen.midi import Score
from musicgen.report import ReportPiece, render_report, verdict_section
from musicgen.report.tables import TableRow, readable, write_csv
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT
from musicgen.validation import check_int

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


@dataclass
class Run:
    """A run, and what was measured of it.

    Attributes:
        split: the name of that of the pieces, see `_held_out_pieces`.
        names: of the pieces; those of several runs may be the ones that all have.
        losses, trigram_losses: of the model, and of a trigram model, on held-out pieces.
        shown: its continuations as a page shows them.
        notices: what was measured, and what a reader must know.
    """

    model: MusicModel
    data: EncodedCorpus
    split: str
    names: Sequence[str]
    seed: int
    lines: list[Line] = field(default_factory=list)
    losses: Losses = field(default_factory=list)
    trigram_losses: Losses = field(default_factory=list)
    shown: Sequence[ReportPiece] = ()
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The same music again, as in a folder with copies of one piece, tells nothing.
        cache = self.data.cache
        indices = [cache.names.index(name) for name in self.names]
        self.pieces = list({cache[i].tobytes(): i for i in reversed(indices)}.values())[::-1]
        self.start = self._start()
        if self.split == "train":
            self.notices.append(
                "Too few pieces differ to hold any out: it cannot be told what was learned."
            )

    def _start(self) -> MusicModel | None:
        """Return the model that the run began with, if it is here and has the same vocabulary."""
        if (init := self.model.content.config.get("init")) is None:
            return None
        try:
            start = load(init)
            if start.content.vocabulary_hash != self.model.content.vocabulary_hash:
                raise UserError(f"{init} has another vocabulary")
        except UserError as error:
            self.notices.append(f"Nothing is compared with the weights before: {error}.")
            return None
        return start.to(next(self.model.model.parameters()).device.type)

    def measure_losses(self, num_pieces: int, length: int, trained: int) -> None:
        """Measure the loss on held-out pieces, and on as many training pieces.

        Args:
            length: the furthest position.
            trained: the position up to which losses are those of the trained length.
        """
        data, names = self.data, self.data.cache.names
        held = evenly_spaced(self.pieces, num_pieces)
        self.losses = piece_losses(self.model, data, held, length, self.seed, "held-out pieces")
        self.trigram_losses = trigram_losses(data, held, length)
        self.notices.append(
            f"Losses are of {len(held)} of {pluralize(len(self.pieces), f'{self.split} pieces')}."
        )
        if self.split == "train":
            return

        def a_note(losses: Losses, indices: Sequence[int]) -> Values:
            values = unit_values(*in_units(losses, data, indices, length, "note"))[:, 0, 0]
            return {names[i]: float(x) for i, x in zip(indices, values, strict=True)}

        training = evenly_spaced(data.cache.pieces("train"), num_pieces)
        seen = piece_losses(self.model, data, training, length, self.seed, "training pieces")
        others = {
            TRIGRAM: a_note(self.trigram_losses, held),
            TRAINING: a_note(seen, training),
        }
        if self.start is not None:
            before = piece_losses(self.start, data, held, length, self.seed, "weights before")
            others[BEFORE] = a_note(before, held)
        own = a_note(self.losses, held)
        self.lines += [Line(NATS, own, beside, values) for beside, values in others.items()]
        for name, part in (
            ("nats a token, trained length", slice(trained)),
            ("nats a token, beyond it", slice(trained, length)),
        ):
            values, trigram = (
                {names[i]: mean_of_valid(x[0, part]) for i, x in zip(held, losses, strict=True)}
                for losses in (self.losses, self.trigram_losses)
            )
            self.lines.append(Line(name, values, TRIGRAM, trigram))

    def measure_music(self, num_prompts: int, bars: int, out: Path) -> None:
        """Continue held-out pieces, and write the continuations to the folder `out`."""
        prompts = self._prompts(num_prompts)
        densest = max(len(prompt.tokens) for prompt in prompts) / PROMPT_BARS
        most = round(TOKENS * densest * bars)  # a model that has learned little ends no bar
        request = self.model.request(bars=bars, max_new_tokens=most, seed=self.seed)
        done = _continue(self.model, prompts, request)
        lines = _music_lines(done)
        if self.start is not None:
            old = {
                x.measure: x.values for x in _music_lines(_continue(self.start, prompts, request))
            }
            lines += [
                x._replace(beside=BEFORE, others=old[x.measure]) for x in lines if x.measure in old
            ]
        known = self._write(done, request, out)
        lengths, unheard = (
            {name: float(passage.num_notes) for name, passage in passages.items()}
            for passages in (known.passages, known.held_out)
        )
        lines.append(Line(KNOWN, lengths, HELD_OUT, unheard))
        self.lines += [x for x in lines if x.others and not np.isnan([*x.values.values()]).all()]
        self.notices.append(
            f"Continuations are of {len(done)} prompts of {PROMPT_BARS} bars, {bars} bars and one "
            "each, none chosen among several."
        )

    def _prompts(self, count: int) -> list[Prompt]:
        """Return the beginnings of some pieces.

        Raises:
            UserError: no piece is longer than a prompt, or no prompt short enough for the model.
        """
        longest = self.model.model.position.max_length
        names = [self.data.cache.names[i] for i in evenly_spaced(self.pieces, count)]
        prompts, errors = [], []
        for name, read in piece_readers(self.data, names).items():
            try:
                prompt = self.model.prompt(read(), name, PROMPT_BARS)
            except UserError as error:
                errors.append(f"left out: {error}")
                continue
            fits = longest is None or len(prompt.tokens) < longest
            if fits and prompt.piece.end > prompt.end_tick:
                prompts.append(prompt)
        warn_of_first(errors, NUM_SKIPPED_SHOWN)
        if not prompts:
            raise UserError(f"no held-out piece has more than {PROMPT_BARS} bars to continue")
        return prompts

    def _write(
        self, done: Sequence[Continuation], request: GenerationRequest, out: Path
    ) -> KnownPassages:
        """Write continuations as generate.py does; return what is known of them, by file."""
        names = file_names([c.prompt for c in done], 1)
        files = {names[id(c.prompt), c.sample]: (c, c.midi_file()) for c in done}
        for file, (_, (data, _, _)) in files.items():
            write_bytes(out / file, data)
        music = {file: c.new_score for file, (c, _) in files.items()}
        known = known_passages(self.data, music, MAX_HELD_OUT)
        settings = {"checkpoint": str(self.model.path), "bars": request.bars, "seed": request.seed}
        settings |= asdict(request.sampling)
        references = self.split if self.split in SPLITS else None
        provenance = {"tokenizer": self.model.content.tokenizer, "references": references}
        shown = write_manifest(out, files, settings, provenance, [], known)
        self.shown = [replace(x, midi_file=f"{out.name}/{x.midi_file}", metadata={}) for x in shown]
        return known


def evaluation(
    inputs: Inputs, out: Path, *, num_prompts: int, bars: int, num_pieces: int
) -> list[TableRow]:
    """Judge what a run has learned, and its continuations of held-out pieces.

    Writes `index.html`, with the verdict and the continuations, `position_loss.png` and the
    continuations as generate.py does. Of several runs, it measures the same pieces, and returns
    the differences with the p values that chance explains them; `evaluation_runs.csv` has the
    figures of each run.

    Args:
        num_prompts: held-out pieces that are continued.
        bars: that are added to each.
        num_pieces: held-out pieces, and training pieces, of which the loss is computed.
    """
    for name, value in (("num_prompts", num_prompts), ("bars", bars), ("num_pieces", num_pieces)):
        check_int(name, value)
    models = load_runs(inputs, same_tokens=False)
    names = [name for _, name in name_runs(models)]
    data = [open_training_data(model, inputs.root) for model in models]
    split, pieces = _held_out_pieces(data, inputs.split, names)
    # The same tokens of all runs, whatever the lengths that they were trained at.
    length = min(furthest(model, MAX_FACTOR) for model in models)
    trained = min(model.training_length for model in models)
    num_pieces = inputs.max_pieces or num_pieces
    runs: dict[str, Run] = {}
    for number, (name, model, corpus) in enumerate(zip(names, models, data, strict=True), start=1):
        folder = out / ("continuations" if len(models) == 1 else f"continuations_{number}")
        runs[name] = Run(model, corpus, split, pieces, inputs.seed)
        runs[name].measure_losses(num_pieces, length, trained)
        runs[name].measure_music(num_prompts, bars, folder)
    rows = [
        {"run": name, **_row(line, inputs.seed)} for name, run in runs.items() for line in run.lines
    ]
    if len(runs) == 1:
        title, judgements = f"Verdict on {models[0].path}", judge(rows)
    else:
        title = f"Comparison of {', '.join(names)}"
        write_csv(rows, out / "evaluation_runs.csv")
        rows = _differences(runs, inputs.seed)
        judgements = judge_differences(rows, 1 - CONFIDENCE)
    losses = {name: run.losses for name, run in runs.items()}
    losses[TRIGRAM] = runs[names[0]].trigram_losses
    plot, length = out / "position_loss.png", models[0].training_length
    curves = [
        {"run": name, "R": None, **loss_curve(each, max(1, length // 16))}
        for name, each in losses.items()
    ]
    plot_loss_curves(curves, plot, training_length=length)
    notices = [*dict.fromkeys(notice for run in runs.values() for notice in run.notices)]
    shown = [
        replace(piece, title=f"{piece.title} ({name})") if len(runs) > 1 else piece
        for name, run in runs.items()
        for piece in run.shown
    ]
    if len(runs) > 1:
        shown = sorted(shown, key=lambda piece: piece.title)[:MAX_SHOWN]
    summary = verdict_section(judgements, readable(rows), plot.read_bytes(), notices)
    write_text(out / PAGE, render_report(title=title, pieces=shown, metadata={}, summary=summary))
    for notice in notices:
        log(notice)
    for question, answer, figures, advice in judgements:
        log(f"{question} {answer}: {figures}" + (f". {advice}." if advice else ""))
    log(f"open {out / PAGE}")
    return rows


def _held_out_pieces(
    data: Sequence[EncodedCorpus], split: str, names: Sequence[str]
) -> tuple[str, list[str]]:
    """Return the held-out pieces that all runs have, by name, and the name of their split.

    If a split has few, they are those of both that are held out; if these have none, `train`.

    Raises:
        UserError: the runs have no held-out piece in common.
    """
    found, pieces = set(), []
    for cache in (corpus.cache for corpus in data):
        both = sorted(cache.pieces("val") + cache.pieces("test"))
        indices, name = both, "validation and test"
        if len(own := cache.pieces(split)) >= FEW_HELD_OUT:
            indices, name = own, split
        elif not both:
            indices, name = cache.pieces("train"), "train"
        found.add(name)
        pieces.append([cache.names[i] for i in indices])
    common = [name for name in pieces[0] if all(name in others for others in pieces)]
    if not common or len(found) > 1:
        raise UserError(f"{' and '.join(names)} have other splits; {SAME_PIECES}")
    return found.pop(), common


def _row(line: Line, seed: int) -> TableRow:
    """Return the means of a measure and of what it stands beside, and their difference."""
    compare = unpaired_difference
    if line.values.keys() == line.others.keys():  # the same pieces
        compare = paired_difference
    row: TableRow = {"measure": line.measure}
    for prefix, values in (("", line.values), ("beside_", line.others)):
        found = Summary.of(values.values(), seed=seed)
        row |= {f"{prefix}{name}": getattr(found, name) for name in ("n", "mean", "low", "high")}
        row.setdefault("beside", line.beside)
    _, mean, low, high, _ = compare(line.values, line.others, seed=seed)
    return row | {"difference": mean, "difference_low": low, "difference_high": high}


def _differences(runs: Mapping[str, Run], seed: int) -> list[TableRow]:
    """Return a row for each measure and pair of runs: the second less the first."""
    values = {run: {x.measure: x.values for x in each.lines} for run, each in runs.items()}
    rows: list[TableRow] = []
    for first, second in combinations(values, 2):
        for measure in (name for name in values[first] if name in values[second]):
            old, new = values[first][measure], values[second][measure]
            n, mean, low, high, p = paired_difference(new, old, seed=seed)
            names = {"measure": measure, "first": first, "second": second, "n": n}
            means = (mean_of_valid(np.array([*found.values()])) for found in (old, new))
            names |= zip(("first_mean", "second_mean"), means, strict=True)
            rows.append({**names, "difference": mean, "low": low, "high": high, "p": p})
    corrected = holm([row["p"] for row in rows])
    return [{**row, "p": p} for row, p in zip(rows, corrected, strict=True)]


def _continue(
    model: MusicModel, prompts: Sequence[Prompt], request: GenerationRequest
) -> list[Continuation]:
    log(f"continuing {pluralize(len(prompts), 'pieces')} with {model.path}")
    sampler = Sampler(model.model, model.tokenizer, request, warn=warn)
    done = {c.prompt.name: c for c in sampler.continuations(list(prompts))}
    return [done[prompt.name] for prompt in prompts]


def _music_lines(done: Sequence[Continuation]) -> list[Line]:
    """Return what continuations are like, beside the music that follows their prompts."""
    pairs = {
        p.name: Pair(p.name, p.name, each.new_score, p.piece, p.end_tick / TICKS_PER_BEAT)
        for each, p in ((each, each.prompt) for each in done)
    }
    own = {name: pair.own_continuation() for name, pair in pairs.items()}
    new = {name: _describe(pair.continuation, pair) for name, pair in pairs.items()}
    old = {name: _describe(own[name], pair) for name, pair in pairs.items()}
    lines = []
    for measure in dict.fromkeys(key for found in new.values() for key in found):
        values, others = (
            {name: found.get(measure, np.nan) for name, found in rows.items()}
            for rows in (new, old)
        )
        lines.append(Line(measure, values, ORIGINALS, others))
    wholes = {name: pair.reference for name, pair in pairs.items()}
    anchors = anchor_similarities(own.items(), style_labels(wholes), wholes.__getitem__)
    for profile, found in anchors.items():
        values = {
            name: style_similarity(pair.continuation, pair.reference, profile)
            for name, pair in pairs.items()
        }
        others = dict(zip(pairs, found["chance"], strict=True))
        lines.append(Line(STYLE_NAMES[f"style, {profile}"], values, CHANCE, others))
    return lines


def _describe(score: Score, pair: Pair) -> dict[str, float]:
    """Return the measures of `MEASURES` that a pair's continuation, or the original's own, has."""
    found = describe(score, pair)
    if not any(track.is_drum for track in score.tracks):
        with suppress(UserError):  # it is not in four voices
            found |= part_writing(score)
    return {words: found[name] for name, words in MEASURES.items() if name in found}
