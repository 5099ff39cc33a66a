"""Notebooks run from top to bottom, and are stored with the results of that, which are small."""

from copy import copy
from pathlib import Path

import nbformat

from notebooks.execute import execute
from tests.checkpoints.small_model import MODEL, small_model

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


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run_all(notebooks):
    """Execute notebooks in one kernel, which imports torch once and forgets all names between."""
    together = copy(notebooks[0])
    together.cells = []
    for notebook in notebooks:
        forget = nbformat.v4.new_code_cell("%reset -f")
        del forget["id"]  # which the stored cells lack
        together.cells += [forget, *code_cells(notebook)]
    execute(together, timeout=120)
    for notebook in notebooks:
        cells = code_cells(notebook)
        before = cells[0].execution_count - 1
        for cell in cells:
            cell.execution_count -= before


def test_notebooks_run_and_print_what_is_stored():
    notebooks = [nbformat.read(path, as_version=4) for path in NOTEBOOKS]
    stored = []
    for path, notebook in zip(NOTEBOOKS, notebooks, strict=True):
        nbformat.validate(notebook)
        cells = code_cells(notebook)
        check_outputs(cells)
        assert all(cell.metadata == {} for cell in cells)  # no times of execution
        assert path.stat().st_size < MAX_BYTES
        stored.append(printed(cells))
        for cell in cells:
            cell.outputs = []
    run_all(notebooks)
    for notebook, texts in zip(notebooks, stored, strict=True):
        check_outputs(code_cells(notebook))
        assert printed(code_cells(notebook)) == texts, "run `python notebooks/execute.py`"


def test_a_run_without_kernels_and_realizations_has_the_other_figures(tmp_path):
    position = {"_target_": "musicgen.position.NoPosition", "_partial_": True}
    attention = {name: value for name, value in MODEL["attention"].items() if name != "decay"}
    small_model(position=position, attention=attention).save_pretrained(tmp_path)
    notebook = nbformat.read(ROOT / "notebooks/figures.ipynb", as_version=4)
    first, *cells, _ = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    scope, shown = {}, []
    exec(first.replace("RUN = None", f"RUN = {str(tmp_path)!r}"), scope)
    for cell in cells:
        exec(cell, scope)
        shown.append(eval(cell.splitlines()[-1], scope) is not None)
    assert shown == [True, False, True, False]
