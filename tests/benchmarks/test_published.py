"""The published figures: their commands compose, and are found again among runs."""

from __future__ import annotations

import csv
import json
import os
import shlex

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy import stats

from benchmarks import published
from benchmarks.published import Figure, as_text, find_runs, treatments
from musicgen.files import read_csv
from musicgen.models import check_compatible

ROWS = read_csv(published.PUBLISHED)
TREATMENTS = sorted({group[0].overrides for row in ROWS for group in treatments(row["command"])})
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
@pytest.mark.parametrize("overrides", TREATMENTS, ids=lambda x: " ".join(x)[:150])
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


def test_the_rows_are_those_of_the_papers_tables():
    tables = {}
    for row in ROWS:
        tables.setdefault((row["paper"], row["table"]), []).append(row)
    counts = {key: len(rows) for key, rows in tables.items()}
    assert counts == {
        ("spe2021", "1"): 6 * 4,
        ("spe2021", "3"): 2 * 3 * 4,  # for both kernels
        ("spe2021", "4"): 6 * 4,
        ("spe2021", "5"): 5 * 3,
        ("spe2021", "6"): 5 * 2,
        ("spe2021", "C.2"): 3 * 2,
        ("lrpe2023", "1"): 7,
        ("lrpe2023", "2"): 8 * 2,
        ("lrpe2023", "4"): 6 * 6,
        ("lrpe2023", "5"): 3 * 3,
        ("lrpe2023", "6"): 7,
        ("alfons2022", "5"): 2 * 3 + 2,
        ("alfons2022", "6"): 2 * (2 * 3 + 2),
        ("alfons2022", "7"): 2 * (2 * 3 + 2),
    }
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
    os.utime(tmp_path / "moved")
    lines, missing = ours(rows_of("spe2021", "1", task="ListOps"), tmp_path)
    assert list(lines) == [("Linear Transformer-ReLU, sineSPE", "test accuracy, %")]
    assert len(missing) == 5
    assert row["command"] not in missing


def test_welchs_test_of_the_thesis(tmp_path):
    rows = rows_of("alfons2022", "5")
    baseline, siren = treatments(rows[-1]["command"])
    scores = [0.75, 0.76, 0.74, 0.75, 0.76], [0.72, 0.75, 0.70, 0.71, 0.74]
    for group, values in zip((baseline, siren), scores, strict=True):
        for job, value in zip(group, values, strict=True):
            folder = tmp_path / f"{job.overrides[-1]}-{job.seed}"
            make_run(folder, job, **{"val/accuracy": [value, value - 0.1]})
    lines, missing = ours(rows, tmp_path)
    assert not missing
    name = "SIREN against Transformer-XL"
    p = stats.ttest_ind(scores[1], scores[0], equal_var=False).pvalue
    assert float(lines[name, "p-value"]["ours"]) == pytest.approx(p, abs=1e-4)
    assert lines[name, "effect"]["ours"] == "-0.0280"
    assert lines["SIREN", "validation accuracy, max"]["ours"] == "0.7500"
    assert lines["SIREN", "validation accuracy, standard deviation"]["ours"] == "0.0207"
    assert lines[name, "p-value"]["runs"] == "10 of 10"


def test_losses_come_from_evaluations(tmp_path):
    rows = rows_of("spe2021", "6", row="convSPE") + rows_of("spe2021", "5", row="convSPE")
    ((job,),) = treatments(rows[0]["command"])
    columns = {"val/loss": [2, 1], "train/hours": [1, 2], "train/gigabytes": [3, 4]}
    make_run(tmp_path / "run", job, epoch=[0, 1], **columns)
    checkpoint = str(tmp_path / "run/checkpoints/best.ckpt")
    loss = {"part": "trained", "mean": 1.75, "std": 0.125}
    runs = [{"checkpoint": checkpoint, "rows": [loss]}]
    (tmp_path / "position_loss.json").write_text(json.dumps({"runs": runs}))
    lines, missing = ours(rows, tmp_path)
    found = {metric: line["ours"] for (_, metric), line in lines.items()}
    assert found == {
        "cross-entropy, trained": "1.7500 ± 0.1250",
        "epochs": "2.0000",
        "hours": "2.0000",
        "GB": "4.0000",
    }
    assert len(missing) == 1  # of the figure that was not computed


def test_parameters_need_no_run(tmp_path):
    rows = rows_of("spe2021", "3", task="Image")
    lines, missing = ours(rows, tmp_path)
    assert not missing
    assert all(line["ours"] == line["published"] for line in lines.values())
    assert len(lines) == 6


@pytest.mark.slow
def test_the_command_prints_tables_and_what_is_missing(tmp_path, monkeypatch, capsys):
    arguments = [f"--outputs={tmp_path}", f"--evaluated={tmp_path}", f"--csv={tmp_path}/table.csv"]
    monkeypatch.setattr("sys.argv", ["published", "lrpe2023", *arguments])
    (row,) = rows_of("lrpe2023", "2", row="RoPE", metric="test perplexity")
    make_run(tmp_path / "run", treatments(row["command"])[0][0], **{"test/perplexity": [30]})
    published.main()
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("lrpe2023, table 2", "33.15 ± 0.22", "30.00"))
    total = len({row["command"] for row in ROWS if row["paper"] == "lrpe2023"})
    assert f"not run, {total} of {total} commands:" in shown  # nor the validation of this one
    with (tmp_path / "table.csv").open() as file:
        (line,) = csv.DictReader(file)
    assert (line["published"], line["ours"], line["runs"]) == ("33.15 ± 0.22", "30.00", "1 of 5")


def test_figures_are_shown_with_four_digits():
    assert as_text(Figure(0.74931, 0.01065)) == "0.7493 ± 0.0106"
    assert as_text(Figure(19982858)) == "19,982,858"
    assert as_text(Figure(float("nan"))) == "n/a"
