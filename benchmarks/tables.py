"""Write the tables of measured figures into the pages: python -m benchmarks.tables

A table stands in a page between `<!-- table KIND ... -->` and `<!-- end -->`. The comment lists its
lines, as LABEL | RESULT | ENTRY or as the function of that kind says; the figures come from
benchmarks/results/, where they are not rounded. They are rounded here, once.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import RESULTS
from musicgen.files import read_csv, write_text
from musicgen.metrics.position_loss import unit_summary
from musicgen.text import markdown

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "benchmarks/*.md", "docs/*.md")
TABLE = re.compile(r"(<!-- table (\w+)(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
CORPORA = {"composer": "composed corpus", "pop909": "POP909"}
ATTENTIONS = {"favor": "FAVOR+", "favor, decay=head": "FAVOR+, learned decay", "softmax": "softmax"}
RECALLED = {  # parts of a held-out piece, and columns of a table
    "all, 2,048": "to 2,048",
    "all, 4,096": "to 4,096",
    "new bars, 2,048": "new bars",
    "return 8, 2,048": "return 8",
    "return 16, 2,048": "return 16",
    "bars 1–4, 2,048": "bars 1–4",
    "planted 8": "planted",
    "copy 8": "copy 8",
    "copy 16": "copy 16",
    "copy 32": "copy 32",
}
REWRITTEN = {
    "in key": ("written", "original"),
    "chord tones": ("written", "one draft", "original"),
}
TWINS = (58, 74)  # validation chorales that are near training pieces: docs/jsb.md

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
        table.append({"": label, "figures": figures, "ratio": ratio(row), "target": target})
    if not any(row["target"] for row in table):
        table = [{k: v for k, v in row.items() if k != "target"} for row in table]
    return table


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


def model_options(_: object) -> list[Row]:
    rows = result("model_options")["rows"]
    table = []
    for name in dict.fromkeys(row["what"].partition(" / ")[0] for row in rows):
        time, memory = (row for row in rows if row["what"].startswith(f"{name} / "))
        table.append({"": name, "CPU time": ratio(time), "memory": ratio(memory)})
    return table


def wait_policy(_: object) -> list[Row]:
    """Times by policy, with the ratio to threads that spin for libgomp's own rounds."""
    table: dict[str, Row] = {}
    for row in result("wait_policy")["rows"]:
        case, _, policies = row["what"].partition(": ")
        what, size, where = case.split(", ")
        for policy, value in (("spin", row["b"]), (policies.partition(" / ")[0], row["a"])):
            label = f"{size} model, {where}: {policy}"
            share = "" if policy == "spin" else f" ({row['ratio']:.2f})"
            line = table.setdefault(label, {"": label})
            line[what] = " ".join(quantity(value, "s")) + share
    return list(table.values())


ANSWER = "milliseconds from the pause to the answer's first notes"


def composing_pages(_: object) -> list[Row]:
    table = []
    for name, page in result("page").items():
        torch, chromium = page["against torch"], page["chromium"]
        firefox = page.get("firefox", {}).get("tokens a second")  # where it is installed
        (_, first), (tokens, last) = chromium["megabytes of all processes by tokens"].items()
        row = {
            "page of": f"`{name}`",
            "MB": page["megabytes"],
            "logits differ by": f"{torch['largest difference of a logit']:.0e}",
            "tokens a second, Chromium": f"{chromium['tokens a second']:.0f}",
            "Firefox": "" if firefox is None else f"{firefox:.0f}",
            "answers after": f"{chromium[ANSWER]:.0f} ms",
            "memory": f"{first:.0f} MB; after {int(tokens):,} tokens {last:.0f}",
        }
        table.append(row)
    return table


def windows(_: object) -> list[Row]:
    rows = result("windows")["rows"]
    rows = [row for row in rows if row["unit"] == "windows"] + rows[-1:]
    return [{"": row["what"], "share": f"{100 * row['ratio']:.3g}%"} for row in rows]


def scale(_: object) -> list[Row]:
    """CPU times and peak memory by size of a corpus."""
    table = []
    for row in result("scale")["rows"]:
        line = {"files": f"{row['pieces']:,} {row['files']}"}
        for side in ("prepare", "prepare again", "start"):
            found = row[side]
            seconds = found["cpu_seconds"] + found["worker_cpu_seconds"]
            line[side] = f"{' '.join(quantity(seconds, 's'))}, {found['peak_gigabytes']:.2f} GB"
        table.append(line | {"cache": f"{digits(sum(row['megabytes'].values()))} MB"})
    return table


