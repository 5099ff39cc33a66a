"""Audio of scores, rendered with the user's soundfont."""

from pathlib import Path
from typing import Any

import numpy as np
import symusic
from numpy.typing import NDArray

from musicgen.errors import UserError
from musicgen.files import atomic_path
from musicgen.midi.io import dumps
from musicgen.midi.score import Score

SAMPLE_RATE = 44_100  # Hz


class Soundfont:
    """A soundfont file (.sf2 or .sf3), which gives each General MIDI program its sound."""

    def __init__(self, path: str | Path) -> None:
        """Open the file; raise `UserError` if it is no soundfont."""
        path = Path(path).expanduser()
        try:
            path.open("rb").close()
            self._synthesizer: Any = symusic.Synthesizer(path, SAMPLE_RATE)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no soundfont"
            raise UserError(
                f"{path}: cannot be read ({reason}); give a General MIDI soundfont, a .sf2 file"
            ) from None

    def render(self, score: Score) -> NDArray[np.float32]:
        """Return the sound in stereo [2, N]; loud passages may exceed ±1."""
        if not score.num_notes:
            return np.zeros((2, 0), np.float32)
        return self._synthesizer.render(symusic.Score.from_midi(dumps(score)), True)

    def write_wav(self, score: Score, path: str | Path) -> None:
        """Write a WAV file of 16 bits, atomically; music that would clip is made softer."""
        sound = self.render(score)
        loudest = float(np.abs(sound).max(initial=0)) / (1 - 2**-15)  # as 2^15 - 1
        with atomic_path(path) as temporary:
            symusic.dump_wav(str(temporary), sound / max(1.0, loudest), SAMPLE_RATE, True)
