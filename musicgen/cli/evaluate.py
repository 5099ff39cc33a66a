"""Evaluate: python evaluate.py RUN, or generated=DIR references=DIR."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from musicgen.cli.output import find_device, make_folder
from musicgen.cli.threads import set_up_cpu
from musicgen.console import log, stdout
from musicgen.errors import ParameterError, parameter_of
from musicgen.evaluation.measure import Inputs, Measure
from musicgen.files import remove_if_empty
from musicgen.report.tables import as_table, write_csv
from musicgen.validation import check_choice


def main(cfg: DictConfig) -> None:
    """Compute each measure, print its table, and write it as CSV with its plot below `out`."""
    set_up_cpu()
    given: Any = OmegaConf.to_container(cfg, resolve=True)
    measures = [build_measure(name, given["metric"]) for name in _chosen(given)]
    inputs = read_inputs(given)
    out = make_folder(cfg.out, "evaluated")
    with remove_if_empty(out.parent) if cfg.out is None else nullcontext(), remove_if_empty(out):
        for measure in measures:
            rows = measure.compute(inputs, out)
            write_csv(rows, out / f"{measure.name}.csv")
            tables = measure.tables(rows)
            for title, table in tables.items():
                stdout.print(as_table(table, title=title))
            if tables:
                stdout.print(measure.legend, highlight=False, soft_wrap=True)
    log(f"in {out}")


def _chosen(given: dict[str, Any]) -> list[str]:
    """Return the names of the measures that are asked for."""
    names = given["metrics"]
    if names is None:
        music = given["generated"] or given["references"]
        names = "style" if music else "blind" if given["compare"] else "evaluation"
    names = names if isinstance(names, list) else [names]
    if not names:
        raise ParameterError("metrics", "[]", f"expected some of {', '.join(given['metric'])}")
    for name in names:
        check_choice("metrics", name, given["metric"])
    return names


def build_measure(name: str, settings: dict[str, dict[str, Any]]) -> Measure:
    """Build a measure from the section `metric` of the configuration."""
    own = dict(settings[name])
    measure: type[Measure] = get_class(own.pop("_target_"))
    with parameter_of(f"metric.{name}"):
        return measure(**own)


def read_inputs(given: dict[str, Any]) -> Inputs:
    """Return the settings that measures share, of a configuration as plain data."""
    names = ("generated", "references", "compare", "checkpoint", "runs", "split", "max_pieces")
    return Inputs(
        **{name: given[name] for name in names},
        root=given["data"]["root"],
        device=find_device(given["device"]),
        seed=given["seed"],
    )
