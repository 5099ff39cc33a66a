"""Constraints: what a request asks of the tokens, one file for each subject."""

from musicgen.generation.constraints.base import ConstrainedGrammar, Constraint
from musicgen.generation.constraints.build import request_constraints

__all__ = ["ConstrainedGrammar", "Constraint", "request_constraints"]
