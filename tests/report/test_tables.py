import csv
import io
import math

from rich.console import Console

from musicgen.report.tables import as_table, write_csv

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


def test_table_shows_every_cell():
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(as_table(ROWS, "losses"))
    lines = capture.get().splitlines()
    assert any("a,b [x].mid" in line and "1.2500" in line and "n/a" in line for line in lines)
    assert any("Señor" in line and "n/a" in line and "3" in line for line in lines)
