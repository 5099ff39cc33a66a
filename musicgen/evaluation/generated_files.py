"""What `generate` writes beside its MIDI files: a manifest and a report."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.evaluation.originality import KnownPassages
from musicgen.evaluation.references import MANIFEST
from musicgen.files import write_text
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import FROM_NOTHING, Prompt
from musicgen.metrics.style import PROFILES, style_similarity
from musicgen.midi import Score, loads, without_suffix
from musicgen.report import Mark, ReportPiece
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT

MAX_STEM_BYTES = 200  # of a file's name: most file systems allow 255 in all
STYLE_NAMES = {  # of the columns of a piece's row, in a musician's words
    "style, onset_duration": "rhythm like the original's",
    "style, time_pitch": "melody and harmony like the original's",
    "style, onset_velocity": "accents like the original's",
    "style, onset_drum": "drumming like the original's",
}
KNOWN, SOURCE = "longest known passage (notes)", "known from"


def file_names(prompts: list[Prompt], num_samples: int) -> dict[tuple[int, int], str]:
    """Return a unique file name for each prompt (by id) and sample: PROMPT_SAMPLE.mid."""
    names: dict[tuple[int, int], str] = {}
    stems: Counter[str] = Counter()
    for prompt in prompts:
        stem = without_suffix(prompt.name.replace("/", "_"))
        stem = stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore")
        stems[stem.lower()] += 1
        if stems[stem.lower()] > 1:  # a/b.mid and a_b.mid, or x.mid and x.MID
            stem += f" ({stems[stem.lower()]})"
        for sample in range(num_samples):
            names[id(prompt), sample] = f"{stem}_{sample}.mid"
    return names


def write_manifest(
    out: Path,
    pieces: dict[str, tuple[Continuation, tuple[bytes, int, str]]],
    settings: dict[str, Any],
    provenance: dict[str, Any],
    notices: list[str],
    originality: KnownPassages | None = None,
) -> list[ReportPiece]:
    """Write the manifest of the pieces by file name; return them as the report shows them.

    Args:
        provenance: the tokenizer's configuration and the place of the prompts, with which
            evaluate.py reads references as the model does.
    """
    rows, shown = [], []
    for file, (continuation, (data, prompt_end, _)) in pieces.items():
        score, prompt = loads(data), continuation.prompt
        row, marks = _row(continuation, score), []
        if originality:
            known = originality.passages[file]
            row |= {KNOWN: known.num_notes, SOURCE: known.words}
            if known.num_notes:
                first = prompt_end + round(known.first_beat * score.ticks_per_beat)
                last = prompt_end + round(known.last_beat * score.ticks_per_beat)
                marks.append(Mark(first, last, f"{known.num_notes} notes as in {known.source}"))
        ends = {"prompt end": prompt_end, "prompt beats": prompt.end_tick / TICKS_PER_BEAT}
        rows.append({"file": file, **ends, **row})
        audio = Path(file).with_suffix(".wav").name
        kind = "continuation" if prompt.end_tick else "version"
        measured = (*STYLE_NAMES, KNOWN, SOURCE)
        shown.append(
            ReportPiece(
                title=f"{without_suffix(prompt.name)}, {kind} {continuation.sample + 1}",
                score=score,
                prompt_end=prompt_end,
                midi_file=file,
                metadata={name: value for name, value in row.items() if name not in measured},
                measures={STYLE_NAMES.get(k, k): row[k] for k in measured if k in row},
                notices=[prompt.notice] if prompt.notice else [],
                audio_file=audio if (out / audio).exists() else None,
                marks=marks,
                given=prompt.untouched,
            )
        )
    manifest = {"settings": settings, **provenance, "notices": notices, "pieces": rows}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return shown


def _row(continuation: Continuation, written: Score) -> dict[str, Any]:
    """Return a piece's row in the manifest and the report.

    The style similarities to the prompt's whole piece are those of evaluate.py.
    """
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
    if prompt.end_time:
        kept, given = prompt.summary.notes_kept, prompt.summary.notes_read
        row["notes shown to the model"] = f"{kept:,} of {given:,}"
    for profile in PROFILES if prompt.score.num_notes else ():
        similarity = style_similarity(new, prompt.piece, profile)
        if not np.isnan(similarity):
            row[f"style, {profile}"] = similarity
    return row


def report_title(continuations: list[Continuation]) -> str:
    """Say what was continued: the prompts' names, or how many there are."""
    names = list(dict.fromkeys(without_suffix(c.prompt.name) for c in continuations))
    if names == [FROM_NOTHING]:
        return f"{pluralize(len(continuations), 'pieces')} {FROM_NOTHING}"
    kind = "continuations" if any(c.prompt.end_tick for c in continuations) else "versions"
    count = pluralize(len(continuations), kind)
    return f"{count} of {' and '.join(names) if len(names) <= 2 else f'{len(names)} pieces'}"


def cut_short(model: MusicModel, bars: int | None, continuations: list[Continuation]) -> str:
    """Return a line about pieces that ended at the model's last position, before their bars."""
    position = model.model.position
    cut = [c for c in continuations if len(c.tokens) == position.max_length]
    if bars is None or not cut:
        return ""
    return (
        f"{pluralize(len(cut), 'pieces')} cut short of bars={bars} at "
        f"{position.max_length:,} tokens, the limit of this model's positional encoding "
        f"(position={position.name})"
    )
