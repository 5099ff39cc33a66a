"""Export a run as a folder to publish: python -m musicgen.pretrained RUN FOLDER."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from musicgen import load
from musicgen.console import log
from musicgen.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """Export a checkpoint, and print where it is and its size."""
    parser = argparse.ArgumentParser(prog="python -m musicgen.pretrained", description=__doc__)
    parser.add_argument("run", help="a run's folder (its best), a .ckpt file, latest, or a name")
    parser.add_argument(
        "target",
        type=lambda path: Path(path).expanduser(),
        help="folder for config.json and the other files; of a page, its file",
    )
    parser.add_argument(
        "--format",
        choices=("safetensors", "onnx", "page"),
        default="safetensors",
        help="onnx: docs/export.md; page: one HTML file, docs/page.md",
    )
    options = parser.parse_args(arguments)
    target: Path = options.target
    try:
        model = load(options.run)
        if options.format == "page":
            model.save_page(target)
            hint = "open it in a browser"
        elif options.format == "onnx":
            model.save_onnx(target)
            hint = "its README.md says how to use it"
        else:
            model.save_pretrained(target, dtype="float16")
            hint = f"musicgen.load({str(target)!r}) opens it"
    except UserError as error:
        sys.exit(f"error: {error}")
    files = [target] if target.is_file() else target.iterdir()
    log(f"{target}: {sum(file.stat().st_size for file in files) / 1e6:.1f} MB; {hint}")


if __name__ == "__main__":
    main()
