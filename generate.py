"""Continue prompts: python generate.py prompt=FILE_OR_FOLDER [bars=16 num_samples=4 out=DIR]."""

from __future__ import annotations

if __name__ == "__main__":
    import musicgen.startup  # noqa: F401, before what takes seconds to import

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch.nn.utils.rnn import pad_sequence

from musicgen import cli, load
from musicgen.counts import counted
from musicgen.errors import UserError
from musicgen.files import kept_if_filled, write_text
from musicgen.generation.continuation import (
    Continuation,
    Length,
    Prompt,
    continue_prompts,
    empty_prompt,
)
from musicgen.generation.model import MusicModel
from musicgen.generation.sampling import SamplingParams
from musicgen.metrics import style_similarity
from musicgen.midi import MIDI_SUFFIXES, Score, find_midi, read, write
from musicgen.report import ReportPiece, write_report
from musicgen.values import flag, number, whole

MANIFEST = "generation.json"
NOTICES_SHOWN = 3


def main(cfg: DictConfig) -> None:
    """Load, read prompts, generate, write MIDI files as they finish, then the report."""
    check_values(cfg)
    checkpoint = cli.find_checkpoint(cfg.checkpoint)
    model = load(checkpoint).to(cli.find_device(cfg.device))
    length = model.length(cfg.bars, cfg.length_factor, cfg.max_new_tokens)
    sampling = model.sampling(**cfg.sampling)
    prompts = read_prompts(model, cfg)
    notices = [prompt.notice for prompt in prompts if prompt.notice]
    tell(notices)
    names = file_names(prompts, cfg.num_samples)
    out = cli.make_folder(cfg.out, "generated")
    for name in (MANIFEST, *names.values()):
        if (out / name).exists():
            raise UserError(f"{out / name} is there already; give another folder with out=DIR")

    done: list[Continuation] = []
    began = time.monotonic()
    with kept_if_filled(out):
        try:
            for continuation in run(model, prompts, length, sampling, cfg):
                write(continuation.score, out / names[id(continuation.prompt), continuation.sample])
                done.append(continuation)
        except KeyboardInterrupt:
            if not done:
                raise
            cli.warn(f"interrupted, with {counted(len(done), 'pieces')} finished")
    seconds = time.monotonic() - began

    places = {id(prompt): place for place, prompt in enumerate(prompts)}
    done.sort(key=lambda c: (places[id(c.prompt)], c.sample))
    new_tokens = sum(c.num_new_tokens for c in done)
    settings = {
        "checkpoint": str(checkpoint),
        "seed": cfg.seed,
        **asdict(sampling),
        "training length": model.training_length,
        "new tokens": new_tokens,
        "ungrammatical pieces": len(done) - grammatical(model, done),
        "tokens/s": round(new_tokens / seconds, 1),
    }
    files = [names[id(c.prompt), c.sample] for c in done]
    rows = [describe(c) for c in done]
    pieces = [
        {"file": file, "prompt end": c.prompt.end_tick, **row}
        for file, c, row in zip(files, done, rows, strict=True)
    ]
    if cut := cut_short(model, length, done):
        cli.warn(cut)
        notices.append(cut)
    manifest = {"settings": settings, "notices": notices, "pieces": pieces}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    if cfg.report:
        write_report(
            out / "report.html",
            title=counted(len(done), "continuations"),
            pieces=[
                ReportPiece(Path(file).stem, c.score, c.prompt.end_tick, file, row)
                for file, c, row in zip(files, done, rows, strict=True)
            ],
            numbers=settings,
            notices=notices,
        )
    cli.say(
        f"{counted(len(done), 'pieces')}, {counted(new_tokens, 'tokens')} added, "
        f"{settings['tokens/s']:,} a second"
    )
    cli.say(f"in {out}" + (f"; open {out / 'report.html'}" if cfg.report else ""))


def check_values(cfg: DictConfig) -> None:
    """Refuse values of no use before anything is loaded.

    Raises:
        UserError: names the first.
    """
    whole("num_samples", cfg.num_samples)
    whole("batch_size", cfg.batch_size)
    whole("num_prompts", cfg.num_prompts, null="all")
    whole("prompt_bars", cfg.prompt_bars, null="all")
    number("length_factor", cfg.length_factor, above=0, null="")
    whole("seed", cfg.seed, at_least=0)
    flag("allow_end", cfg.allow_end)
    flag("report", cfg.report)


