"""Measure: python evaluate.py generated=DIR references=DIR, or checkpoint=latest."""

from __future__ import annotations

if __name__ == "__main__":
    import musicgen.startup  # noqa: F401, before what takes seconds to import

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.progress import track

from generate import MANIFEST
from musicgen import cli, load
from musicgen.counts import counted
from musicgen.errors import UserError
from musicgen.files import kept_if_filled
from musicgen.generation.model import MusicModel
from musicgen.metrics import (
    CONFIDENCE,
    InterpolatedTrigram,
    KernelDrawing,
    Summary,
    as_table,
    chunked_style_similarity,
    kernel_properties,
    length_summaries,
    loss_curve,
    plot_kernels,
    plot_loss_curves,
    property_rows,
    style_similarity,
    write_csv,
)
from musicgen.midi import Score, find_midi, read
from musicgen.training.evaluation import position_losses, usable_length
from musicgen.training.position_kernels import kernel_axes, position_kernels
from musicgen.values import number, whole

PROFILES = ("onset_duration", "time_pitch")
_SUMMARY = (
    f"n: pieces that count; low, high: {CONFIDENCE:.0%} confidence interval of the mean (bootstrap)"
)
LEGENDS = {
    "style": _SUMMARY,
    "position_loss": f"in nats a token; {_SUMMARY}",
    "position_properties": "at_zero: the kernel at lag 0; half_width: the lag at which it is half "
    "of that, inf where it never is; the others: musicgen/metrics/position_properties.py",
}


def main(cfg: DictConfig) -> None:
    """Compute each measure; print its table and write it as CSV, with its plot, below `out`."""
    measures = {
        "style": style,
        "position_loss": position_loss,
        "position_properties": position_properties,
    }
    wanted = cfg.metrics
    if wanted is None:
        wanted = "style" if cfg.generated else "position_loss"
    names = [wanted] if isinstance(wanted, str | int) else list(wanted)
    if not names:
        raise UserError(f"metrics=[]: give some of {', '.join(measures)}, or null")
    for name in names:
        if name not in measures:
            raise UserError(f"metrics={name}: no such measure; there are {', '.join(measures)}")
    number("max_factor", cfg.max_factor, at_least=1)
    whole("max_pieces", cfg.max_pieces, null="all")
    whole("seed", cfg.seed, at_least=0)
    out = cli.make_folder(cfg.out, "evaluated")
    with kept_if_filled(out):
        for name in names:
            rows = measures[name](cfg, out)
            write_csv(rows, out / f"{name}.csv")
            shown = overview(rows) if name == "position_properties" else rows
            cli.stdout.print(as_table(shown, title=name))
            cli.stdout.print(LEGENDS[name], highlight=False, soft_wrap=True)
    cli.say(f"in {out}")


def style(cfg: DictConfig, out: Path) -> list[dict[str, Any]]:
    """Style similarity of continuations and their references (Cífka et al. 2020).

    Prompts are cut off where generate.py's manifest says where they end. Also of each quarter of
    a continuation.
    """
    if cfg.generated is None or cfg.references is None:
        raise UserError("metrics=style takes generated=DIR and references=DIR")
    pairs = pair_files(Path(cfg.generated).expanduser(), Path(cfg.references).expanduser())
    rows = []
    for profile in PROFILES:
        whole = [style_similarity(new, reference, profile) for new, reference in pairs]
        quarters = np.array([chunked_style_similarity(n, r, profile) for n, r in pairs])
        rows.append({"measure": profile, **asdict(Summary.of(whole, seed=cfg.seed))})
        for i, column in enumerate(quarters.T):
            name = f"{profile}, quarter {i + 1}"
            rows.append({"measure": name, **asdict(Summary.of(column, seed=cfg.seed))})
    return rows


def pair_files(generated: Path, references: Path) -> list[tuple[Score, Score]]:
    """Each generated piece, without its prompt, and its reference.

    A reference is the prompt that the manifest names, or else the file whose name is the longest
    beginning of the generated one's.

    Raises:
        UserError: a piece has no reference.
    """
    by_name = {path.relative_to(references).as_posix(): path for path in find_midi(references)}
    by_stem = {path.stem: path for path in by_name.values()}
    manifest = generated / MANIFEST
    try:
        rows = json.loads(manifest.read_text())["pieces"] if manifest.is_file() else []
        known = {row["file"]: row for row in rows}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{manifest} is damaged; remove it, or generate again") from None
    pairs = []
    for path in find_midi(generated):
        row = known.get(path.name, {})
        stems = sorted((s for s in by_stem if path.stem.startswith(s)), key=len)
        reference = by_name.get(row.get("prompt", "")) or (by_stem[stems[-1]] if stems else None)
        if reference is None:
            raise UserError(
                f"{path.name}: no file of references={references} begins its name; give the "
                "folder of the originals, or name the piece after its own"
            )
        score = read(path)
        start = row.get("prompt end", 0)
        pairs.append((score.clip(start, score.end + 1), read(reference)))
    return pairs


