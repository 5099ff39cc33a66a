"""Notebooks run from top to bottom, and are stored with the results of that, which are small."""

from pathlib import Path

import nbformat
import pytest

from notebooks.execute import execute

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
MAX_BYTES = 200_000


def check_outputs(cells):
    for number, cell in enumerate(cells, 1):
        assert cell.execution_count == number
        draws = "plt.subplots" in cell.source or "\nImage(" in cell.source
        images = [out for out in cell.outputs if "image/png" in out.get("data", {})]
        assert len(images) == draws
        assert ("print(" in cell.source) == any(out.get("name") == "stdout" for out in cell.outputs)
        assert not any(out.get("name") == "stderr" for out in cell.outputs), cell.outputs


def printed(cells):
    return ["".join(out.get("text", "") for out in cell.outputs) for cell in cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_print_what_is_stored(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    check_outputs(cells)
    assert all(cell.metadata == {} for cell in cells)  # no times of execution
    assert path.stat().st_size < MAX_BYTES
    stored = printed(cells)
    for cell in cells:
        cell.outputs = []
    execute(notebook, timeout=120)
    check_outputs(cells)
    assert printed(cells) == stored, "run `python notebooks/execute.py`"


def test_a_run_without_kernels_and_realizations_has_the_other_figures():
    notebook = nbformat.read(ROOT / "notebooks/figures.ipynb", as_version=4)
    first, *cells, style = (cell for cell in notebook.cells if cell.cell_type == "code")
    first.source = first.source.replace("sine_spe", "none").replace("=60", "=2")
    style.source = ""  # slow
    execute(notebook, timeout=120)
    drawn = [any("image/png" in x.get("data", {}) for x in cell.outputs) for cell in cells]
    assert drawn == [True, False, True, False]
