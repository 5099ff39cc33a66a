"""Notebooks run from top to bottom, and are committed without their results."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path):
    _, cells = read(path)
    for cell in cells:
        assert cell.outputs == []
        assert cell.execution_count is None
        assert cell.metadata == {}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path):
    notebook, cells = read(path)
    # From the root, so that it is this copy of the package that is imported.
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": ROOT}}).execute()
    for cell in cells:
        draws = "plt.subplots" in cell.source
        images = [out for out in cell.outputs if "image/png" in out.get("data", {})]
        assert len(images) == draws
        assert ("print(" in cell.source) == any(out.get("name") == "stdout" for out in cell.outputs)
        assert not any(out.get("name") == "stderr" for out in cell.outputs), cell.outputs
