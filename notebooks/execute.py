"""Execute the notebooks and store them with small outputs: python notebooks/execute.py."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
NUM_COLOURS = 64  # of stored pictures, for their size


def execute(notebook: NotebookNode, timeout: int = 300) -> None:
    """Execute a notebook in place, from the root, so that this copy of the package is imported."""
    client = NotebookClient(
        notebook, timeout=timeout, resources={"metadata": {"path": FOLDER.parent}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times of execution
    notebook.metadata.language_info = {"name": "python"}  # without the version


def shrink(picture: str) -> str:
    """Return a base64 PNG with fewer colours."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    small = io.BytesIO()
    image.quantize(NUM_COLOURS).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def main() -> None:
    for path in sorted(FOLDER.rglob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        execute(notebook)
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = shrink(output.data["image/png"])
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
