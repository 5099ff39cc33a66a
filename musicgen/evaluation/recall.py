"""Recall: the loss of models on bars that return, and on planted copies; nothing is sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from musicgen.console import log, track
from musicgen.data.preparation import EncodedCorpus
from musicgen.errors import ParameterError
from musicgen.evaluation.measure import (
    RUN,
    SUMMARY,
    Inputs,
    Measure,
    Row,
    pivot,
    run_label,
    without_empty_columns,
)
from musicgen.evaluation.position_loss import position_losses
from musicgen.evaluation.runs import compared_models
from musicgen.evaluation.training_data import open_training_data
from musicgen.metrics.bars import bar_similarities, kinds_of_bars
from musicgen.metrics.key import find_key
from musicgen.metrics.position_loss import unit_summary
from musicgen.midi import pitched_notes
from musicgen.random import NoiseKey, RandomStream
from musicgen.report.figures import save_figure
from musicgen.text import pluralize
from musicgen.tokenization.base import IntArray, Rng, Tokenizer
from musicgen.tokenization.vocabulary import within
from musicgen.validation import check_int

OPENING = 4  # bars before the first planted one

Part = tuple[str, str]
"""What is measured, and whether in nats a token or a pitch."""
Parts = Mapping[Part, NDArray[np.bool_]]
"""Which targets belong to each part. [L] each"""
Probe = tuple[IntArray, Parts]
"""Tokens that a model reads [L + 1], and their targets' parts."""


@dataclass(frozen=True)
class Recall(Measure):
    """The loss on new bars, on bars that return, and on planted bars and their copies.

    Bars are alike from a Dice coefficient of .8 of their (onset, pitch) on; a new one is like no
    earlier bar. See `plant` for planted bars, which need tokens of bars and room in the piece.
    Runs that differ in their seeds alone are one row.

    Args:
        max_tokens: of each piece, from its beginning.
        lags: bars between a bar and its return, and between a planted bar and its copy.
    """

    max_tokens: int
    lags: Sequence[int]

    name = "recall"
    legend = (
        "new bars: like no earlier bar; return 8: like the bar 8 bars earlier; planted 8: a bar of "
        "random pitches of the key, inserted into the piece; copy 8: the same bar again, 8 bars "
        f"later; in recall.csv: {SUMMARY}"
    )

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens)
        if not isinstance(self.lags, Sequence):
            raise ParameterError("lags", self.lags, "expected a list of numbers of bars")
        for lag in self.lags:
            check_int("lags", lag)

    def compute(self, inputs: Inputs, out: Path) -> list[Row]:
        compared = compared_models(inputs, "trained")
        data = open_training_data(compared[0].model, inputs.root)
        limits = [each.model.model.position.max_length for each in compared]
        length = min([self.max_tokens, *filter(None, limits)])
        pieces = data.split(inputs.split)[: inputs.max_pieces]
        log(f"{pluralize(len(pieces), f'pieces of {inputs.split}')}, up to {length:,} tokens")
        if "Bar" not in data.tokenizer.families:
            log(f"no planted copies: {data.tokenizer.name} has no tokens of bars")
        probes = [(i, x) for i in pieces for x in self._probes(data, i, length, inputs.seed)]
        groups: dict[tuple[str, Any], list[list[NDArray[np.float64]]]] = {}
        for each in compared:
            losses = []
            for i, (tokens, _) in track(probes, each.name):
                positions = each.model.positions(tokens, data.cache.bar_lengths[i])
                noise = NoiseKey((inputs.seed, RandomStream.EVALUATION, i))
                model = each.model.model
                losses.append(position_losses(model, tokens, noise, positions=positions))
            groups.setdefault((each.run, each.realizations), []).append(losses)
        rows = []
        for (run, realizations), runs in groups.items():
            by_seed = [np.stack(of_probe) for of_probe in zip(*runs, strict=True)]
            summaries = _summaries([parts for _, (_, parts) in probes], by_seed, inputs.seed)
            rows += [{"run": run, "R": realizations, **row} for row in summaries]
        plot_recall(rows, out / "recall.png")
        return rows

    def tables(self, rows: list[Row]) -> dict[str, list[Row]]:
        tables = {}
        for unit in dict.fromkeys(row["unit"] for row in rows):
            chosen = [row for row in rows if row["unit"] == unit]
            table = pivot(chosen, RUN, "part", lambda row: row["mean"])
            tables[f"{self.name}, nats a {unit}"] = without_empty_columns(table)
        return tables

    def _probes(self, data: EncodedCorpus, index: int, length: int, seed: int) -> Iterator[Probe]:
        """Yield the beginning of a piece of `length` targets, and with planted bars."""
        piece, tokenizer = data.cache[index].astype(np.int64), data.tokenizer
        parts = piece_parts(piece, tokenizer, data.cache.bar_lengths[index], self.lags)
        yield piece[: length + 1], {part: flags[:length] for part, flags in parts.items()}
        for lag in self.lags if "Bar" in tokenizer.families else ():
            rng = np.random.default_rng((seed, index))
            if planted := plant(piece, tokenizer, lag, length + 1, rng):
                yield planted


