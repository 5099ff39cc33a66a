"""What `evaluate` measures: functions of inputs and settings that return the rows of a table.

Settings are those of `conf/metric/NAME.yaml`; see `inputs`. Formulas are in `musicgen.metrics`.
"""
