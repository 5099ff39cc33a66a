"""The measures of `evaluate`: each returns the rows of its table, as written to its CSV file."""

from musicgen.cli.measures.attention import attention_properties, attention_tables
from musicgen.cli.measures.blind import blind
from musicgen.cli.measures.descriptors import descriptors_measure
from musicgen.cli.measures.originality import originality
from musicgen.cli.measures.position_loss import loss_tables, position_loss
from musicgen.cli.measures.position_properties import position_properties, property_tables
from musicgen.cli.measures.resources import resources
from musicgen.cli.measures.style import style, style_tables
from musicgen.cli.measures.style_over_time import chunk_tables, style_over_time

__all__ = [
    "attention_properties",
    "attention_tables",
    "blind",
    "chunk_tables",
    "descriptors_measure",
    "loss_tables",
    "originality",
    "position_loss",
    "position_properties",
    "property_tables",
    "resources",
    "style",
    "style_over_time",
    "style_tables",
]
