"""The card of a model: README.md beside its weights, in words first, with tables behind a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from musicgen.checkpoints.content import CheckpointContent, class_name
from musicgen.files import read_csv
from musicgen.text import markdown

CARD = "README.md"
WATTS = 10  # of a busy core, assumed
_ORIGINALS = "the originals"
_LICENCES = {  # of corpora, see data/README.md
    "ComposedCorpus": "music of this project's own seeded composer, MIT like the project",
    "BachChorales": "chorales by J. S. Bach, in the public domain, from files that state no terms",
    "JSBChorales": "chorales by J. S. Bach, in the public domain; the data set states no licence",
    "POP909": "the annotations are under MIT; the songs are commercial ones",
    "Pop1K7": "transcribed covers of commercial songs; no licence is stated",
    "Groove2GrooveMIDI": "CC BY-NC 4.0, which allows no commercial use",
}
_UNKNOWN = "its licence is not recorded here: publish the model only if you know it"
_MORE = (  # measures of which more is better
    "notes in key",
    "bars that return",
    "rhythm like the original's",
    "melody and harmony like the original's",
    "drumming like the original's",
    "known chord changes",
    "chord fit",
    "melody fit",
    "closed ends",
    "fifth ends",
)
_KNOWN, _COPIES = "longest known passage (notes)", "continuations that copy"
_LESS = ("nats a note", "out of range", "crossed", "parallel fifths", "parallel octaves", _KNOWN)
_TEXT = """\
---
library_name: musicgen-symbolic
tags: [music, symbolic-music, midi]
---
# {title}

It continues MIDI files{uses}, with musicgen (`pip install musicgen-symbolic`):

```python
import musicgen

model = musicgen.load("{name}"){hub}
model.generate("song.mid", prompt_bars=4, bars=16)[0].save("continued.mid")
```

## What it learned from

{data}

{sections}
<details><summary>The model</summary>

{model}
</details>
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class CardFacts:
    """What is known of a model beside its checkpoint; what was not measured is left out.

    Attributes:
        name: that `musicgen.load` takes.
        uses: what else it does than to continue.
        data: what it learned from and its licence, instead of what is known of its corpus.
        training: its commands and steps, instead of the checkpoint's.
        hours, cpu_hours: that training took, of the wall clock and of all cores.
        timed: how they were measured, if not in training.
        measures: rows with `of` (what was measured), `measure` and `generated`; if known with `n`,
            the 95% interval `low` and `high`, and `originals`, or what `beside` names instead.
        limits: what it is bad at that no measure shows.
    """

    name: str = ""
    uses: str = ""
    data: str = ""
    training: str = ""
    hours: float | None = None
    cpu_hours: float | None = None
    timed: str = ""
    measures: Sequence[Row] = ()
    limits: Sequence[str] = ()


def run_facts(checkpoint: Path, content: CheckpointContent) -> CardFacts:
    """Return what a run's metrics.csv and evaluation/evaluation.csv say of one of its checkpoints.

    Nothing, or no measures, without these files.
    """
    path = checkpoint.parent.parent / "metrics.csv"
    if not path.is_file():
        return CardFacts()
    table = path.parent / "evaluation/evaluation.csv"
    measures = evaluated(table) if table.is_file() else []
    rows = [row for row in read_csv(path) if row.get("train/hours")]
    nats = [
        f"; {float(row['val/nats_per_note']):.3f} nats a note of validation pieces"
        for row in rows
        if int(row["step"]) + 1 == content.steps and row.get("val/nats_per_note")
    ]
    hours, cpu_hours = (
        float(rows[-1][name]) if rows and rows[-1].get(name) else None
        for name in ("train/hours", "train/cpu_hours")
    )
    on_cpu = content.config["trainer"]["accelerator"] == "cpu"
    training = "".join([_steps(content), *nats])
    cpu_hours = cpu_hours if on_cpu else None
    return CardFacts(training=training, hours=hours, cpu_hours=cpu_hours, measures=measures)


def evaluated(table: Path) -> list[Row]:
    """Return the measures of an `evaluation.csv`, as evaluate.py writes it for a run."""

    def number(text: str) -> float | None:
        return float(text) if text not in ("", "nan") else None

    return [
        {
            "of": "Held-out pieces",
            **{name: row[name] for name in ("measure", "n", "beside")},
            "generated": number(row["mean"]),
            **{name: number(row[name]) for name in ("low", "high")},
            "originals": number(row["beside_mean"]),
        }
        for row in read_csv(table)
    ]


def _steps(content: CheckpointContent) -> str:
    return f"{content.steps:,} steps on windows of {content.config['loader']['length']:,} tokens"


