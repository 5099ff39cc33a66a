"""What a speed run took, from the rows that training logs."""

from __future__ import annotations

import csv

import pytest

from benchmarks.speedrun import RATES, spent

COLUMNS = ["step", "train/tokens", *RATES.values(), "val/loss"]
ROWS = [  # 100 tokens a step; in turn 10 and 5 tokens a second, 20 and 4 of CPU time
    (1, 200, 10, 20, ""),
    (1, "", "", "", 4.0),
    (3, 400, 5, 4, ""),
    (3, "", "", "", 2.0),
    (5, 600, 5, 4, ""),
    (5, "", "", "", 1.0),
]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (3.5, (2.5, 250, 30, 22.5)),  # a quarter of the way from step 2 to step 4
        (2.0, (4, 400, 60, 60)),
        (1.2, (5.6, 560, 92, 100)),
        (5.0, (2, 200, 20, 10)),  # the first validation
        (0.9, (None,) * 4),  # never
    ],
)
def test_steps_tokens_and_seconds_until_a_loss_are_interpolated(tmp_path, loss, expected):
    with (tmp_path / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([COLUMNS, *ROWS])
    found = spent(tmp_path / "metrics.csv", loss)
    assert list(found) == ["steps", "tokens", "seconds", "CPU seconds"]
    assert tuple(found.values()) == pytest.approx(expected)
