"""What `generate` writes beside its MIDI files: a manifest and a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from musicgen.errors import UserError
from musicgen.files import write_text
from musicgen.generation.continuation import Continuation, Length, MidiFile
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.metrics import PROFILES, style_similarity
from musicgen.metrics.style import Profile, mean_similarity, style_profiles, why_undefined
from musicgen.midi import MIDI_SUFFIXES, Score, loads, read
from musicgen.report import Anchor, BlindTrial, Measure, ReportPiece, render_blind, render_report
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT

MANIFEST = "generation.json"
REPORT = "report.html"

NUM_NAMES = 2  # of prompts in the report's title
STYLE_NAMES = {  # of the columns of a piece's row, in a musician's words
    "style, onset_duration": "rhythm like the original's",
    "style, time_pitch": "melody and harmony like the original's",
    "style, onset_velocity": "accents like the original's",
    "style, onset_drum": "drumming like the original's",
}


def file_names(prompts: list[Prompt], num_samples: int) -> dict[tuple[int, int], str]:
    """Return a unique file name for each prompt (by id) and sample: PROMPT_SAMPLE.mid."""
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


def audio_name(file: str) -> str:
    """Return the name of the WAV file beside a MIDI file."""
    return f"{Path(file).stem}.wav"


def write_manifest(
    out: Path,
    pieces: dict[str, tuple[Continuation, MidiFile]],
    settings: dict[str, Any],
    provenance: dict[str, Any],
    notices: list[str],
    *,
    report: bool,
) -> None:
    """Write the manifest and, if wanted, the HTML report of the pieces by file name.

    Args:
        provenance: the tokenizer's configuration and the place of the prompts, with which
            evaluate.py reads references as the model does.
    """
    rows, shown = [], []
    continuations = [continuation for continuation, _ in pieces.values()]
    anchors = chance_anchors([continuation.prompt for continuation in continuations])
    for file, (continuation, written) in pieces.items():
        score = loads(written.data)
        row = describe(continuation, score)
        beats = continuation.prompt.end_tick / TICKS_PER_BEAT
        rows.append({"file": file, "prompt end": written.prompt_end, "prompt beats": beats, **row})
        audio = audio_name(file)
        piece = report_piece(file, continuation, row, anchors)
        shown.append(
            replace(
                piece,
                score=score,
                prompt_end=written.prompt_end,
                audio_file=audio if (out / audio).exists() else None,
            )
        )
    manifest = {"settings": settings, **provenance, "notices": notices, "pieces": rows}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    if report:
        page = render_report(
            title=report_title(continuations),
            pieces=shown,
            metadata=settings,
            notices=[n for n in notices if not any(n in piece.notices for piece in shown)],
        )
        write_text(out / REPORT, page)


def report_piece(
    file: str, continuation: Continuation, row: dict[str, Any], anchors: dict[str, Anchor]
) -> ReportPiece:
    """Return a piece of the report from its row in the manifest and the anchors by column."""
    prompt = continuation.prompt
    details = {key: value for key, value in row.items() if key not in STYLE_NAMES}
    measures = []
    for key, name in STYLE_NAMES.items():
        value = row.get(key)
        if isinstance(value, str):  # why there is none
            measures.append(Measure(name, None, reason=value.removeprefix("n/a: ")))
        elif key in row:
            ends = "nothing in common", "the same"
            known = [anchors[key]] if key in anchors else []
            measures.append(Measure(name, value, known, ends=ends))
    return ReportPiece(
        title=f"{_without_suffix(prompt.name)}, {'continuation' if prompt.end_tick else 'piece'} "
        f"{continuation.sample + 1}",
        score=continuation.score,
        prompt_end=prompt.end_tick,
        midi_file=file,
        metadata=details,
        measures=measures,
        notices=[with_cures(prompt.notice)] if prompt.notice else [],
    )


def chance_anchors(prompts: list[Prompt]) -> dict[str, Anchor]:
    """Return what unrelated pieces score: the mean over neighbours among different prompts."""
    scores = [prompt.piece for prompt in {id(prompt): prompt for prompt in prompts}.values()]
    anchors = {}
    for key in STYLE_NAMES:
        profile = cast("Profile", key.removeprefix("style, "))
        values = np.array([style_similarity(a, b, profile) for a, b in pairwise(scores)])
        if not np.isnan(values).all():
            anchors[key] = Anchor("two different originals", float(np.nanmean(values)))
    return anchors


def write_blind_page(folders: Sequence[str | Path], path: Path) -> list[dict[str, Any]]:
    """Write a page for the blind comparison of folders that `generate` wrote.

    Returns a row for each trial: a prompt and sample that all folders have.
    """
    names = [str(folder) for folder in folders]
    runs = [_read_run(Path(folder).expanduser()) for folder in folders]
    keys = [key for key in (runs[0] if runs else {}) if all(key in run for run in runs)]
    if not keys:
        raise UserError(
            f"compare=[{', '.join(names)}]: no prompt that all continue; "
            "generate with the same prompts"
        )
    trials = [
        BlindTrial(_without_suffix(prompt), [(read(file), end) for file, end in versions])
        for prompt, sample in keys
        for versions in [[run[prompt, sample] for run in runs]]
    ]
    title = f"Blind comparison of {pluralize(len(runs), 'runs')}"
    write_text(path, render_blind(title=title, runs=names, trials=trials))
    return [{"prompt": prompt, "sample": sample, "runs": len(runs)} for prompt, sample in keys]


def _read_run(folder: Path) -> dict[tuple[str, int], tuple[Path, int]]:
    """Return the files and the ends of prompts, by prompt and sample."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"compare: {folder}: no {MANIFEST}; give folders that generate.py wrote"
        ) from None
    return {
        (piece["prompt"], piece["sample"]): (folder / piece["file"], piece["prompt end"])
        for piece in manifest["pieces"]
    }