def model_card(content: CheckpointContent, num_weights: int, facts: CardFacts | None = None) -> str:
    """Describe a model in Markdown, with the front matter that the Hugging Face Hub reads."""
    facts = facts or CardFacts()
    corpus = class_name(content.config.get("data")) or "A corpus"
    limits = "".join(f"- {limit}\n" for limit in facts.limits)
    limits = limits and f"\nBeside what was measured:\n\n{limits}"
    sections = {
        "What it does well": _words(facts.measures, worse=False),
        "What it is bad at": _words(facts.measures, worse=True) + limits,
        "What it copies": _copying(facts.measures),
        "What its training took": _cost(facts),
    }
    parts = [f"## {title}\n\n{text.strip()}\n" for title, text in sections.items() if text]
    groups = dict.fromkeys(row["of"] for row in facts.measures)
    parts += [_fold(of, [row for row in facts.measures if row["of"] == of]) for of in groups]
    if groups:
        parts.append("What the measures are: docs/evaluating.md of musicgen.\n")
    return _TEXT.format(
        title=facts.name or "A symbolic-music model",
        uses=facts.uses,
        name=facts.name or "FOLDER",
        hub="" if facts.name else "  # or hf://USER/NAME",
        data=facts.data or f"{corpus}: {_LICENCES.get(corpus, _UNKNOWN)}.",
        sections="\n".join(parts),
        model=_model(content, num_weights, facts.training),
    )


def _model(content: CheckpointContent, num_weights: int, training: str) -> str:
    model = content.model
    attention = class_name(model["attention"])
    if features := class_name(model["attention"].get("feature_map")):
        attention += f" with {features}"
    if model.get("copy") is not None:
        attention += ", and a copy head"
    tokenizer = f"{class_name(content.tokenizer)}, {len(content.vocabulary):,} tokens"
    rows = {
        "weights": f"{num_weights:,}",
        "layers × width": f"{model['num_layers']} × {model['dim']}",
        "attention": attention,
        "position": class_name(model["position"]),
        "tokenizer": tokenizer,
        "training": training or _steps(content),
    }
    return markdown([{"": name, " ": value} for name, value in rows.items()])


def _words(measures: Sequence[Row], *, worse: bool) -> str:
    """Say in a list what is, or is not, worse than the originals beyond its 95% interval."""
    found: dict[str, list[str]] = {}
    for row in measures:
        name, value, beside = row["measure"], row.get("originals"), row.get("beside", _ORIGINALS)
        if name not in _MORE + _LESS or value is None or row.get("low") is None:
            continue
        is_worse = value > row["high"] if name in _MORE else value < row["low"]
        if worse == is_worse:
            text = f"- {name}: {_value(row)}; {beside}: {_digits(value)}\n"
            found.setdefault(row["of"], []).append(text)
    if not found:
        return ""
    compared = "Worse" if worse else "No worse"
    lists = "\n".join(f"{of}:\n\n{''.join(lines)}" for of, lines in found.items())
    return f"{compared} than what stands beside it, by 95% intervals over pieces.\n\n{lists}"


def _copying(measures: Sequence[Row]) -> str:
    """Say how long the passages are that the training pieces have, too."""
    text = ""
    for row in measures:
        if row["measure"] == _KNOWN:
            text += (
                f"{row['of']}: the longest passage of a piece that the training pieces have, too, "
                f"in any key, has {_value(row)} notes on average; of {row['beside']}, cut to the "
                f"same size, {_digits(row['originals'])}.\n\n"
            )
        elif row["measure"] == _COPIES:
            text += f"{row['generated']:.0%} of the pieces copy.\n\n"
    return text


def _cost(facts: CardFacts) -> str:
    """Say what training took, with an estimate of its energy."""
    text = f"{_duration(facts.hours)}. " if facts.hours else ""
    if facts.cpu_hours:
        text += (
            f"{_duration(facts.cpu_hours)} of one core{facts.timed}: about "
            f"{_digits(WATTS * facts.cpu_hours)} Wh, an estimate by {WATTS} W for a busy core, "
            "without the rest of the machine."
        )
    return text


def _duration(hours: float) -> str:
    return f"{_digits(hours)} hours" if hours >= 1 else f"{_digits(60 * hours)} minutes"


def _fold(of: str, rows: Sequence[Row]) -> str:
    """Return the table of all measures of some music, behind a fold."""
    kinds = {row.get("beside", _ORIGINALS) for row in rows}
    several = len(kinds) > 1
    beside = "beside it" if several else kinds.pop()
    table = [
        {
            "": row["measure"],
            "n": row.get("n", ""),
            "this model": _value(row),
            beside: ""
            if row.get("originals") is None
            else _digits(row["originals"]) + f" ({row.get('beside', _ORIGINALS)})" * several,
        }
        for row in rows
        if row.get("generated") is not None
    ]
    columns = [name for name in table[0] if not name or any(row[name] != "" for row in table)]
    table = [{name: row[name] for name in columns} for row in table]
    return f"<details><summary>{of}: all measures</summary>\n\n{markdown(table)}\n</details>\n"


def _value(row: Row) -> str:
    """Return a figure with its 95% interval, if there is one."""
    text = _digits(row["generated"])
    low, high = row.get("low"), row.get("high")
    if low is None or high is None or low == high:
        return text
    return f"{text} ({_digits(low)} to {_digits(high)})"


def _digits(value: float) -> str:
    return f"{value:{'.3g' if abs(value) < 1000 else ',.0f'}}".replace("-", "−")
