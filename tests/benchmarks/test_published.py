"""The published figures: their commands compose, and are found again among runs."""

import csv
import os
import shlex
from itertools import combinations

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from benchmarks import published
from benchmarks.published import Figure, as_text, find_runs, treatments
from musicgen.files import read_csv
from musicgen.models import check_compatible

ROWS = read_csv(published.PUBLISHED)
TREATMENTS = sorted({group[0].overrides for row in ROWS for group in treatments(row["command"])})


def settings_and_pairs(overrides):
    """Return the settings of a command, and the pairs of those that concern the model."""
    model = [x for x in overrides if x.startswith(("position", "attention", "span", "model."))]
    return {*overrides, *combinations(model, 2)}


def covering(commands):
    """Return the fewest commands, about, in which every setting and every pair occurs."""
    chosen, left = [], {x for overrides in commands for x in settings_and_pairs(overrides)}
    while left:
        chosen.append(
            max(commands, key=lambda overrides: len(left & settings_and_pairs(overrides)))
        )
        left -= settings_and_pairs(chosen[-1])
    return chosen


EVALUATIONS = {
    part.removeprefix("python evaluate.py ")
    for row in ROWS
    for part in row["command"].split(" && ")
    if part.startswith("python evaluate.py ")
}


def test_sweeps_are_expanded():
    command = "python train.py -m a=x seed=1,2 'b=[1,2]' && python evaluate.py metrics=style"
    assert treatments(command) == [[(("a=x", "b=[1,2]"), 1), (("a=x", "b=[1,2]"), 2)]]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", covering(TREATMENTS), ids=lambda x: " ".join(x)[:150])
def test_every_training_composes(config, overrides):
    cfg = config("train", *overrides)
    parts = (
        instantiate(part) for part in (cfg.model.position, cfg.model.attention, cfg.model.span)
    )
    check_compatible(*parts, causal=cfg.model.causal)
    for section in ("optimizer", "scheduler", "task"):
        instantiate(cfg[section])


@pytest.mark.parametrize("arguments", EVALUATIONS)
def test_every_evaluation_composes(config, arguments):
    assert config("evaluate", *(x for x in shlex.split(arguments) if "=" in x))


def test_each_figure_stands_once_and_the_thesis_has_its_seeds():
    tables = {}
    for row in ROWS:
        tables.setdefault((row["paper"], row["table"]), []).append(row)
    for row in tables["alfons2022", "5"]:
        seeds = {job.seed for group in treatments(row["command"]) for job in group}
        assert seeds == {9188, 2755, 361, 1321, 833}
    for key, rows in tables.items():  # no figure twice
        assert len({(r["row"], r["task"], r["metric"]) for r in rows}) == len(rows), key


def make_run(folder, job, **columns):
    """Write what a finished run of a job leaves."""
    folder.mkdir(parents=True)
    cfg = job.compose()
    OmegaConf.update(cfg, "paths.output_dir", str(folder))
    OmegaConf.update(cfg, "data.root", "/elsewhere")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["step", *columns])
        writer.writeheader()
        for values in zip(*columns.values(), strict=True):
            step = cfg.trainer.max_steps - 1
            writer.writerow({"step": step, **dict(zip(columns, values, strict=True))})


def rows_of(paper, table, **wanted):
    chosen = {"paper": paper, "table": table, **wanted}
    return [row for row in ROWS if chosen.items() <= row.items()]


def ours(rows, tmp_path):
    lines, missing = published.compare(rows, find_runs(tmp_path), tmp_path)
    return {(line["row"], line["metric"]): line for line in lines}, missing


def test_runs_are_found_by_their_configuration(tmp_path):
    (row,) = rows_of("spe2021", "1", row="Linear Transformer-ReLU, sineSPE", task="ListOps")
    ((first, second, third),) = treatments(row["command"])
    for job, accuracy in ((first, 0.18), (second, 0.2)):
        make_run(tmp_path / f"right{job.seed}", job, **{"test/accuracy": [0.5, accuracy]})
    other = third._replace(overrides=(*third.overrides, "optimizer.lr=1e-5"))
    make_run(tmp_path / "other", other, **{"test/accuracy": [0.9]})
    make_run(tmp_path / "short", third, **{"test/accuracy": [0.9]})
    text = (tmp_path / "short/metrics.csv").read_text().replace("9999", "500")
    (tmp_path / "short/metrics.csv").write_text(text)
    (line,) = ours([row], tmp_path)[0].values()
    assert line["published"] == "17.80 ± 0.00"
    assert line["ours"] == "19.00 ± 1.41"
    assert line["runs"] == "2 of 3"
    (tmp_path / "right1").rename(tmp_path / "moved")  # places do not matter
    lines, missing = ours(rows_of("spe2021", "1", task="ListOps"), tmp_path)
    assert list(lines) == [("Linear Transformer-ReLU, sineSPE", "test accuracy, %")]
    assert len(missing) == 5
    assert row["command"] not in missing


def test_the_newest_run_of_a_job_counts_whatever_its_name(tmp_path):
    (row,) = rows_of("spe2021", "1", row="Linear Transformer-ReLU, sineSPE", task="ListOps")
    ((job, *_),) = treatments(row["command"])
    for name, accuracy, time in (("z_old", 0.1, 1), ("a_new", 0.2, 2)):
        make_run(tmp_path / name, job, **{"test/accuracy": [accuracy]})
        os.utime(tmp_path / name / "metrics.csv", (time, time))
    (line,) = ours([row], tmp_path)[0].values()
    assert (line["ours"], line["runs"]) == ("20.00", "1 of 3")


def test_figures_are_shown_with_four_digits():
    assert as_text(Figure(0.74931, 0.01065)) == "0.7493 ± 0.0106"
    assert as_text(Figure(19982858)) == "19,982,858"
    assert as_text(Figure(float("nan"))) == "n/a"
