"""The manifest of a folder of generated MIDI files, and its pieces as the report shows them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.evaluation.names import MATCH_SOURCE, PIECE_MEASURES, TRAINING_MATCH
from musicgen.evaluation.originality import TrainingMatches
from musicgen.evaluation.references import MANIFEST
from musicgen.files import write_text
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import Prompt
from musicgen.generation.prompts import FROM_NOTHING
from musicgen.metrics.originality import Match
from musicgen.metrics.style import SIMILARITIES, style_similarity
from musicgen.midi import TICKS_PER_BEAT, Score, loads, without_suffix
from musicgen.report import Mark, ReportPiece
from musicgen.text import pluralize

MAX_STEM_BYTES = 200  # of a file's name: most file systems allow 255 in all


MidiFile = tuple[bytes, int, str]
"""The bytes of a file, the tick at which its prompt ends, and a notice."""


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
    pieces: dict[str, tuple[Continuation, MidiFile]],
    settings: dict[str, Any],
    provenance: dict[str, Any],
    notices: list[str],
    matches: TrainingMatches | None = None,
) -> list[ReportPiece]:
    """Write the manifest of a folder; return the pieces as the report shows them.

    Args:
        pieces: by the names of their files.
        provenance: the tokenizer's configuration and the place of the prompts, with which
            evaluate.py reads the originals as the model does.
        matches: of the pieces with the training set; None: they were not searched.
    """
    entries, shown = [], []
    for file, (continuation, (data, prompt_end, _)) in pieces.items():
        score, prompt = loads(data), continuation.prompt
        entry = _manifest_entry(continuation, score)
        marks = []
        if matches:
            match = matches.generated[file]
            entry |= {TRAINING_MATCH: match.num_notes, MATCH_SOURCE: match.description}
            marks = _match_marks(match, prompt_end, score.ticks_per_beat)
        ends = {"prompt end": prompt_end, "prompt beats": prompt.end_tick / TICKS_PER_BEAT}
        entries.append({"file": file, **ends, **entry})
        audio = Path(file).with_suffix(".wav").name
        kind = "continuation" if prompt.end_tick else "version"
        shown.append(
            ReportPiece(
                title=f"{without_suffix(prompt.name)}, {kind} {continuation.sample + 1}",
                score=score,
                prompt_end=prompt_end,
                midi_file=file,
                metadata={k: value for k, value in entry.items() if k not in PIECE_MEASURES},
                measures={name: entry[name] for name in PIECE_MEASURES if name in entry},
                notices=[prompt.notice] if prompt.notice else [],
                audio_file=audio if (out / audio).exists() else None,
                marks=marks,
                kept=None if prompt.kept is None else prompt.kept.unchanged,
            )
        )
    manifest = {"settings": settings, **provenance, "notices": notices, "pieces": entries}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return shown


def _match_marks(match: Match, prompt_end: int, ticks_per_beat: int) -> list[Mark]:
    """Return a mark of the longest match with the training set, if there is one."""
    if not match.num_notes:
        return []
    first = prompt_end + round(match.first_beat * ticks_per_beat)
    last = prompt_end + round(match.last_beat * ticks_per_beat)
    return [Mark(first, last, f"{match.num_notes} notes as in {match.source}")]


def _manifest_entry(continuation: Continuation, written: Score) -> dict[str, Any]:
    """Return what the manifest says of a piece.

    The style similarities are those of evaluate.py, to the whole piece of the prompt.
    """
    prompt, new = continuation.prompt, continuation.new_score
    last_onset = max((int(t.notes["onset"].max(initial=0)) for t in written.tracks), default=0)
    entry: dict[str, Any] = {
        "prompt": prompt.name,
        "sample": continuation.sample,
        "tokens": len(continuation.tokens),
        "new tokens": continuation.num_new_tokens,
        "new notes": new.num_notes,
        "bars": int(np.searchsorted(written.bar_starts(), last_onset, side="right")),
    }
    if prompt.end_time:
        summary = prompt.summary
        entry["notes in the model input"] = f"{summary.notes_kept:,} of {summary.notes_read:,}"
    if prompt.score.num_notes:
        for profile, name in SIMILARITIES.items():
            similarity = style_similarity(new, prompt.piece, profile)
            if not np.isnan(similarity):
                entry[name] = similarity
    return entry


def report_title(continuations: list[Continuation]) -> str:
    """Return a title that says what was continued: the prompts' names, or their number."""
    names = list(dict.fromkeys(without_suffix(c.prompt.name) for c in continuations))
    if names == [FROM_NOTHING]:
        return f"{pluralize(len(continuations), 'pieces')} {FROM_NOTHING}"
    kind = "continuations" if any(c.prompt.end_tick for c in continuations) else "versions"
    count = pluralize(len(continuations), kind)
    originals = " and ".join(names) if len(names) <= 2 else f"{len(names)} pieces"
    return f"{count} of {originals}"


def cut_short(model: MusicModel, bars: int | None, continuations: list[Continuation]) -> str:
    """Return a line about pieces that ended at the model's last position; empty without any."""
    position = model.model.position
    cut = [c for c in continuations if len(c.tokens) == position.max_length]
    if bars is None or not cut:
        return ""
    return (
        f"{pluralize(len(cut), 'pieces')} cut short of bars={bars} at "
        f"{position.max_length:,} tokens, the limit of this model's positional encoding "
        f"(position={position.name})"
    )
