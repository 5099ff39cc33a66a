import csv
from dataclasses import replace

from musicgen.data.preparation.encoding import PieceRecord
from musicgen.data.preparation.summary import summarise, write_table
from musicgen.tokenization.base import EncodingSummary

RECORDS = [
    PieceRecord("a.mid", "1", num_tokens=100, num_bars=4, encoding=EncodingSummary(
        30, 28, {"notes doubling another": 2}, {"notes longer than 4 beats": 1},
        ["2 notes without an end closed", "3/4 read as 4/4"])),
    PieceRecord("b.mid", "2", skipped="cut short: a track ends 5 bytes past the end"),
    PieceRecord("c.mid", "3", num_tokens=300, num_bars=10, encoding=EncodingSummary(
        90, 90, rules=["7 notes without an end closed"])),
    PieceRecord("d.mid", "4", skipped="cut short: a track ends 1,234 bytes past the end"),
    PieceRecord("e.mid", "5", skipped="x e.mid: took longer than 0.5 s"),
    PieceRecord("f.mid", "6", num_tokens=200, num_bars=2, encoding=EncodingSummary(
        50, 45, {"notes of drums": 4, "notes doubling another": 1})),
]  # fmt: skip
SPLITS = ["train", "", "test", "", "", "train"]
ORIGINALS = ["", "", "", "", "", "a.mid"]


def summary(records=RECORDS, splits=SPLITS, originals=ORIGINALS):
    return summarise(records, splits, originals).splitlines()


def test_the_summary_adds_up():
    lines = summary()
    assert lines[0] == "3 pieces (2 train, 0 val, 1 test), 600 tokens in 16 bars"
    assert lines[1] == "a piece: 200 tokens (median), 100 to 300; a bar: 30"
    assert lines[2] == (
        "163 of 170 notes kept: 4 notes of drums dropped, 3 notes doubling another dropped, "
        "1 note longer than 4 beats clipped"
    )
    assert lines[3:] == [
        "rules:",
        "  2 × … notes without an end closed",
        "  1 × 3/4 read as 4/4",
        "duplicates: 1, in the splits of their originals: f.mid = a.mid",
        "left out: 3 of 6 pieces:",
        "  2 × cut short: a track ends … bytes past the end",
        "  1 × x …: took longer than … s",
    ]


def test_nothing_to_report():
    lines = summary(RECORDS[2:3], ["test"], [""])
    assert lines[0] == "1 piece (0 train, 0 val, 1 test), 300 tokens in 10 bars"
    assert lines[2:] == [
        "all 90 notes kept",
        "rules:",
        "  1 × … notes without an end closed",
        "duplicates: none",
    ]
    many = replace(RECORDS[2], encoding=EncodingSummary(20666, 20666))
    assert summary([many], ["train"], [""])[2] == "all 20,666 notes kept"


def test_long_lists_of_reasons_are_truncated():
    records = [RECORDS[0]] + [PieceRecord(f"{i}", str(i), skipped="x" * i) for i in range(1, 20)]
    lines = summary(records, ["train"] + [""] * 19, [""] * 20)
    assert lines[-1] == "  and 7 other kinds; see report.csv"


def test_the_table_has_a_row_per_piece(tmp_path):
    write_table(tmp_path, RECORDS, SPLITS, ORIGINALS)
    with (tmp_path / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["piece"] for row in rows] == [record.name for record in RECORDS]
    assert rows[0] == {
        "piece": "a.mid",
        "kept": "True",
        "split": "train",
        "tokens": "100",
        "bars": "4",
        "tokens_per_bar": "25.0",
        "notes_read": "30",
        "notes_kept": "28",
        "duplicate_of": "",
        "notes": "2 notes doubling another dropped, 1 note longer than 4 beats clipped, "
        "2 notes without an end closed, 3/4 read as 4/4",
    }
    assert rows[5]["duplicate_of"] == "a.mid"
    assert rows[4]["notes"] == "x e.mid: took longer than 0.5 s"
