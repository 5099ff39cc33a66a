"""Evaluate: python evaluate.py generated=DIR references=DIR, or checkpoint=latest."""

from __future__ import annotations

from contextlib import nullcontext

from omegaconf import DictConfig, OmegaConf

from musicgen.cli.measures import (
    attention_properties,
    attention_tables,
    blind,
    chunk_tables,
    descriptors_measure,
    loss_tables,
    originality,
    position_loss,
    position_properties,
    property_tables,
    resources,
    style,
    style_over_time,
    style_tables,
)
from musicgen.cli.output import make_folder
from musicgen.cli.runner.threads import set_up_cpu
from musicgen.console import log, stdout
from musicgen.errors import ParameterError
from musicgen.files import remove_if_empty
from musicgen.metrics import CONFIDENCE
from musicgen.report.tables import as_table, write_csv
from musicgen.validation import check_choice

_SUMMARY = f"n: pieces; low, high: {CONFIDENCE:.0%} confidence interval of the mean (bootstrap)"
_DEVIATIONS = (
    "draw_std: deviation of the mean over draws of the positional encoding's noise; seed_std: over "
    "runs that differ in their seeds alone, of which low and high know nothing"
)
_PROPERTIES = (
    "at_zero: the kernel at lag 0; half_width: the lag at which it is half of that, inf if there "
    "is none; the others: musicgen/metrics/position_properties.py"
)
_ATTENTION = (
    "translation invariance T and monotonicity M of attention between copies of one token, lower "
    "is better: musicgen/metrics/attention_invariance.py"
)
_STYLE = (
    "cosine similarity of note histograms, role by role, with the whole piece of the prompt; "
    f"skipped: n/a; {_SUMMARY}\n"
    "same song: the piece's own continuation; chance: pieces of other families of styles"
)
_STYLE_PARTS = (
    "mean over styles of the cosine similarity of note histograms of a quarter of the continuation "
    "with the whole piece of the prompt"
)
_RESOURCES = (
    "until the lowest validation loss: epochs begun, hours with validations, most memory of "
    "tensors on a GPU, else of the whole process; n/a: the run did not record it"
)
_DESCRIPTORS = (
    "means of the continuations and of the music that follows the prompts in the originals; n: "
    "continuations with a value; overlap (1 is best) and KL (0 is best) of distances within the "
    "generated set and to the originals: musicgen/metrics/descriptors.py"
)
_ORIGINALITY = (
    "notes of the longest passage of a piece that the training set has too, in any key; n: pieces; "
    "held-out: pieces that the model never saw, cut to as many notes as the continuations have: "
    "much longer passages than theirs are copied; where they are from: originality_pieces.csv"
)
_BLIND = "open blind.html to compare them by ear: it collects votes and shows their result"


MEASURES = {  # functions, and legends of their tables
    "style": (style, _STYLE),
    "style_over_time": (style_over_time, _STYLE_PARTS),
    "descriptors": (descriptors_measure, _DESCRIPTORS),
    "originality": (originality, _ORIGINALITY),
    "position_loss": (position_loss, f"in nats a token; {_SUMMARY}; {_DEVIATIONS}"),
    "position_properties": (position_properties, _PROPERTIES),
    "attention_properties": (attention_properties, _ATTENTION),
    "resources": (resources, _RESOURCES),
    "blind": (blind, _BLIND),
}


def main(cfg: DictConfig) -> None:
    """Compute each measure, print its table, and write it as CSV with its plot below `out`."""
    set_up_cpu()
    selected = cfg.metrics
    if selected is None:
        given = cfg.generated or cfg.references
        selected = "style" if given else "blind" if cfg.compare else "position_loss"
    names = [str(name) for name in (selected if OmegaConf.is_list(selected) else [selected])]
    if not names:
        raise ParameterError("metrics", "[]", f"expected some of {', '.join(MEASURES)}, or null")
    for name in names:
        check_choice("metrics", name, MEASURES)
    out = make_folder(cfg.out, "evaluated")
    with remove_if_empty(out.parent) if cfg.out is None else nullcontext(), remove_if_empty(out):
        for name in names:
            measure, legend = MEASURES[name]
            rows = measure(cfg, out)
            write_csv(rows, out / f"{name}.csv")
            tables = TABLES[name](rows) if name in TABLES else {name: rows}
            for title, table in tables.items():
                stdout.print(as_table(table, title=title))
            stdout.print(legend, highlight=False, soft_wrap=True)
    log(f"in {out}")


# Tables by title, for the terminal; of other measures, all rows in one.
TABLES = {
    "style": style_tables,
    "style_over_time": chunk_tables,
    "position_loss": loss_tables,
    "position_properties": property_tables,
    "attention_properties": attention_tables,
}
