"""The measures of `evaluate`: each returns the rows of its table, as written to its CSV file."""

from musicgen.cli.measures.attention import attention_properties, attention_tables
from musicgen.cli.measures.blind import blind
from musicgen.cli.measures.descriptors import descriptors_measure
from musicgen.cli.measures.originality import originality
from musicgen.cli.measures.positions import position_loss, position_properties
from musicgen.cli.measures.style import style, style_tables

__all__ = [
    "attention_properties",
    "attention_tables",
    "blind",
    "descriptors_measure",
    "originality",
    "position_loss",
    "position_properties",
    "style",
    "style_tables",
]
