"""The measures of evaluate.py: functions that return the rows of a table, see `inputs`.

The settings of a measure are in `conf/metric/NAME.yaml`, its formulas in `musicgen.metrics`.
"""
