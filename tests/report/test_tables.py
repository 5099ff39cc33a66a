import csv
import io
import json
import math

from rich.console import Console

from musicgen.report.tables import as_table, write_csv, write_json, write_latex

ROWS = [
    {"piece": "a,b [x].mid", "loss": 1.25},
    {"piece": 'Señor "é".mid', "loss": math.nan, "n": 3},
]


def test_csv_round_trip(tmp_path):
    path = tmp_path / "new folder" / "table.csv"
    write_csv(ROWS, path)
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"piece": "a,b [x].mid", "loss": "1.25", "n": ""},
            {"piece": 'Señor "é".mid', "loss": "", "n": "3"},
        ]
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_latex_by_hand(tmp_path):
    rows = [{"run": "a_b, 95%", "loss": 1.23456}, {"run": "c", "n": 3}, {"run": "d", "loss": -1e-9}]
    write_latex(rows, tmp_path / "t.tex")
    assert (tmp_path / "t.tex").read_text().splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"run & loss & n \\",
        r"\midrule",
        r"a\_b, 95\% & 1.235 & n/a \\",
        r"c & n/a & 3 \\",
        r"d & 0.000 & n/a \\",  # without a sign
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_json_has_null_for_missing_values(tmp_path):
    write_json({"rows": ROWS, "curve": [1.0, math.nan]}, tmp_path / "t.json")
    content = json.loads((tmp_path / "t.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert content == {"rows": [ROWS[0], {**ROWS[1], "loss": None}], "curve": [1.0, None]}


def test_table_shows_every_cell():
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(as_table([*ROWS, {"piece": "zero", "loss": -1e-9}], "losses"))
    lines = capture.get().splitlines()
    assert any("a,b [x].mid" in line and "1.2500" in line and "n/a" in line for line in lines)
    assert any("Señor" in line and "n/a" in line and "3" in line for line in lines)
    assert any("zero" in line and " 0.0000 " in line for line in lines)  # without a sign
