import csv
import io
import json
import math

import pytest
from rich.console import Console

from musicgen.files import read_csv, write_json
from musicgen.report.tables import as_table, as_tsv, readable, summarise, without_nan, write_csv

A, B = "a,b [x].mid", 'Señor "é".mid'
ROWS = [{"piece": A, "loss": 1.25}, {"piece": B, "loss": math.nan, "n": 3}]


def test_csv_round_trip(tmp_path):
    path = tmp_path / "new folder" / "table.csv"
    write_csv(ROWS, path)
    cells = ({"piece": A, "loss": "1.25", "n": ""}, {"piece": B, "loss": "", "n": "3"})
    assert read_csv(path) == [*cells]
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_spreadsheets_run_no_names(tmp_path):
    names = ["=HYPERLINK(1)", "+1", "-1", "@x", "a=1", "7"]
    write_csv([{"piece": name, "loss": -1.5} for name in names], tmp_path / "t.csv")
    rows = read_csv(tmp_path / "t.csv")
    assert [row["piece"] for row in rows] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@x", "a=1", "7"]
    assert {row["loss"] for row in rows} == {"-1.5"}


def test_json_has_null_for_missing_values(tmp_path):
    write_json(tmp_path / "t.json", without_nan({"rows": ROWS, "curve": [1.0, math.nan]}))
    content = json.loads((tmp_path / "t.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert content == {"rows": [ROWS[0], {**ROWS[1], "loss": None}], "curve": [1.0, None]}


def test_table_shows_every_cell():
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(as_table([*ROWS, {"piece": "zero", "loss": -1e-9}], "losses"))
        console.print(as_table([{"run": 120 * "w"}]))  # on two lines, nothing is cut
    lines = capture.get().splitlines()
    assert capture.get().count("w") == 120
    assert any("a,b [x].mid" in line and "1.2500" in line and "n/a" in line for line in lines)
    assert any("Señor" in line and "n/a" in line and "3" in line for line in lines)
    assert any("zero" in line and " 0.0000 " in line for line in lines)  # without a sign


def test_a_pipe_gets_every_column_of_every_row():
    rows = [*ROWS, {"piece": 90 * "long "}]
    title, *lines = as_tsv(rows, "losses").splitlines()
    assert title == "# losses"
    found = list(csv.DictReader(lines, delimiter="\t"))
    assert [row["piece"] for row in found] == [row["piece"] for row in rows]
    assert [(row["loss"], row["n"]) for row in found] == [("1.25", ""), ("", "3"), ("", "")]


def test_rows_by_piece_are_summarised_by_all_other_columns():
    values = {("a", "x"): 1.0, ("b", "x"): 3.0, ("a", "y"): math.nan, ("b", "y"): 5.0}
    rows = [{"piece": piece, "part": part, "value": v} for (piece, part), v in values.items()]
    samples = [{"piece": f"b_{v}", "original": "b", "part": "x", "value": v} for v in (2.0, 4.0)]
    assert summarise([rows[0], *samples]) == summarise(rows[:2])  # two of one prompt
    x, y = summarise(rows)
    assert (x["part"], x["n"], x["skipped"], x["mean"]) == ("x", 2, 0, 2.0)
    assert x["std"] == pytest.approx(math.sqrt(2))
    assert (2 - x["low"], x["high"] - 2) == pytest.approx((12.706, 12.706), abs=1e-3)  # t of 1
    assert (y["part"], y["n"], y["skipped"], y["mean"]) == ("y", 1, 1, 5.0)
    assert summarise([x, y]) == [x, y]  # that is a table already


def test_a_terminal_shows_intervals_in_one_column():
    row = {"n": 3, "std": 1.0, "mean": 0.5, "low": 0.25, "high": 12.0, "empty": None}
    row |= {"baseline": "originals"}
    row |= {"baseline_mean": 20.0, "baseline_low": 10.0, "baseline_high": 30.0}
    row |= {"difference": math.nan, "difference_low": math.nan, "difference_high": math.nan}
    assert readable([row]) == [
        {"n": 3, "mean": "0.500 (0.250 to 12.000)", "baseline": "originals"}
        | {"baseline_mean": "20.0 (10.0 to 30.0)"}
    ]
    single = {"difference": 2.0, "low": math.nan, "high": math.nan}
    assert readable([single]) == [{"difference": "2.000"}]