def read_prompts(model: MusicModel, cfg: DictConfig) -> list[Prompt]:
    """The prompts; files of a folder that cannot be read are named and left out.

    Raises:
        UserError: nothing can be read.
    """
    if cfg.prompt is None:
        return [empty_prompt(model.tokenizer)]
    path = Path(cfg.prompt).expanduser()
    sources: dict[str, Callable[[], Score]]
    if cfg.prompt in ("val", "test"):
        data = model.corpus(cfg.data.root)
        paths = {piece.name: piece.path for piece in data.pieces()}
        held_out = [data.cache.names[i] for i in data.split(cfg.prompt)]
        sources = {name: partial(data.read, paths[name]) for name in held_out}
    elif path.is_dir():
        sources = {f.relative_to(path).as_posix(): partial(read, f) for f in find_midi(path)}
    else:
        sources = {path.name: partial(read, path)}
    names = list(sources)
    if cfg.num_prompts is not None and cfg.num_prompts < len(names):
        names = [names[i * len(names) // cfg.num_prompts] for i in range(cfg.num_prompts)]
    prompts, errors = [], []
    for name in names:
        try:
            prompts.append(model.prompt(sources[name](), name, cfg.prompt_bars))
        except UserError as error:
            errors.append(str(error))
    if not prompts:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserError(f"nothing to continue: {errors[0]}{more}")
    for error in errors:
        cli.warn(f"left out: {error}")
    return prompts


def tell(notices: list[str]) -> None:
    """Say what the first few prompts lost."""
    for notice in notices[:NOTICES_SHOWN]:
        cli.warn(notice)
    if len(notices) > NOTICES_SHOWN:
        cli.warn(f"and {len(notices) - NOTICES_SHOWN:,} more like these, in {MANIFEST}")


def file_names(prompts: list[Prompt], num_samples: int) -> dict[tuple[int, int], str]:
    """A file name for each prompt and sample: the prompt's own, then the sample's number."""
    names: dict[tuple[int, int], str] = {}
    stems: Counter[str] = Counter()
    for prompt in prompts:
        stem = prompt.name.replace("/", "_")
        if Path(stem).suffix.lower() in MIDI_SUFFIXES:
            stem = stem.rsplit(".", 1)[0]
        stems[stem.lower()] += 1
        if stems[stem.lower()] > 1:  # a/b.mid and a_b.mid, or x.mid and x.MID
            stem += f" ({stems[stem.lower()]})"
        for sample in range(num_samples):
            names[id(prompt), sample] = f"{stem}_{sample}.mid"
    return names


def run(
    model: MusicModel,
    prompts: list[Prompt],
    length: Length,
    sampling: SamplingParams,
    cfg: DictConfig,
) -> Iterator[Continuation]:
    """The continuations as they finish, under a progress bar."""
    total = len(prompts) * cfg.num_samples
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} pieces, {task.fields[tokens]:,} tokens"),
        TimeElapsedColumn(),
    )
    quiet = not cli.console.is_terminal
    with Progress(*columns, console=cli.console, transient=True, disable=quiet) as progress:
        bar = progress.add_task("generating", total=total, tokens=0)
        tokens = 0

        def count(rows: int) -> None:
            nonlocal tokens
            tokens += rows
            progress.update(bar, tokens=tokens)

        for continuation in continue_prompts(
            model.model,
            model.tokenizer,
            prompts,
            length=length,
            sampling=sampling,
            num_samples=cfg.num_samples,
            batch_size=cfg.batch_size,
            allow_end=cfg.allow_end,
            seed=cfg.seed,
            compiled=cfg.compile,
            on_step=count,
            say=cli.warn,
        ):
            progress.advance(bar)
            yield continuation


def cut_short(model: MusicModel, length: Length, done: list[Continuation]) -> str:
    """One line on pieces that end where the model's positions do, not after their bars."""
    position = model.model.position
    cut = [c for c in done if len(c.tokens) == position.max_length]
    if length.bars is None or not cut:
        return ""
    return (
        f"{counted(len(cut), 'pieces')} cut short of bars={length.bars} at "
        f"{position.max_length:,} tokens, where this model's positional encoding "
        f"(position={position.name}) ends"
    )


def grammatical(model: MusicModel, done: list[Continuation]) -> int:
    """How many finished pieces the grammar takes: a check on what the sampler did."""
    rows = [torch.from_numpy(continuation.tokens) for continuation in done]
    pad = model.tokenizer.vocabulary.pad_id
    padded = pad_sequence(rows, batch_first=True, padding_value=pad)
    return int(model.tokenizer.grammar().accepts(padded).sum())


def describe(continuation: Continuation) -> dict[str, Any]:
    """A piece's row in the report and the manifest."""
    prompt, score = continuation.prompt, continuation.score
    new = continuation.new_score
    onsets = [int(track.notes["onset"].max()) for track in score.tracks if len(track.notes)]
    last_onset = max(onsets, default=0)
    bar = prompt.end_tick * prompt.bar_length // prompt.end_time if prompt.end_time else None
    row: dict[str, Any] = {
        "prompt": prompt.name,
        "sample": continuation.sample,
        "tokens": len(continuation.tokens),
        "new tokens": continuation.num_new_tokens,
        "new notes": new.num_notes,
        "bars": None if bar is None else 1 + last_onset // bar,
    }
    if prompt.score.num_notes:
        for profile in ("onset_duration", "time_pitch"):
            similarity = style_similarity(new, prompt.score, profile)
            row[f"style, {profile}"] = None if similarity != similarity else similarity
    return row


if __name__ == "__main__":
    cli.run(main, "generate", Path(__file__).parent / "conf")
