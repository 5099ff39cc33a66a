"""What `generate` writes beside its MIDI files: a manifest and a report."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from musicgen.files import write_text
from musicgen.generation.continuation import Continuation, Length, MidiFile
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.metrics import PROFILES
from musicgen.metrics.style import mean_similarity, style_profiles, why_undefined
from musicgen.midi import MIDI_SUFFIXES, Score, loads
from musicgen.report import ReportPiece, render_report
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT

MANIFEST = "generation.json"
REPORT = "report.html"


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
    for file, (continuation, written) in pieces.items():
        score = loads(written.data)
        row = describe(continuation, score)
        beats = continuation.prompt.end_tick / TICKS_PER_BEAT
        rows.append({"file": file, "prompt end": written.prompt_end, "prompt beats": beats, **row})
        shown.append(ReportPiece(Path(file).stem, score, written.prompt_end, file, row))
    manifest = {"settings": settings, **provenance, "notices": notices, "pieces": rows}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    if report:
        page = render_report(
            title=pluralize(len(pieces), "continuations"),
            pieces=shown,
            metadata=settings,
            notices=notices,
        )
        write_text(out / REPORT, page)


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