def piece_parts(
    piece: IntArray, tokenizer: Tokenizer, bar_length: int, lags: Sequence[int]
) -> Parts:
    """Return the kinds of bars that the ids of a piece [L + 1] but the first belong to."""
    names = ("bar", "beat", "pitch")
    events = tokenizer.coordinates(piece, names, bar_length=bar_length)
    notes = events[np.isin(piece, [*tokenizer.pitch_tokens()])]
    bar = events[1:, 0]
    kinds = kinds_of_bars(bar_similarities(notes, int(bar.max(initial=0)) + 1), lags)
    parts = {"all": np.ones(len(bar), bool), **{name: kind[bar] for name, kind in kinds.items()}}
    return {(name, "token"): flags for name, flags in parts.items()}


def plant(piece: IntArray, tokenizer: Tokenizer, lag: int, length: int, rng: Rng) -> Probe | None:
    """Insert a random bar into a piece, and a copy of it `lag` bars later.

    It has the rhythm of a random bar of the piece, and pitches of the piece's key, drawn from its
    range. It stands behind at least `OPENING` bars.

    Args:
        piece: ids with `Bar` tokens.
        length: the most tokens up to the copy's end.

    Returns:
        The ids up to the copy's end, with the pitches of both bars as parts; None if the piece is
        too short, or has no key.
    """
    edges = np.append(np.flatnonzero(within(piece, tokenizer.families["Bar"])), len(piece))
    notes = pitched_notes(tokenizer.decode(piece))
    key = find_key(notes)
    if key is None:
        return None
    is_pitch = np.isin(piece, [*tokenizer.pitch_tokens()])
    source = int(np.searchsorted(edges, rng.choice(np.flatnonzero(is_pitch)), side="right"))
    score = tokenizer.decode(piece[edges[source - 1] : edges[source]])
    pitches = np.arange(notes["pitch"].min(), notes["pitch"].max() + 1)
    for part in score.tracks:
        part.notes["pitch"] = rng.choice(pitches[np.isin(pitches % 12, key.scale)], len(part.notes))
    score = replace(score, markers=[], tempos=score.tempos[:0])
    bar = tokenizer.until_end(tokenizer.encode(score))
    # Before bar n, and before bar n + lag − 1, which is then `lag` bars behind the first.
    room = np.flatnonzero(edges[lag - 1 : -1] + 2 * len(bar) <= length)
    room = room[room >= OPENING]
    if not len(room):
        return None
    n = int(rng.choice(room))
    before, between = piece[: edges[n]], piece[edges[n] : edges[n + lag - 1]]
    tokens = np.concatenate([before, bar, between, bar])
    is_pitch = np.isin(tokens, [*tokenizer.pitch_tokens()])[1:]
    at = np.arange(1, len(tokens))
    first = (at >= len(before)) & (at < len(before) + len(bar))
    parts = {f"planted {lag}": first, f"copy {lag}": at >= len(tokens) - len(bar)}
    return tokens, {(name, "pitch"): flags & is_pitch for name, flags in parts.items()}


def _summaries(
    probes: Sequence[Parts], losses: Sequence[NDArray[np.float64]], seed: int
) -> Iterator[Row]:
    """Yield a row for each part that has tokens, from the losses of each probe [seeds, 1, L]."""
    for part in dict.fromkeys(part for parts in probes for part in parts):
        found = [
            (nats[..., parts[part]], int(parts[part].sum()))
            for parts, nats in zip(probes, losses, strict=True)
            if part in parts and parts[part].any()
        ]
        if found:
            nats, counts = zip(*found, strict=True)
            summary = unit_summary(nats, counts, seed=seed)
            names = dict(zip(("part", "unit"), part, strict=True))
            yield {**names, "tokens": sum(counts), **asdict(summary)}


def plot_recall(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the losses of each run by part, with intervals: nats a token, and nats a pitch."""
    units = list(dict.fromkeys(row["unit"] for row in rows))
    figure = Figure(figsize=(5 * len(units), 4), layout="constrained")
    for axes, unit in zip(figure.subplots(1, len(units), squeeze=False)[0], units, strict=True):
        shown = [row for row in rows if row["unit"] == unit]
        parts = list(dict.fromkeys(row["part"] for row in shown))
        labels = list(dict.fromkeys(map(run_label, shown)))
        for number, label in enumerate(labels):
            of_run = [row for row in shown if run_label(row) == label]
            x = [
                parts.index(row["part"]) + (number + 1) / (len(labels) + 1) - 0.5 for row in of_run
            ]
            mean, low, high = (
                np.array([row[k] for row in of_run]) for k in ("mean", "low", "high")
            )
            axes.errorbar(x, mean, [mean - low, high - mean], fmt="o", capsize=3, label=label)
        axes.set_xticks(range(len(parts)), parts, rotation=30, ha="right")
        axes.set(ylabel=f"nats a {unit}")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize="small")
    save_figure(figure, path, dpi=150)
