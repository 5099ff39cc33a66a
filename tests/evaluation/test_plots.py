"""How bright an attention weight is shown."""

import numpy as np

from musicgen.evaluation.attention_properties import attention_brightness


def test_brightness():
    shown = attention_brightness(np.array([0, 0.02 / 2**2.5, 0.02, 0.7]))
    np.testing.assert_allclose(shown, [0, 0.5, 1, 1])
