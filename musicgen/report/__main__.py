"""Show folders of generate.py on one page: python -m musicgen.report PAGE.html FOLDER FOLDER ..."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

from musicgen.files import write_text
from musicgen.midi import read
from musicgen.report.html import ReportPiece, render_report


def pieces_of(folder: Path, page: Path) -> Iterator[ReportPiece]:
    """Yield the pieces that generate.py wrote to a folder, as the page shows them."""
    manifest = folder / "generation.json"
    if not manifest.is_file():
        raise SystemExit(f"{folder}: no generation.json; give folders that generate.py has written")
    content = json.loads(manifest.read_text(encoding="utf-8"))
    for row in content["pieces"]:
        file = folder / row["file"]
        yield ReportPiece(
            title=f"{file.stem} ({folder.name})",
            score=read(file),
            prompt_end=row["prompt end"],
            midi_file=os.path.relpath(file, page.parent),
            metadata=content["settings"],
        )


def main(page: Path, folders: list[Path]) -> None:
    """Write a page with the pieces of all folders; those of one prompt stand together."""
    pieces = [piece for folder in folders for piece in pieces_of(folder, page)]
    pieces.sort(key=lambda piece: piece.title)
    names = " and ".join(folder.name for folder in folders)
    write_text(page, render_report(title=f"Pieces of {names}", pieces=pieces, metadata={}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m musicgen.report", description=__doc__)
    parser.add_argument("page", type=Path, help="the HTML file to write")
    parser.add_argument("folders", type=Path, nargs="+", help="of generate.py")
    main(**vars(parser.parse_args()))
