"""The manifest of a folder of generated MIDI files, and the pieces of its report."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from musicgen.evaluation.verdict import TRAINING_MATCH
from musicgen.files import write_text
from musicgen.generation.continuation import Continuation, WrittenFile
from musicgen.generation.kept_prompt import is_chord
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import NEW_PIECE, Prompt
from musicgen.metrics.originality import Match
from musicgen.metrics.style import SIMILARITIES, style_similarity
from musicgen.midi import TICKS_PER_BEAT, Score, without_suffix
from musicgen.report import Kept, ReportPiece
from musicgen.run_folders import MANIFEST
from musicgen.text import pluralize
from musicgen.tokenization.quantization import to_grid

MATCH_SOURCE = "match found in"
"""Place of the longest match with the training set, in the manifest and the report."""

SIMILARITY_MEANINGS = {
    SIMILARITIES["onset_duration"]: "rhythm (where notes begin in a bar, and how long they last)",
    SIMILARITIES["time_pitch"]: "melody and harmony (the interval of two notes, and their lag)",
    SIMILARITIES["onset_velocity"]: "accents (where notes begin in a bar, and how loud they are)",
    SIMILARITIES["onset_drum"]: "drum patterns (which drums are struck where in a bar)",
}
"""What each similarity compares."""

PIECE_MEASURES = (*SIMILARITY_MEANINGS, TRAINING_MATCH, MATCH_SOURCE)
"""The measures that the report shows per piece."""

MAX_STEM_BYTES = 200  # of the name of a file; most file systems allow 255 bytes for all of it


def file_names(prompts: list[Prompt], num_samples: int) -> dict[tuple[Prompt, int], str]:
    """Return a unique file name PROMPT_SAMPLE.mid per prompt and sample."""
    names: dict[tuple[Prompt, int], str] = {}
    used: set[str] = set()
    for prompt in prompts:
        stem = without_suffix(prompt.name.replace("/", "_"))
        if stem == NEW_PIECE:
            stem = stem.replace(" ", "_")
        stem = stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore")
        same = (stem, *(f"{stem}-{number}" for number in range(2, len(prompts) + 1)))
        stem = next(each for each in same if each.lower() not in used)  # of x.mid and x.MID
        used.add(stem.lower())
        for sample in range(num_samples):
            names[prompt, sample] = f"{stem}_{sample}.mid"
    return names


def write_manifest(
    out: Path,
    pieces: dict[str, tuple[Continuation, WrittenFile]],
    settings: dict[str, Any],
    provenance: dict[str, Any],
    notices: list[str],
    matches: Mapping[str, Match] | None = None,
) -> list[ReportPiece]:
    """Write the manifest of a folder; return the pieces of the report.

    Args:
        out: the folder.
        pieces: continuations and their MIDI files, by file name.
        settings: settings of the generation.
        provenance: `tokenizer`, the configuration of the tokenizer, and `references`, the place of
            the prompts. With these, evaluate.py reads the originals as the model does.
        notices: notices about all pieces.
        matches: longest matches with the training set, by file name; None: not searched.
    """
    entries, shown = [], []
    for file, (continuation, written) in pieces.items():
        score, prompt, prompt_end = written.score, continuation.prompt, written.prompt_end
        entry = _manifest_entry(continuation, score)
        marks = []
        if matches:
            match = matches[file]
            entry |= {TRAINING_MATCH: match.num_notes, MATCH_SOURCE: match.description}
            if match.num_notes:
                beats = match.first_beat, match.last_beat
                first, last = (prompt_end + round(x * score.ticks_per_beat) for x in beats)
                marks.append((first, last, f"{match.num_notes} notes as in {match.source}"))
        ends = {"prompt end": prompt_end, "prompt beats": prompt.end.tick / TICKS_PER_BEAT}
        entries.append({"file": file, **ends, **entry})
        audio = Path(file).with_suffix(".wav").name
        shown.append(
            ReportPiece(
                title=_title(continuation),
                score=with_prompt_chords(score, continuation, prompt_end),
                prompt_end=prompt_end,
                midi_file=file,
                metadata={k: value for k, value in entry.items() if k not in PIECE_MEASURES},
                measures={name: entry[name] for name in PIECE_MEASURES if name in entry},
                notices=[prompt.notice] if prompt.notice else [],
                audio_file=audio if (out / audio).exists() else None,
                marks=marks,
                kept=_kept(prompt),
            )
        )
    manifest = {"settings": settings, **provenance, "notices": notices, "pieces": entries}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    return shown


def _goes_on(continuation: Continuation) -> bool:
    """Return whether the new bars go on from others to the end."""
    prompt = continuation.prompt
    return prompt.end.tick > 0 and (prompt.kept is None or prompt.kept.span[1] == np.inf)


def _kept(prompt: Prompt) -> Kept | None:
    """Return what is kept of a whole piece after its prompt."""
    if prompt.kept is None:
        return None
    end = prompt.kept.span[1]
    return Kept(prompt.kept.unchanged, None if end == np.inf else int(end))


def _title(continuation: Continuation) -> str:
    """Return the title of a piece of the report."""
    prompt, number = continuation.prompt, continuation.sample + 1
    if prompt.name == NEW_PIECE:
        return f"{NEW_PIECE} {number}"
    kind = "continuation" if _goes_on(continuation) else "version"
    return f"{without_suffix(prompt.name)}, {kind} {number}"


def with_prompt_chords(score: Score, continuation: Continuation, prompt_end: int) -> Score:
    """Return the score of a file with the chords that the model read over the prompt.

    If the prompt of the file has chords of its own, these stay alone.

    Args:
        prompt_end: the file's tick at which the prompt ends.
    """
    if any(is_chord(marker) and marker.tick < prompt_end for marker in score.markers):
        return score
    end = continuation.prompt.end.tick
    found = []
    for marker in continuation.score.markers:
        before_end = to_grid(np.array(end - marker.tick), score.ticks_per_beat, TICKS_PER_BEAT)
        if is_chord(marker) and 0 < before_end <= prompt_end:
            found.append(marker._replace(tick=prompt_end - int(before_end)))
    return replace(score, markers=sorted([*found, *score.markers]))


def _manifest_entry(continuation: Continuation, written: Score) -> dict[str, Any]:
    """Return the entry of a piece in the manifest.

    Style similarities are to the whole piece of the prompt, as in evaluate.py.

    Args:
        written: the score of the MIDI file.
    """
    prompt, new = continuation.prompt, continuation.new_on_grid
    entry: dict[str, Any] = {
        "prompt": prompt.name,
        "sample": continuation.sample,
        "tokens": len(continuation.tokens),
        "new tokens": continuation.num_new_tokens,
        "new notes": new.num_notes,
        "bars": written.num_bars,
    }
    if prompt.end.step:
        summary = prompt.summary
        entry["notes in the model input"] = f"{summary.notes_kept:,} of {summary.notes_read:,}"
    if prompt.score.num_notes:
        for profile, name in SIMILARITIES.items():
            similarity = style_similarity(new, prompt.piece, profile)
            if not np.isnan(similarity):
                entry[name] = similarity
    return entry


def report_title(continuations: list[Continuation]) -> str:
    """Return the title of a report, with the names of the prompts or their number."""
    names = list(dict.fromkeys(without_suffix(c.prompt.name) for c in continuations))
    if names == [NEW_PIECE]:
        return f"{len(continuations)} {NEW_PIECE}{'s' if len(continuations) > 1 else ''}"
    kind = "continuations" if any(map(_goes_on, continuations)) else "versions"
    count = pluralize(len(continuations), kind)
    originals = " and ".join(names) if len(names) <= 2 else f"{len(names)} pieces"
    return f"{count} of {originals}"


def explain_figures(pieces: list[ReportPiece]) -> str:
    """Return what the similarities of some pieces mean, in two sentences; "" without any."""
    shown = {name for piece in pieces for name in piece.measures}
    meanings = [f"{name}: {what}" for name, what in SIMILARITY_MEANINGS.items() if name in shown]
    if not meanings:
        return ""
    return (
        "The figures below a piece compare its new bars with the whole piece of the prompt. "
        f"{'; '.join(meanings)}. 1 means equal histograms, 0 that nothing is shared. The later "
        "bars of songs have an onset-duration similarity of .86 to their own piece, and of .42 to "
        "an unrelated one."
    )


def cut_short(model: MusicModel, bars: int | None, continuations: list[Continuation]) -> str:
    """Return a notice about pieces that ended at the last position of the model; "": none did."""
    position = model.model.position
    cut = [c for c in continuations if len(c.tokens) == position.max_length]
    if bars is None or not cut:
        return ""
    return (
        f"{pluralize(len(cut), 'pieces')} cut short of bars={bars} at "
        f"{position.max_length:,} tokens, the limit of this model's positional encoding "
        f"(position={position.name})"
    )