def report_title(continuations: list[Continuation]) -> str:
    """Say what was continued: the prompts' names, or how many there are."""
    names = list(dict.fromkeys(_without_suffix(c.prompt.name) for c in continuations))
    if all(c.prompt.end_tick == 0 for c in continuations):
        return f"{pluralize(len(continuations), 'pieces')} {names[0]}"
    count = pluralize(len(continuations), "continuations")
    if len(names) > NUM_NAMES:
        return f"{count} of {len(names)} pieces"
    return f"{count} of {' and '.join(names)}"


def _without_suffix(name: str) -> str:
    """Return a prompt's name without the suffix of its file."""
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in MIDI_SUFFIXES else name


def cut_short(model: MusicModel, length: Length, continuations: list[Continuation]) -> str:
    """Return a line about pieces that ended at the model's last position, before their bars."""
    position = model.model.position
    cut = [c for c in continuations if len(c.tokens) == position.max_length]
    if length.bars is None or not cut:
        return ""
    return (
        f"{pluralize(len(cut), 'pieces')} cut short of bars={length.bars} at "
        f"{position.max_length:,} tokens, the limit of this model's positional encoding "
        f"(position={position.name})"
    )


def num_grammatical(model: MusicModel, continuations: list[Continuation]) -> int:
    """Count the pieces that the grammar accepts, as a check of the sampler."""
    rows = [torch.from_numpy(continuation.tokens) for continuation in continuations]
    pad = model.tokenizer.vocabulary.pad_id
    padded = pad_sequence(rows, batch_first=True, padding_value=pad)
    return int(model.tokenizer.grammar().accepts(padded).sum())


def describe(continuation: Continuation, written: Score) -> dict[str, Any]:
    """Return a piece's row in the manifest and the report."""
    prompt, new = continuation.prompt, continuation.new_score
    last_onset = max((int(t.notes["onset"].max(initial=0)) for t in written.tracks), default=0)
    row: dict[str, Any] = {
        "prompt": prompt.name,
        "sample": continuation.sample,
        "tokens": len(continuation.tokens),
        "new tokens": continuation.num_new_tokens,
        "new notes": new.num_notes,
        "bars": int(np.searchsorted(written.bar_starts(), last_onset, side="right")),
    }
    if prompt.score.num_notes:
        row["notes shown to the model"] = (
            f"{prompt.summary.notes_kept:,} of {prompt.summary.notes_read:,}"
        )
        row |= style_rows(new, prompt.piece)
    return row


def style_rows(new: Score, piece: Score) -> dict[str, Any]:
    """Return the style similarities of a continuation to the whole piece of its prompt.

    They are those of evaluate.py. A profile of which the piece has nothing is left out.
    """
    rows: dict[str, Any] = {}
    for profile in PROFILES:
        profiles, reference = style_profiles(new, profile), style_profiles(piece, profile)
        if any(histogram.any() for histogram in reference.values()):
            reason = why_undefined(profiles, reference)
            similarity = mean_similarity(profiles, reference)
            rows[f"style, {profile}"] = f"n/a: {reason}" if reason else similarity
    return rows


def with_cures(text: str) -> str:
    """Return a line on what a vocabulary cannot express, with the settings that can; "" for ""."""
    known = {
        " read as ": "tokenizer=remi_metres",
        "of drums dropped": "task=groove",
        "without an instrument dropped": "task=groove tokenizer=groove2groove_band",
    }
    cures = [cure for loss, cure in known.items() if loss in text]
    return f"{text}; a model trained with {' or '.join(cures)} keeps them" if cures else text
