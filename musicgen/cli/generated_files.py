"""What `generate` writes beside its MIDI files: a manifest and a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from musicgen.evaluation.originality import KnownPassage, KnownPassages
from musicgen.evaluation.references import MANIFEST
from musicgen.files import write_text
from musicgen.generation.continuation import Continuation, MidiFile
from musicgen.generation.model import MusicModel
from musicgen.generation.prompts import Prompt
from musicgen.metrics import PROFILES
from musicgen.metrics.style import Profiles, mean_similarity, style_profiles, why_undefined
from musicgen.metrics.style_anchors import anchor_similarities, style_labels
from musicgen.metrics.summary import mean_of_valid
from musicgen.midi import Score, loads, without_suffix
from musicgen.report import Anchor, Mark, Measure, ReportPiece, render_report
from musicgen.text import pluralize
from musicgen.tokenization.base import TICKS_PER_BEAT

REPORT = "report.html"

MAX_STEM_BYTES = 200  # of a file's name: most file systems allow 255 in all
NUM_NAMES = 2  # of prompts in the report's title
STYLE_NAMES = {  # of the columns of a piece's row, in a musician's words
    "style, onset_duration": "rhythm like the original's",
    "style, time_pitch": "melody and harmony like the original's",
    "style, onset_velocity": "accents like the original's",
    "style, onset_drum": "drumming like the original's",
}
ANCHOR_NAMES = {
    "chance": "an unrelated piece",
    "same family": "a related style",
    "same style": "another piece of the style",
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
    originality: KnownPassages | None = None,
) -> None:
    """Write the manifest and, if wanted, the HTML report of the pieces by file name.

    Args:
        provenance: the tokenizer's configuration and the place of the prompts, with which
            evaluate.py reads references as the model does.
    """
    rows, shown = [], []
    continuations = [continuation for continuation, _ in pieces.values()]
    anchors = style_anchors(continuations)
    prompts = {id(c.prompt): c.prompt for c in continuations}
    references: dict[int, dict[str, Profiles]] = {
        key: {profile: style_profiles(prompt.piece, profile) for profile in PROFILES}
        for key, prompt in prompts.items()
        if prompt.score.num_notes
    }
    for file, (continuation, written) in pieces.items():
        score = loads(written.data)
        row = describe(continuation, score, references.get(id(continuation.prompt), {}))
        known = originality.passages[file] if originality else None
        if known:
            row |= {KNOWN: known.num_notes, SOURCE: known.source()}
        beats = continuation.prompt.end_tick / TICKS_PER_BEAT
        ends = {"prompt end": written.prompt_end, "prompt beats": beats}
        rows.append({"file": file, **ends, **row, **selection_rows(continuation)})
        measures = style_measures(row, anchors.get(continuation.prompt.name, {}))
        marks = []
        if originality and known:
            lengths = [passage.num_notes for passage in originality.held_out.values()]
            measures.append(known_measure(known, lengths))
            if known.passage:
                first, last = known.ticks(score.ticks_per_beat)
                edges = written.prompt_end + first, written.prompt_end + last
                marks.append(Mark(*edges, f"{known.num_notes} notes as in {known.passage.source}"))
        prompt, audio = continuation.prompt, audio_name(file)
        kind = "continuation" if prompt.end_tick else "piece"
        shown.append(
            ReportPiece(
                title=f"{without_suffix(prompt.name)}, {kind} {continuation.sample + 1}",
                score=score,
                prompt_end=written.prompt_end,
                midi_file=file,
                metadata={k: v for k, v in row.items() if k not in (*STYLE_NAMES, KNOWN, SOURCE)},
                measures=measures,
                notices=[with_cures(prompt.notice)] if prompt.notice else [],
                audio_file=audio if (out / audio).exists() else None,
                marks=marks,
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


def style_measures(row: dict[str, Any], anchors: dict[str, list[Anchor]]) -> list[Measure]:
    """Return the measures of a piece's style from its row, with the anchors by column."""
    measures = []
    for key, name in STYLE_NAMES.items():
        value = row.get(key)
        if isinstance(value, str):  # why there is none
            measures.append(Measure(name, None, reason=value.removeprefix("n/a: ")))
        elif key in row:
            ends = "nothing in common", "the same"
            measures.append(Measure(name, value, anchors.get(key, ()), ends=ends))
    return measures


