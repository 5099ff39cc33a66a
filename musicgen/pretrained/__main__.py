"""Export a run as a folder to publish: python -m musicgen.pretrained RUN FOLDER."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from musicgen import load
from musicgen.checkpoints.card import run_facts
from musicgen.console import log
from musicgen.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """Export a checkpoint, and print the folder and its size."""
    parser = argparse.ArgumentParser(prog="python -m musicgen.pretrained", description=__doc__)
    parser.add_argument("run", help="a run's folder (its best), a .ckpt file, latest, or a name")
    parser.add_argument(
        "folder",
        type=lambda path: Path(path).expanduser(),
        help="where config.json and the other files go; of a page, its file",
    )
    parser.add_argument(
        "--dtype",
        default="float16",
        help="of the stored weights: float32, float16, bfloat16; int8 with --format onnx",
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "onnx", "page"),
        default="safetensors",
        help="onnx: docs/export.md; page: one HTML file, docs/page.md",
    )
    options = parser.parse_args(arguments)
    try:
        model = load(options.run)
        if options.format == "page":
            model.save_page(options.folder)
        else:
            save = model.save_onnx if options.format == "onnx" else model.save_pretrained
            facts = run_facts(model.path, model.content)
            save(options.folder, dtype=options.dtype, facts=facts)
    except UserError as error:
        sys.exit(f"error: {error}")
    if options.format == "page":
        log(f"{options.folder}: {options.folder.stat().st_size / 1e6:.1f} MB; open it in a browser")
        return
    size = sum(path.stat().st_size for path in options.folder.iterdir()) / 1e6
    opens = f"musicgen.load({str(options.folder)!r}) opens it"
    if options.format == "onnx":
        opens = "its README.md, manifest.json and docs/export.md say how to use it"
    log(f"{options.folder}: {size:.1f} MB; {opens}")


if __name__ == "__main__":
    main()