def position_loss(cfg: DictConfig, out: Path) -> list[dict[str, Any]]:
    """Loss by position over held-out pieces, of the model and of a trigram model.

    The trigram model is interpolated (Witten-Bell) and fitted on the training pieces.
    """
    model = load(cli.find_checkpoint(cfg.checkpoint)).to(cli.find_device(cfg.device))
    data = model.corpus(cfg.data.root)
    training_length = model.training_length
    length = usable_length(model.model, round(cfg.max_factor * training_length))
    pieces = [data.cache[i][: length + 1] for i in data.split(cfg.split)[: cfg.max_pieces]]
    cli.say(f"{counted(len(pieces), f'pieces of {cfg.split}')}, to {length:,} tokens")
    losses = {
        "model": [
            position_losses(model.model, piece, positions=model.positions(piece), seed=cfg.seed)
            for piece in track(
                pieces,
                "position_loss",
                console=cli.console,
                transient=True,
                disable=not cli.console.is_terminal,
            )
        ]
    }
    trigram = InterpolatedTrigram(len(model.tokenizer.vocabulary))
    trigram.fit([data.cache[i] for i in data.split("train")])
    losses["trigram"] = [trigram.losses(piece)[1:] for piece in pieces]

    factors = [f for f in (1.5, 2.0, 4.0) if f * training_length <= length]
    rows = []
    for name, arrays in losses.items():
        for part, summary in length_summaries(arrays, training_length, tuple(factors)).items():
            rows.append({"measure": f"{name}, {part}", **asdict(summary)})
    bucket = max(1, training_length // 16)
    plot_loss_curves(
        {name: loss_curve(arrays, bucket) for name, arrays in losses.items()},
        out / "position_loss.png",
        training_length=training_length,
    )
    trained = {row["measure"]: row["mean"] for row in rows}
    gain = trained["trigram, trained"] - trained["model, trained"]
    cli.say(
        f"at trained positions: model {trained['model, trained']:.3f}, trigram "
        f"{trained['trigram, trained']:.3f} nats a token; the model is {abs(gain):.3f} "
        f"{'worse' if gain < 0 else 'better'}"
    )
    return rows


def position_properties(cfg: DictConfig, out: Path) -> list[dict[str, Any]]:
    """What the model's positional encoding, spans and decays do with a lag, in numbers and drawn.

    Lags are of tokens, of musical time in grid steps, or of each with the other at 0.
    """
    model = load(cli.find_checkpoint(cfg.checkpoint)).to(cli.find_device(cfg.device))
    rows, drawings = [], []
    for axis in kernel_axes(model.model):
        in_time = axis == 1
        unit = "grid steps" if in_time else "tokens"
        length = time_length(model, cfg) if in_time else model.training_length
        reach = max(length, round(cfg.max_factor * length))
        lags = np.arange(1 - (length if model.model.causal else reach), reach)
        drawn = slice(length - 1 if model.model.causal else 0, None)  # what is seen
        for kernel in position_kernels(model.model, lags, axis):
            layers = zip(kernel.values, kernel.profile, strict=True)
            found = property_rows([kernel_properties(lags, *layer, length) for layer in layers])
            for row in found:
                row |= {"training_length": length, "translation_invariant": kernel.relative}
                if in_time:
                    row["period_in_beats"] = row["period"] / model.tokenizer.steps_per_beat
                rows.append({"kernel": kernel.name, "lag": unit, **row})
            drawings.append(
                KernelDrawing(
                    f"{kernel.name}: {kernel.meaning}",
                    unit,
                    kernel.summary,
                    lags[drawn],
                    kernel.values[..., drawn],
                    kernel.profile[..., drawn],
                    length,
                )
            )
    plot_kernels(drawings, out / "position_properties.png")
    return rows


def overview(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of `position_properties` that are of all layers and heads, a kernel a column."""
    whole = [row for row in rows if row["layer"] == row["head"] == "all"]
    names = dict.fromkeys(
        k for row in whole for k, value in row.items() if isinstance(value, float)
    )
    return [
        {"median over heads": name, **{f"{r['kernel']}, {r['lag']}": r.get(name) for r in whole}}
        for name in names
    ]


def time_length(model: MusicModel, cfg: DictConfig) -> int:
    """Grid steps that a training window takes: the median over the beginnings of pieces."""
    data = model.corpus(cfg.data.root)
    pieces = [data.cache[i] for i in data.split(cfg.split)[: cfg.max_pieces]]
    times = [model.tokenizer.times(piece[: model.training_length]) for piece in pieces]
    return int(np.median([time.max() for time in times])) + 1


if __name__ == "__main__":
    cli.run(main, "evaluate", Path(__file__).parent / "conf")
