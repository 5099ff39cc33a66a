"""Blind comparison: a page on which listeners vote between folders of continuations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from musicgen.errors import ParameterError, UserError
from musicgen.evaluation.measure import Inputs, Measure, Row
from musicgen.evaluation.references import MANIFEST, read_manifest
from musicgen.files import write_text
from musicgen.midi import read, without_suffix
from musicgen.report import render_blind


@dataclass(frozen=True)
class Blind(Measure):
    """Write `blind.html`; the rows are the prompts and samples that all folders have."""

    name = "blind"
    legend = "open blind.html to compare them by ear: it collects votes and shows their result"

    def compute(self, inputs: Inputs, out: Path) -> list[Row]:
        folders = inputs.compare or []
        if len(set(folders)) < max(2, len(folders)):
            raise ParameterError("compare", folders, "expected different folders: [DIR1,DIR2]")
        runs = [_read_run(Path(folder).expanduser()) for folder in folders]
        keys = [key for key in runs[0] if all(key in run for run in runs)]
        if not keys:
            raise UserError(
                f"compare=[{', '.join(folders)}]: no prompt that all continue; "
                "generate with the same prompts"
            )
        trials = []
        for key in keys:
            versions = [(read(file), end) for file, end in (run[key] for run in runs)]
            trials.append((without_suffix(key[0]), versions))
        title = f"Blind comparison of {len(runs)} runs"
        write_text(out / "blind.html", render_blind(title=title, runs=folders, trials=trials))
        return [{"prompt": prompt, "sample": sample, "runs": len(runs)} for prompt, sample in keys]


def _read_run(folder: Path) -> dict[tuple[str, int], tuple[Path, int]]:
    """Return the files and the ends of prompts, by prompt and sample."""
    if not (folder / MANIFEST).is_file():
        raise UserError(f"compare: {folder}: no {MANIFEST}; give folders that generate.py wrote")
    return {
        (row.get("prompt", file), row.get("sample", 0)): (folder / file, row.get("prompt end", 0))
        for file, row in read_manifest(folder).pieces.items()
    }
