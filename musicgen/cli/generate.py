"""Continue prompts: python generate.py prompt=FILE_OR_FOLDER [bars=16 num_samples=4 out=DIR]."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf

from musicgen import load
from musicgen.cli.arguments import command
from musicgen.cli.output import output_folder, set_up_cpu
from musicgen.console import console, log, progress_bar, warn, warn_of_first
from musicgen.data.corpora.base import evenly_spaced
from musicgen.data.prompt_files import HELD_OUT, absolute_prompts, prompt_files
from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.evaluation import generated_files
from musicgen.evaluation.originality import searchable_training_data, training_matches
from musicgen.evaluation.runs import open_training_data, piece_readers
from musicgen.files import write_bytes, write_text
from musicgen.generation.continuation import Continuation, KeepPrompt, WrittenFile
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import PROMPT_BARS, Prompt
from musicgen.generation.request import DecodingParams, GenerationRequest, PieceParams
from musicgen.generation.sampler import Sampler
from musicgen.metrics.originality import Match
from musicgen.midi import Score, without_suffix
from musicgen.midi.io import Soundfont
from musicgen.models import parameter_count
from musicgen.plugins import plugin
from musicgen.report import render_report
from musicgen.run_folders import MANIFEST, find_checkpoint
from musicgen.text import pluralize, rate
from musicgen.tokenization import Chorale
from musicgen.validation import check_bool, check_choice, check_int

REPORT = "report.html"
NUM_NOTICES_SHOWN, MORE_NOTICES = 3, f"more like these, in {MANIFEST}"
Done = dict[str, tuple[Continuation, WrittenFile]]  # by the name of the file


def main(cfg: DictConfig) -> None:
    """Continue prompts; write MIDI files as they finish, then the manifest and the report."""
    check_int("num_prompts", cfg.num_prompts, none_means="all")
    check_choice("keep_prompt", cfg.keep_prompt, get_args(KeepPrompt))
    check_bool("report", cfg.report)
    check_choice("format", cfg.format, ("auto", "midi", "musicxml"))
    check_choice("originality", cfg.originality, ("auto", True, False))
    model = load(cfg.checkpoint).to(cfg.device)
    log(model.content.describe(model.path))
    if cfg.checkpoint is None:
        with suppress(UserError):  # there is none
            log(f"there is a run of yours, {find_checkpoint('latest')}: checkpoint=latest")
    request = build_request(model, cfg)
    soundfont = None if cfg.soundfont is None else Soundfont(str(cfg.soundfont))
    prompts, notices = read_prompts(model, cfg, request)
    write_others = other_formats(cfg.format, soundfont, prompts)
    training_data = searchable_training_data(model, cfg.originality, cfg.data.root)
    decoding = request.decoding
    batch = min(decoding.batch_size, decoding.num_samples * len(prompts))
    set_up_cpu(decoded=batch * parameter_count(model.model))
    names = generated_files.file_names(prompts, decoding.num_samples)
    with output_folder(cfg.out, "generated") as out:
        scores = [f"{without_suffix(name)}.musicxml" for name in names.values()]
        for name in (MANIFEST, *names.values(), *scores):
            if (out / name).exists():
                raise UserError(f"{out / name} exists already; give another folder with out=DIR")
        start, done = time.monotonic(), Done()
        try:
            for piece in continuations(model, request, prompts):
                name = names[piece.prompt, piece.sample]
                written = piece.midi_file(cfg.keep_prompt)
                write_bytes(out / name, written.data)
                done[name] = piece, written
                write_others(piece.prompt, written.score, out / name)
        finally:  # also if the command is stopped
            if done:
                in_order = {name: done[name] for name in names.values() if name in done}
                matches = None
                if training_data is not None:
                    music = {name: piece.new_on_grid for name, (piece, _) in in_order.items()}
                    matches = training_matches(training_data, music, 0)[0]
                seconds = time.monotonic() - start
                write_report(cfg, model, request, in_order, notices, matches, out, seconds)


def other_formats(
    form: str, soundfont: Soundfont | None, prompts: list[Prompt]
) -> Callable[[Prompt, Score, Path], None]:
    """Return a function that writes the music of a MIDI file at a path in other formats next to it.

    Args:
        form: the setting `format`.
        soundfont: for WAV files; None: there are none.

    Raises:
        UserError: there are to be printed scores, and the plugin `scores` is missing.
    """
    printed = [p for p in prompts if form == "musicxml" or (form == "auto" and p.source.is_printed)]
    needs = f"format={form} (format=midi writes MIDI files alone)"
    scores: Any = plugin("scores", needs) if printed else None

    def write(prompt: Prompt, score: Score, path: Path) -> None:
        if soundfont:
            soundfont.write_wav(score, path.with_suffix(".wav"))
        if prompt in printed:
            page = scores.write_musicxml(score, without_suffix(prompt.name))
            write_bytes(path.with_suffix(".musicxml"), page)

    return write


def continuations(
    model: MusicModel, request: GenerationRequest, prompts: list[Prompt]
) -> Iterator[Continuation]:
    """Yield continuations as they finish, and show a progress bar."""
    num_pieces = request.decoding.num_samples * len(prompts)
    with progress_bar("{task.completed:,} tokens") as progress:
        bar = progress.add_task("generating", total=None)
        on_step = partial(progress.advance, bar)
        sampler = Sampler(model.model, model.tokenizer, request, on_step=on_step, warn=warn)
        for number, piece in enumerate(sampler.continuations(prompts), start=1):
            yield piece
            progress.update(bar, description=f"{number} of {num_pieces} pieces")


def write_report(
    cfg: DictConfig,
    model: MusicModel,
    request: GenerationRequest,
    done: Done,
    notices: list[str],
    matches: Mapping[str, Match] | None,
    out: Path,
    seconds: float,
) -> None:
    """Write the manifest and the page of the pieces by file name, and log how many there are."""
    pieces = [continuation for continuation, _ in done.values()]
    new_tokens = sum(piece.num_new_tokens for piece in pieces)
    settings = {"checkpoint": str(model.path), **request.options()}
    settings["training length"] = model.training_length
    more = [
        each
        for piece, written in done.values()
        for each in (written.notice, piece.notice_of(written))
    ]
    more.append(generated_files.cut_short(model, request.bars, pieces))
    more = [*filter(None, dict.fromkeys(more))]
    warn_of_first(more, NUM_NOTICES_SHOWN, MORE_NOTICES)
    notices = [*notices, *more]
    sources = {"tokenizer": model.content.tokenizer, "references": absolute_prompts(cfg.prompt)}
    shown = generated_files.write_manifest(out, done, settings, sources, notices, matches)
    if cfg.report:
        others = [n for n in notices if not any(n in piece.notices for piece in shown)]
        page = render_report(
            title=generated_files.report_title(pieces),
            pieces=shown,
            metadata=settings,
            notices=others,
            explanation=generated_files.explain_figures(shown),
            with_staves=True,
        )
        write_text(out / REPORT, page)
    count = f"{pluralize(len(pieces), 'pieces')}, {pluralize(new_tokens, 'tokens')} added"
    log(f"{count}, {rate(new_tokens, seconds)}")
    log(f"in {out}" + (f"; open {out / REPORT}" if cfg.report else ""))
    if console.is_terminal:
        log(f"next: {command('generate')} my.mid num_samples=4 seed=1, or --help for all settings")


def build_request(model: MusicModel, cfg: DictConfig) -> GenerationRequest:
    """Return the request of a configuration, whose keys are its options."""
    options: Any = OmegaConf.to_container(cfg)
    check_of_use(model, options)
    with parameter_of("sampling"):
        sampling = model.sampling(**options.pop("sampling"))
    known = [each.name for kind in (PieceParams, DecodingParams) for each in fields(kind)]
    names = {"length_factor", "rewrite", "cadence", *known} & options.keys()
    return model.request(**{name: options[name] for name in names}, sampling=sampling)


def check_of_use(model: MusicModel, options: Mapping[str, Any]) -> None:
    """Raise `ParameterError` for a setting that has no effect on this model or request."""
    sampling, grammar = options["sampling"], model.tokenizer.grammar()
    is_named = isinstance(options["key"], str) and "key" in model.model.coordinate_names
    guides = is_named or any(options[name] for name in ("keep", "fill", "rewrite"))
    for setting, has_effect, needed in (
        ("section_bars", options["form"], "form"),
        ("sampling.guidance", guides or sampling["guidance"] == 1, "keep, fill or a named key"),
        ("sampling.max_notes", grammar.num_instruments, "a model of several instruments"),
        ("sampling.avoid_parallels", isinstance(model.tokenizer, Chorale), "a model of chorales"),
    ):
        name = setting.removeprefix("sampling.")
        value = options[name] if name in options else sampling.get(name)
        if value not in (None, False, "auto") and not has_effect:
            raise ParameterError(setting, value, f"it has no effect without {needed}")


def read_prompts(
    model: MusicModel, cfg: DictConfig, request: GenerationRequest
) -> tuple[list[Prompt], list[str]]:
    """Return the prompts, and notices of what was left out of them, which are printed."""
    if cfg.prompt is None:
        return [model.prompt(None, request=request, time_signature=cfg.time_signature)], []
    if cfg.prompt in HELD_OUT:
        data = open_training_data(model, cfg.data.root)
        sources: Any = piece_readers(data, data.split(cfg.prompt))
    else:
        sources = {name: partial(Path, path) for name, path in prompt_files(cfg.prompt).items()}
    reading = cfg.prompt_bars, request, cfg.beats, cfg.performance, cfg.time_signature
    prompts, errors = list[Prompt](), list[UserError]()
    for name in evenly_spaced(list(sources), cfg.num_prompts):
        try:
            prompts.append(model.prompt(sources[name](), name, *reading))
        except UserError as error:
            errors.append(error)
    if not prompts:
        raise errors[0] if len(errors) == 1 else UserError(f"nothing to continue: {errors[0]}")
    if cfg.prompt_bars == "auto" and not all(each.source.is_whole or each.kept for each in prompts):
        log(f"from the first {PROMPT_BARS} bars; prompt_bars=null continues whole files")
    notices = [f"left out: {x}" for x in errors] + [x.notice for x in prompts if x.notice]
    warn_of_first(notices, NUM_NOTICES_SHOWN, MORE_NOTICES)
    return prompts, notices
