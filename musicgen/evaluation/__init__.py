"""What `evaluate` measures: one file a measure, with its computation, tables, plots and legend.

A measure is a `Measure` (see `measure`), and its settings are `conf/metric/NAME.yaml`. Formulas are
in `musicgen.metrics`.
"""
