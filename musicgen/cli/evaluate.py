"""Evaluate models and music: python evaluate.py RUN, or generated=DIR references=DIR."""

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.output import output_folder, set_up_cpu
from musicgen.console import log, stdout
from musicgen.errors import ParameterError
from musicgen.evaluation.references import default_measure
from musicgen.evaluation.runs import Inputs
from musicgen.metrics.intervals import CONFIDENCE
from musicgen.report.tables import TableRow, as_table, as_tsv, readable, summarise, write_csv
from musicgen.validation import check_choice


def main(cfg: DictConfig) -> None:
    """Compute each measure, print its table, and write it to the folder `out`."""
    set_up_cpu()
    given: Any = OmegaConf.to_container(cfg, resolve=True)
    inputs = read_inputs(given)
    names = given["metrics"] or default_measure(inputs)
    names = names if isinstance(names, list) else [names]
    for name in names:
        check_choice("metrics", name, given["metric"])
        if not isinstance(given["metric"][name], dict):
            raise ParameterError(f"metric.{name}", None, "expected its settings; leave it out")
    with output_folder(cfg.out, "evaluated") as out:
        for name in names:
            rows = run_measure(name, given["metric"][name], inputs, out)
            if stdout.is_terminal:
                stdout.print(as_table(readable(rows), title=name))
            else:  # into a pipe or file
                stdout.file.write(as_tsv(rows, name))
        if stdout.is_terminal:
            intervals = f"{CONFIDENCE:.0%} intervals over pieces or draws"
            legend = f"n: number of pieces; in brackets: {intervals}"
            stdout.print(legend, highlight=False, soft_wrap=True)
    log(f"in {out}")


def run_measure(name: str, settings: dict[str, Any], inputs: Inputs, out: Path) -> list[TableRow]:
    """Compute a measure, write its table as NAME.csv, and return the table.

    Rows with the columns `piece` and `value` are written as NAME_pieces.csv, and summarised.
    """
    measure: partial[list[TableRow]] = instantiate(settings, _convert_="all")
    try:
        rows = measure(inputs, out)
    except ParameterError as error:
        if error.name not in measure.keywords:
            raise
        raise ParameterError(f"metric.{name}.{error.name}", error.value, error.expected) from None
    table = summarise(rows)
    if table != rows:
        write_csv(rows, out / f"{name}_pieces.csv")
    write_csv(table, out / f"{name}.csv")
    return table


def read_inputs(given: dict[str, Any]) -> Inputs:
    """Return the settings that all measures share, from a configuration as plain data."""
    names = [each.name for each in fields(Inputs) if each.name != "root"]
    return Inputs(**{name: given[name] for name in names}, root=given["data"]["root"])
