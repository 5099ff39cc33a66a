import csv
import io
import math

import numpy as np
import pytest
from rich.console import Console

from musicgen.metrics import Summary, as_table, write_csv


def test_summary_by_hand():
    summary = Summary.of([1.0, math.nan, 2.0, 3.0, 6.0, math.nan])
    assert (summary.n, summary.skipped, summary.mean) == (4, 2, 3.0)
    assert summary.std == pytest.approx(math.sqrt(14 / 3))
    assert summary == Summary.of(iter([1.0, math.nan, 2.0, 3.0, 6.0, math.nan]))


def test_interval_is_that_of_a_normal_mean():
    values = np.random.default_rng(0).normal(5, 2, 400)
    summary = Summary.of(values)
    half = 1.96 * values.std() / math.sqrt(400)
    assert summary.low == pytest.approx(values.mean() - half, abs=0.02)
    assert summary.high == pytest.approx(values.mean() + half, abs=0.02)


def test_few_or_equal_values():
    nothing = Summary.of([math.nan])
    assert (nothing.n, nothing.skipped) == (0, 1)
    assert math.isnan(nothing.mean)
    one = Summary.of([2.0])
    assert (one.n, one.mean) == (1, 2.0)
    assert math.isnan(one.std)
    assert math.isnan(one.low)
    assert Summary.of([2.0, 2.0, 2.0]) == Summary(3, 0, 2.0, 0.0, 2.0, 2.0)


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
