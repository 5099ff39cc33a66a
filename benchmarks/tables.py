"""Write the tables of measured figures into the pages: python -m benchmarks.tables

A table is the part of a page between `<!-- table KIND ... -->` and `<!-- end -->`. The comment
lists its lines, as LABEL | RESULT | ENTRY or as the docstring of the function KIND says. The
figures come from benchmarks/results/, where they are not rounded.
"""

import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS
from musicgen.files import read_csv, write_text
from musicgen.text import markdown

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "benchmarks/*.md", "docs/*.md", "musicgen/pretrained/*/*.md")
TABLE = re.compile(r"(<!-- table (\w+)(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
CORPORA = {"composer": "composed corpus", "pop909": "POP909"}
ATTENTIONS = {"favor": "FAVOR+", "favor, decay=head": "FAVOR+, learned decay", "softmax": "softmax"}

Row = dict[str, Any]


def main() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            write_text(page, new)
            print(page.relative_to(ROOT))


def pages() -> list[Path]:
    return [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]


def written(text: str) -> str:
    """Return a page with its tables written anew."""

    def table(found: re.Match[str]) -> str:
        start, kind, arguments, end = found.groups()
        lines = [line.split(" | ") for line in arguments.strip().splitlines()]
        return f"{start}\n{markdown(TABLES[kind](lines))}\n{end}"

    return TABLE.sub(table, text)


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def compared(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | RESULT | SIDES [| UNIT]: two sides, and the range of their ratios over rounds."""
    table = []
    for label, name, what, *unit in lines:
        rows = [row for row in result(name)["rows"] if row["what"] == what]
        row = next(row for row in rows if not unit or row["unit"] == unit[0])
        (a, unit_a), (b, unit_b) = (quantity(row[side], row["unit"]) for side in "ab")
        figures = f"{a} / {b} {unit_b}" if unit_a == unit_b else f"{a} {unit_a} / {b} {unit_b}"
        target = row.get("target", "").strip("—")
        if is_missed(row["ratio"], target):
            target += ", missed"
        table.append({"": label, "figures": figures, "ratio": ratio(row), "target": target})
    if not any(row["target"] for row in table):
        table = [{k: v for k, v in row.items() if k != "target"} for row in table]
    return table


def is_missed(ratio: float, target: str) -> bool:
    """Return whether a ratio is beyond a target such as "≤ 1.25" or "≥ .95"."""
    relation, _, bound = target.partition(" ")
    above, below = (
        relation == "≤" and ratio > float(bound),
        relation == "≥" and ratio < float(bound),
    )
    return above or below


def ratio(row: Row) -> str:
    ratios = row.get("ratios", [row[x] for x in ("lowest", "highest") if x in row])
    spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else ""
    return (f"{row['ratio']:.2f}" if row["ratio"] < 10 else digits(row["ratio"])) + spread


def quantity(value: float, unit: str) -> tuple[str, str]:
    """Return a quantity for print: ("6.50", "s")."""
    if unit == "tokens/s":
        return digits(value / 1e6), "M/s"
    if unit.split()[0] not in ("s", "seconds", "CPU"):
        return digits(value), unit
    for name, start, seconds in (("h", 3600, 3600), ("min", 60, 60), ("s", 0.1, 1)):
        if value >= start:
            return digits(value / seconds), name
    return digits(value * 1000), "ms"


def digits(value: float) -> str:
    """Return a number with three digits, or all of those before the point."""
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, places)}f}"


def composing_pages(_: object) -> list[Row]:
    return [
        {
            "page of": f"`{name}`",
            "MB": page["megabytes"],
            "logits differ by": f"{page['largest difference of a logit']:.0e}",
            "tokens a second": page["tokens a second"],
            "memory of node": "{} MB; after {:,} tokens {}".format(
                page["megabytes of node after 500 tokens and after all"][0],
                page["tokens"],
                page["megabytes of node after 500 tokens and after all"][1],
            ),
        }
        for name, page in result("page").items()
    ]


def exact_spe(_: object) -> list[Row]:
    table: dict[str, Row] = {}
    for row in result("exact_spe")["rows"]:
        sides, _, deviation = row["what"].partition(", logits of standard deviation ")
        line = table.setdefault(deviation, {"standard deviation of the logits": deviation})
        line.pop("exact", None)  # the last column
        for side, value in zip(sides.split(" / "), (row["a"], row["b"]), strict=True):
            line[side] = f"{value:.3f}"
    return list(table.values())


def interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.3f} ({low:.3f} to {high:.3f})".replace("-", "−")


def over_seeds(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def race(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | RESULT | ENTRY: losses by range of positions over seeds; the least is bold."""
    table: list[Row] = []
    means: list[dict[str, float]] = []
    for label, name, entry in lines:
        runs = [run for run in result(name)["runs"] if run["entry"] == entry]
        losses = {key: [run[key] for run in runs] for key in runs[0] if "–" in key or "≤" in key}
        means.append({key: statistics.mean(values) for key, values in losses.items()})
        table.append({"": label} | {key: over_seeds(values) for key, values in losses.items()})
    for key in means[0]:
        best = min(range(len(table)), key=lambda i: means[i][key])
        table[best][key] = f"**{table[best][key]}**"
    return table


def encodings(corpus: str) -> dict[tuple[str, str], str]:
    """Return losses by attention and entry: within the training length / at four times it."""
    found = {}
    for row in read_csv(RESULTS / "race" / corpus / "race.csv"):
        parts = []
        for column in ("trained", "4×"):
            deviation = row[f"{column} seed_std"]
            more = f" ± {float(deviation):.3f}" if deviation else ""
            parts.append(f"{float(row[column]):.3f}{more}")
        found[row["attention"], row["entry"]] = " / ".join(parts)
    return found


def every_encoding(lines: Sequence[Sequence[str]]) -> list[Row]:
    """CORPUS: all encodings."""
    ((corpus,),) = lines
    losses = encodings(corpus)
    return [
        {CORPORA[corpus]: f"`{entry}`"}
        | {label: losses.get((key, entry), "—") for key, label in ATTENTIONS.items()}
        for entry in sorted({entry for _, entry in losses})
    ]


def yardstick(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | ROW: nats per note on the chorales by one model, or a cited figure."""
    rows = result("jsb_best")["rows"]
    table = []
    for label, name in lines:
        found = rows.get(f"{name}, one pass")
        value = interval(found["nats per note"], found["low"], found["high"]) if found else name
        table.append({"": label, "nats per note": value})  # a name without a row is a cited figure
    return table


def card(lines: Sequence[Sequence[str]]) -> list[Row]:
    """Measures of a model's music, each followed by the same measure of the originals.

    The lines are TITLE | RESULT, then `column | WHICH | NAME | ORIGINALS [| UNRELATED]` for each
    column, then LABEL | MEASURE [| WHICH]. WHICH are values that the rows of a column have.
    """
    (title, name), *lines = lines
    columns = [line[1:] for line in lines if line[0] == "column"]
    table = []
    for label, measure, *other in (line for line in lines if line[0] != "column"):
        line = {title: label}
        for which, column, *compared_with in columns:
            values = {measure, *(other or which.split(", "))}
            row = next(x for x in result(name)["rows"] if values <= {*map(str, x.values())})
            line[column] = with_interval(row)
            for heading, side in zip(compared_with, ("originals", "unrelated"), strict=False):
                line[heading] = "" if row.get(side) is None else f"{row[side]:.3g}"
        table.append(line)
    return table


def with_interval(row: Row) -> str:
    """Return the value of a row for print, and its interval if it has one."""
    value = f"{row['generated']:.3g}"
    if row["low"] is None or row["high"] is None:
        return value
    low, high = f"{row['low']:.3g}", f"{row['high']:.3g}"
    return value if low == high else f"{value} ({low} to {high})"


def performances(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | CORPUS | WAY: differences of a way of playing from the original's."""
    columns = {
        "velocities": "velocity",
        "by beat": "velocity by beat",
        "deviations": "deviation",
        "by sixteenth": "deviation by sixteenth",
        "articulation": "articulation",
    }
    return [
        {"": label}
        | {
            title: digits(result("performance")[corpus][way][name])
            for title, name in columns.items()
        }
        for label, corpus, way in lines
    ]


def kinds_of_music(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | KIND [| now]: measures of continuations before → now, and of the originals.

    Before is left out where it was on another grid than the originals.
    """
    found = result("kinds")["kinds"]
    table = []
    for label, kind, *only in lines:
        before, now = (found[kind][way]["generated"] for way in ("before", "now"))
        own = found[kind]["now"]["originals"]
        cells = {
            name: ("" if only else f"{two_digits(before[name])} → ")
            + f"{two_digits(now[name])} ({two_digits(own[name])})"
            for name in own
            if own[name] is not None
        }
        table.append({"before → now (originals)": label} | cells)
    columns = max(table, key=len)
    return [{name: line.get(name, "") for name in columns} for line in table]


def tunes(lines: Sequence[Sequence[str]]) -> list[Row]:
    """MEASURE | …, then LABEL | KIND: of continuations, of the originals and of their last bars."""
    measures, *lines = lines
    table = []
    for label, kind in lines:
        found = result("tunes")["kinds"][kind]["all"]
        sides = [found[side] for side in ("generated", "originals", "last bars")]
        line = {"generated (originals)": f"{label} ({found['pieces']})"}
        for name in measures:
            values = [side[name] for side in sides if name in side]
            new, *own = ("–" if value is None else two_digits(value) for value in values)
            line[name.replace("_", " ")] = f"{new} ({'; '.join(own)})"
        table.append(line)
    return table


def ten_endings(_: object) -> list[Row]:
    """Return the ends of ten continued songs, as notes, and those of the originals."""
    table = []
    for row in result("ten_endings")["rows"]:
        new, own = row["generated"], row["original"]
        other_key = "" if new["key"] == own["key"] else f", in {own['key']}"
        table.append(
            {
                "song": row["song"],
                "key": new["key"],
                "last harmonies": "–".join(new["harmonies"]),
                "bass": "–".join(new["bass"]),
                "top part, quarters": ", ".join(f"{name} {x:g}" for name, x in new["top"]),
                "last note": f"{new['last note']:g}",
                "V or vii to I": "yes" if new["dominant to tonic"] else "no",
                "original's harmonies": "–".join(own["harmonies"]) + other_key,
                "its V or vii to I": "yes" if own["dominant to tonic"] else "no",
                "its last note on top": "{} {:g}".format(*own["top"][-1]),
            }
        )
    return table


def keys(_: object) -> list[Row]:
    """New pieces in keys that are asked for, and original ones."""
    names = "in its mode", "in_scale", "dominant_tonic", "tonic_harmony", "picardy", "last_note"
    table = []
    for row in result("keys")["rows"]:
        line = {"": f"{row['pieces']}, {row['mode']} ({row['n']})"}
        for name in names:
            line[name.replace("_", " ")] = "–" if row[name] is None else two_digits(row[name])
        table.append(line)
    return table


def step_bytes(_: object) -> list[Row]:
    """Bytes of a layer's training step, in activations."""
    return [
        {name: str(value) for name, value in row.items()} for row in result("step_bytes")["rows"]
    ]


def two_digits(value: float) -> str:
    """Return a number with two digits behind the point, or with one from 10 on."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


KINDS = (
    *(compared, composing_pages, exact_spe, race, every_encoding, yardstick, card),
    *(performances, kinds_of_music, tunes, ten_endings, keys, step_bytes),
)
TABLES = {kind.__name__: kind for kind in KINDS}


if __name__ == "__main__":
    main()
