"""The measures of evaluate.py, which are functions that return the rows of a table (`runs`).

The settings of a measure are in `conf/metric/NAME.yaml`, and its formulas in `musicgen.metrics`.
"""
