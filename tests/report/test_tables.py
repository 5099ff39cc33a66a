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
    write_latex([{"run": "a_b, 95%", "loss": 1.23456}, {"run": "c", "n": 3}], tmp_path / "t.tex")
    assert (tmp_path / "t.tex").read_text().splitlines() == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"run & loss & n \\",
        r"\midrule",
        r"a\_b, 95\% & 1.235 & n/a \\",
        r"c & n/a & 3 \\",
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
        console.print(as_table(ROWS, "losses"))
    lines = capture.get().splitlines()
    assert any("a,b [x].mid" in line and "1.2500" in line and "n/a" in line for line in lines)
    assert any("Señor" in line and "n/a" in line and "3" in line for line in lines)


def test_a_value_that_rounds_to_zero_has_no_sign(tmp_path):
    rows = [{"piece": "a", "loss": -1e-9}, {"piece": "b", "loss": -0.25}]
    shown = io.StringIO()
    Console(file=shown, width=80).print(as_table(rows))
    write_latex(rows, tmp_path / "t.tex")
    latex = (tmp_path / "t.tex").read_text()
    assert " 0.0000 " in shown.getvalue()
    assert "-0.2500" in shown.getvalue()
    assert r"a & 0.000 \\" in latex
    assert r"b & -0.250 \\" in latex
    assert "-0.0000" not in shown.getvalue() + latex