def style_anchors(continuations: list[Continuation]) -> dict[str, dict[str, list[Anchor]]]:
    """Return what real music scores, by prompt and by column of its row.

    The music after a prompt, as long as its continuation, is compared with its own piece, and with
    other prompts' pieces; see `musicgen.metrics.style_anchors`.
    """
    prompted = {c.prompt.name: c for c in reversed(continuations) if c.prompt.end_tick}
    parts = {
        name: c.prompt.piece.clip(c.prompt.end_tick, c.prompt.end_tick + c.new_score.end)
        for name, c in prompted.items()
    }
    found = anchor_similarities(
        parts.items(), style_labels(parts), lambda name: prompted[name].prompt.piece, PROFILES
    )
    anchors: dict[str, dict[str, list[Anchor]]] = {name: {} for name in parts}
    for profile, values in found.items():
        for number, name in enumerate(parts):
            anchors[name][f"style, {profile}"] = [
                Anchor(words, mean_of_valid(np.array(values[anchor])))
                for anchor, words in ANCHOR_NAMES.items()
            ] + [Anchor("the original's own continuation", values["same song"][number])]
    return anchors


def known_measure(found: KnownPassage, scale: Sequence[int]) -> Measure:
    """Return the measure of a piece's longest known passage, beside those of held-out pieces."""
    name = "longest passage known from the training music, in notes"
    if found.num_own < 2:
        return Measure(name, None, reason="fewer than two notes")
    anchors = []
    if scale:
        anchors = [
            Anchor("the average of unheard pieces", float(np.mean(scale))),
            Anchor(f"the longest of {len(scale)} unheard pieces", max(scale)),
        ]
    detail = f"as in: {found.source()}" if found.passage else ""
    return Measure(name, found.num_notes, anchors, high=0, detail=detail)


def report_title(continuations: list[Continuation]) -> str:
    """Say what was continued: the prompts' names, or how many there are."""
    names = list(dict.fromkeys(without_suffix(c.prompt.name) for c in continuations))
    if all(c.prompt.end_tick == 0 for c in continuations):
        return f"{pluralize(len(continuations), 'pieces')} {names[0]}"
    count = pluralize(len(continuations), "continuations")
    if len(names) > NUM_NAMES:
        return f"{count} of {len(names)} pieces"
    return f"{count} of {' and '.join(names)}"


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


def num_grammatical(model: MusicModel, continuations: list[Continuation]) -> int:
    """Count the pieces that the grammar accepts, as a check of the sampler."""
    rows = [torch.from_numpy(continuation.tokens) for continuation in continuations]
    pad = model.tokenizer.vocabulary.pad_id
    padded = pad_sequence(rows, batch_first=True, padding_value=pad)
    return int(model.tokenizer.grammar().accepts(padded).sum())


def describe(
    continuation: Continuation, written: Score, reference: Mapping[str, Profiles]
) -> dict[str, Any]:
    """Return a piece's row in the manifest and the report.

    Args:
        reference: the style profiles of the prompt's whole piece.
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
    if prompt.score.num_notes:
        row["notes shown to the model"] = (
            f"{prompt.summary.notes_kept:,} of {prompt.summary.notes_read:,}"
        )
        row |= style_rows(new, reference)
    return row


def selection_rows(continuation: Continuation) -> dict[str, Any]:
    """Return the measures of all candidates of a piece, and the numbers of the best, from 0."""

    def rounded(value: float) -> float | None:
        return None if np.isnan(value) else round(value, 4)

    rows = [
        {
            "candidates": [
                {
                    "nats a token": rounded(-each.log_likelihood),
                    "share in scale": rounded(each.in_scale),
                }
                for each in selection.candidates
            ],
            "best candidate": selection.chosen,
        }
        for selection in continuation.selections
    ]
    return {"selections": rows} if rows else {}


def style_rows(new: Score, piece: Mapping[str, Profiles]) -> dict[str, Any]:
    """Return the style similarities of a continuation to the whole piece of its prompt.

    They are those of evaluate.py. A profile of which the piece has nothing is left out.
    """
    rows: dict[str, Any] = {}
    for profile in PROFILES:
        if any(histogram.any() for histogram in piece[profile].values()):
            profiles = style_profiles(new, profile)
            reason = why_undefined(profiles, piece[profile])
            similarity = mean_similarity(profiles, piece[profile])
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
