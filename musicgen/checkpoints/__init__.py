"""Checkpoints: weights, configuration and vocabulary as plain data, without code that would run.

Neither Hydra nor Lightning is imported here.
"""

from musicgen.checkpoints.building import build, check_targets, trust, trust_argument
from musicgen.checkpoints.content import (
    CONTENT_KEY,
    CheckpointContent,
    load_for_resume,
    load_initial,
    run_identity,
)
from musicgen.checkpoints.storage import read_checkpoint, rebuild, with_realizations, write_folder
