"""Classes of tokens that a copy head treats as equal."""

import numpy as np

from musicgen.tokenization.codec import Codec


def match_classes(codec: Codec) -> list[int]:
    """Return the class of each token, for the matches of a copy head. [V]

    All velocities are one class, and all tempi: when a bar is repeated, its notes are the same, but
    not how loud they are.
    """
    classes = np.arange(len(codec.vocabulary))
    for family in ("Velocity", "Tempo"):
        ids = codec.families.get(family, range(0))
        classes[ids] = ids.start
    return classes.tolist()
