"""WAV files hold a soundfont's sound at the notes' times; files that are none are named."""

import struct

import numpy as np
import pytest
from scipy.io import wavfile

from musicgen.errors import UserError
from musicgen.midi.io import SAMPLE_RATE, Soundfont
from musicgen.midi.score import TEMPO, Score, Track, notes_from

ROOT_KEY, PERIOD = 69, 100  # the sample is A4 at 44.1 kHz: 441 Hz


def chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def soundfont_bytes() -> bytes:
    """Return the smallest soundfont: one preset, one instrument, one looped sine (SoundFont 2.01)."""
    frames = 20 * PERIOD
    sine = 20_000 * np.sin(2 * np.pi * np.arange(frames) / PERIOD)
    samples = sine.astype("<i2").tobytes() + bytes(2 * 46)
    loop_mode, instrument, sample = 54, 41, 53  # generators
    shdr = struct.pack(
        "<20s5IBbHH", b"sine", 0, frames, PERIOD, frames - PERIOD, SAMPLE_RATE, ROOT_KEY, 0, 0, 1
    )
    pdta = (
        chunk(
            b"phdr",
            struct.pack("<20sHHHIII", b"p", 0, 0, 0, 0, 0, 0)
            + struct.pack("<20sHHHIII", b"EOP", 0, 0, 1, 0, 0, 0),
        )
        + chunk(b"pbag", struct.pack("<4H", 0, 0, 1, 0))
        + chunk(b"pmod", bytes(10))
        + chunk(b"pgen", struct.pack("<4H", instrument, 0, 0, 0))
        + chunk(b"inst", struct.pack("<20sH20sH", b"i", 0, b"EOI", 1))
        + chunk(b"ibag", struct.pack("<4H", 0, 0, 2, 0))
        + chunk(b"imod", bytes(10))
        + chunk(b"igen", struct.pack("<6H", loop_mode, 1, sample, 0, 0, 0))
        + chunk(b"shdr", shdr + struct.pack("<20s5IBbHH", b"EOS", *[0] * 9))
    )
    info = (
        chunk(b"ifil", struct.pack("<HH", 2, 1))
        + chunk(b"isng", b"EMU8000\0")
        + chunk(b"INAM", b"sine\0\0")
    )
    lists = (b"INFO" + info, b"sdta" + chunk(b"smpl", samples), b"pdta" + pdta)
    return chunk(b"RIFF", b"sfbk" + b"".join(chunk(b"LIST", part) for part in lists))


@pytest.fixture
def soundfont(tmp_path) -> Soundfont:
    (tmp_path / "sine.sf2").write_bytes(soundfont_bytes())
    return Soundfont(tmp_path / "sine.sf2")


def score(*notes) -> Score:
    return Score(480, [Track(notes=notes_from(notes))], np.array([(0, 60.0)], TEMPO))


def test_wav_holds_the_notes_at_their_times(soundfont, tmp_path):
    # One second of silence, then one second of A5.
    soundfont.write_wav(score((480, 480, 81, 100)), tmp_path / "new" / "a.wav")
    rate, both = wavfile.read(tmp_path / "new" / "a.wav")
    assert (rate, both.dtype, both.shape[1]) == (SAMPLE_RATE, "int16", 2)
    sound = both[:, 0].astype(float)
    assert len(sound) == pytest.approx(2 * SAMPLE_RATE, rel=0.01)
    assert abs(sound[: SAMPLE_RATE - 500]).max() <= 1
    spectrum = abs(np.fft.rfft(sound[SAMPLE_RATE + 4_000 :][: SAMPLE_RATE // 2]))
    assert 2 * spectrum.argmax() == pytest.approx(2 * SAMPLE_RATE / PERIOD, rel=0.01)  # Hz


def test_loud_music_does_not_clip_and_silence_is_empty(soundfont, tmp_path):
    music = score(*((0, 480, pitch, 127) for pitch in range(40, 90)))
    assert abs(soundfont.render(music)).max() > 1
    soundfont.write_wav(music, tmp_path / "loud.wav")
    sound = abs(wavfile.read(tmp_path / "loud.wav")[1].astype(int))
    assert sound.max() == 2**15 - 1
    assert (sound == 2**15 - 1).sum() < 4
    soundfont.write_wav(Score(), tmp_path / "silent.wav")
    assert wavfile.read(tmp_path / "silent.wav")[1].size == 0


@pytest.mark.parametrize("content", [None, b"", b"junk"])
def test_files_that_are_no_soundfont_are_named(tmp_path, content):
    path = tmp_path / "x.sf2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.sf2: cannot be read .* a \.sf2 file") as error:
        Soundfont(path)
    assert "\n" not in str(error.value)