def exact_spe(_: object) -> list[Row]:
    table: dict[str, Row] = {}
    for row in result("exact_spe")["rows"]:
        sides, _, deviation = row["what"].partition(", logits of standard deviation ")
        line = table.setdefault(deviation, {"standard deviation of the logits": deviation})
        line.pop("exact", None)  # the last column
        for side, value in zip(sides.split(" / "), (row["a"], row["b"]), strict=True):
            line[side] = f"{value:.3f}"
    return list(table.values())


def my_music(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | FOLDER: the row of the result."""
    return rows_of("my_music", "folder", lines)


def copying(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | MODEL: the row of the result."""
    return rows_of("copying", "model", lines)


def rows_of(name: str, key: str, lines: Sequence[Sequence[str]]) -> list[Row]:
    rows = {row.pop(key): row for row in result(name)["rows"]}
    return [{"": label, **rows[value]} for label, value in lines]


def rewriting(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | FILES: what became of each request; shares as written, in one draft, in the files."""
    table = []
    for label, files in lines:
        for row in result("rewriting")["rows"]:
            if row["files"] == files:
                line: Row = {"": f"{label}, `{row['request']}`"}
                line["unchanged"] = f"{row['unchanged']} of {row['n']}"
                for column, sides in REWRITTEN.items():
                    shares = [row[f"{side} {column}"] for side in sides]
                    line[column] = " / ".join(f"{x:.2f}" for x in shares if x is not None) or "—"
                table.append(line)
    return table


def infilling(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | FILES: nats a note of true bars in the middle of pieces."""
    rows = {row["files"]: row for row in result("rewriting")["infilling"]}
    return [
        {
            "": label,
            "pieces": rows[files]["n"],
            "after what precedes": f"{rows[files]['known']:.3f}",
            "between both": f"{rows[files]['filled']:.3f}",
            "difference": interval(*(rows[files][name] for name in ("mean", "low", "high"))),
        }
        for label, files in lines
    ]


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


def some_encodings(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | ATTENTION | ENTRY: a few encodings on both corpora."""
    losses = {name: encodings(corpus) for corpus, name in CORPORA.items()}
    return [
        {"": label} | {name: found[attention, entry] for name, found in losses.items()}
        for label, attention, entry in lines
    ]


def chorales(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | ENTRY: nats over notes of all pieces, and without `TWINS`."""
    content = result("race_jsb")
    notes = np.array(content["notes by piece"])
    kept = ~np.isin(np.arange(len(notes)), TWINS)
    nats: dict[str, list[Any]] = {}
    for run in content["runs"]:
        nats.setdefault(run["entry"], []).append(np.array(run["by piece"]) * notes)
    means = {entry: np.mean(runs, axis=0) for entry, runs in nats.items()}
    best = min(means, key=lambda entry: means[entry].sum())
    table = []
    for label, entry in lines:
        difference = (means[entry] - means[best])[:, None]
        more = unit_summary(list(difference), notes.tolist())
        line = {"": label, "nats a note": over_seeds([x.sum() / notes.sum() for x in nats[entry]])}
        line["more than the best"] = (
            "" if entry == best else interval(more.mean, more.low, more.high)
        )
        without = means[entry][kept].sum() / notes[kept].sum()
        table.append(line | {"without the two": f"{without:.3f}"})
    return table


def yardstick(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | ROW: nats a note on the chorales by one model, or a cited figure."""
    rows = result("jsb_best")["rows"]
    table = []
    for label, name in lines:
        found = (rows.get(f"{name}, {way}") for way in ("one pass", "11 keys"))
        cells = [interval(x["nats per note"], x["low"], x["high"]) if x else "" for x in found]
        if not any(cells):
            cells[0] = name  # cited
        table.append({"": label, "one pass": cells[0], "averaged over 11 keys": cells[1]})
    return table


def recall(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | MODEL | rows or continuations: losses by bar, or what 16 new bars measure."""
    content = result("recall")
    return [
        {"": label}
        | {row["part"]: f"{float(row['mean']):.3f}" for row in content[of] if row["model"] == model}
        for label, model, of in lines
    ]


def export(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | MODEL | WEIGHTS: size, logits, loss and music of exported models."""
    found = {(row["model"], row["weights"]): row for row in result("export")["rows"]}
    formats = {
        "MB": "{:.1f}",
        "largest difference of a logit": "{:.1g}",
        "nats a token": "{:.4f}",
        "notes in key": "{:.3f}",
    }
    return [
        {"": label} | {x: text.format(found[model, kind][x]) for x, text in formats.items()}
        for label, model, kind in lines
    ]


def race_recall(lines: Sequence[Sequence[str]]) -> list[Row]:
    """CORPUS | SECONDS, then LABEL | ARM: losses over seeds, after equal CPU time."""
    ((corpus, seconds), *named) = lines
    table = []
    for label, arm in named:
        key = {"arm": arm, "corpus": corpus, "seconds": float(seconds)}
        runs = [row for row in result("race_recall")["rows"] if row.items() >= key.items()]
        cells = {
            name: median_and_range([row[part] for row in runs]) for part, name in RECALLED.items()
        }
        table.append({"": label, "seeds": len(runs), **cells})
    return table


def race_costs(lines: Sequence[Sequence[str]]) -> list[Row]:
    """LABEL | ARM: speed in training and in decoding, and the state of a row."""
    table = []
    for label, name in lines:
        arm = result("race_recall")["arms"][name]
        speed = {"training": arm["tokens a step"] / arm["seconds a step"]}
        speed["decoding"] = 1 / arm["decoding seconds"]
        line = {"": label} | {f"{x}, tokens/s": f"{speed[x]:,.0f}" for x in speed}
        for length in ("2,048", "20,000"):
            line[f"state after {length}"] = f"{arm[f'state bytes after {length}'] / 1e6:.2f} MB"
        table.append(line)
    return table


def median_and_range(values: Sequence[float], form: str = ".2f") -> str:
    if not values:
        return ""
    spread = f" ({min(values):{form}}–{max(values):{form}})" if len(values) > 1 else ""
    return f"{statistics.median(values):{form}}{spread}"


def continuations(model: str, prompts: str, selected: bool = False) -> dict[str, Row]:
    """Return what a model's continuations measure: one of each prompt, or the best of four."""
    key = {"model": model, "prompts": prompts}
    rows = [row for row in result("pretrained")["rows"] if row.items() >= key.items()]
    return {row["measure"]: row for row in rows if bool(row["selection"]) == selected}


def in_key(lines: Sequence[Sequence[str]]) -> list[Row]:
    """MODEL | PARAMETERS | TRAINED ON: models and the share of their notes in the prompt's key."""
    table = []
    for model, parameters, trained in lines:
        row = continuations(model, "composed")["in_key_share"]
        line = {"`checkpoint=`": f"`{model}`", "parameters": parameters, "trained on": trained}
        line["notes in the prompt's key, over 16 bars"] = f"{row['generated']:.1%}"
        table.append(line | {"in the originals": f"{row['originals']:.1%}"})
    return table


def speedrun(lines: Sequence[Sequence[str]]) -> list[Row]:
    """CORPUS: what runs to the corpus's loss took, the median over seeds with the range."""
    ((corpus,),) = lines
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for run in result("speedrun")["runs"]:
        if run["corpus"] == corpus:
            key = *(run[x] for x in ("commit", "loss", "change")), tuple(run["settings"])
            groups.setdefault(key, []).append(run)
    table = []
    for (commit, loss, change, settings), runs in groups.items():
        ended = [run for run in runs if run["steps"] is not None]
        line = {"date": runs[-1]["date"], "commit": commit, "to the loss": loss}
        line["what changed"] = " ".join([change, *(f"`{setting}`" for setting in settings)])
        line["seeds"] = f"{len(ended)} of {len(runs)}"
        columns = {
            "reference steps": (
                [run["CPU seconds"] / run["reference CPU seconds"] for run in ended],
                ".0f",
            ),
            "CPU seconds": ([run["CPU seconds"] for run in ended], ".0f"),
            "seconds": ([run["seconds"] for run in ended], ".0f"),
            "steps": ([run["steps"] for run in ended], ".0f"),
            "thousand tokens": ([run["tokens"] / 1000 for run in ended], ".0f"),
            "ms a reference step": ([1000 * run["reference CPU seconds"] for run in ended], ".0f"),
        }
        table.append(line | {x: median_and_range(*found) for x, found in columns.items()})
    return table


KINDS = (
    export,
    compared,
    model_options,
    wait_policy,
    composing_pages,
    windows,
    exact_spe,
    my_music,
    rewriting,
    infilling,
    copying,
    race,
    recall,
)
KINDS += (every_encoding, some_encodings, chorales, yardstick, in_key, scale)
KINDS += (race_recall, race_costs, speedrun)
TABLES = {kind.__name__: kind for kind in KINDS}


if __name__ == "__main__":
    main()
