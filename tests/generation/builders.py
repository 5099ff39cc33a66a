"""Small untrained models, and MIDI files as lists of events, whose bytes are known."""

import struct
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import mido
import torch
from mido.midifiles.meta import encode_variable_int

from musicgen.attention import ELU, LinearAttention
from musicgen.composer import compose_groove, compose_pop
from musicgen.generation.continuation import Continuation
from musicgen.generation.model import MusicModel
from musicgen.generation.prompt import make_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.models import Transformer
from musicgen.position import RoPE
from musicgen.tokenization import REMI, TIME_SIGNATURES, Groove2Groove
from tests.models.builders import small

BEAT, BAR = 480, 1920
END_OF_TRACK = b"\xff\x2f\x00"
EventList = list[tuple[int, bytes]]


@dataclass(frozen=True)
class PromptFile:
    """A file with its tracks as (tick, event); the events may use running status."""

    tracks: list[EventList]
    bars: int | None = 2
    format: int = 1
    beat: int = BEAT
    name: str = "song.mid"
    kind: str = "remi"
    end_of_track: bytes = END_OF_TRACK
    between: bytes = b""  # chunks of another kind
    after: bytes = b""

    def data(self) -> bytes:
        end = b"\0" + self.end_of_track if self.end_of_track else b""
        bodies = [track_bytes(track) + end for track in self.tracks]
        options = {"division": self.beat, "form": self.format, "between": self.between}
        return midi_file(*bodies, **options) + self.after


def midi_file(*bodies, division=BEAT, form=1, header_length=6, between=b"") -> bytes:
    """A file of tracks as bytes."""
    header = b"MThd" + struct.pack(">IHHH", header_length, form, len(bodies), division)
    return header + between.join(b"MTrk" + struct.pack(">I", len(x)) + x for x in bodies)


def track_bytes(events: EventList) -> bytes:
    out, last = b"", 0
    for tick, event in sorted(events, key=lambda row: row[0]):
        out += bytes(encode_variable_int(tick - last)) + event
        last = tick
    return out


def chunks(data: bytes) -> list[bytes]:
    """The bodies of the tracks."""
    found, at = [], 0
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "big")
        if data[at : at + 4] == b"MTrk":
            found.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def timed(track: mido.MidiTrack) -> list[tuple[int, mido.Message]]:
    """Messages without times, at their ticks."""
    ticks = accumulate(message.time for message in track)
    return [(tick, message.copy(time=0)) for tick, message in zip(ticks, track, strict=True)]


def notes(*rows, channel=0, length=BEAT, off=None) -> EventList:
    """Rows of (tick, pitch) or (tick, pitch, length)."""
    events = []
    for tick, pitch, *given in rows:
        on = bytes([0x90 | channel, pitch, 70])
        end = off(pitch) if off else bytes([0x80 | channel, pitch, 0])
        events += [(tick, on), (tick + (given[0] if given else length), end)]
    return events


def scale(bars=4, beat=BEAT, root=60, channel=0, **kwargs) -> EventList:
    rows = [(i * beat, root + 2 * i % 12) for i in range(4 * bars)]
    return notes(*rows, channel=channel, length=beat - beat // 8, **kwargs)


def meta(tick: int, kind: int, data: bytes) -> EventList:
    return [(tick, bytes([0xFF, kind, *encode_variable_int(len(data))]) + data)]


def program(number: int, channel: int) -> EventList:
    return [(0, bytes([0xC0 | channel, number]))]


def tempo(tick: int, bpm: float) -> EventList:
    return meta(tick, 0x51, round(60e6 / bpm).to_bytes(3, "big"))


def metre(tick: int, top: int, power: int) -> EventList:
    return meta(tick, 0x58, bytes([top, power, 24, 8]))


def drums(bars=4) -> EventList:
    return notes(*[(i * BEAT, 36 if i % 2 else 42) for i in range(4 * bars)], channel=9, length=60)


def running(bars=3) -> EventList:
    """Only the first event has its status; notes end by velocity 0."""
    events = [
        (i * BEAT + d, bytes([60 + i % 5, v]))
        for i in range(4 * bars)
        for d, v in ((0, 70), (400, 0))
    ]
    return [(0, b"\x90" + events[0][1]), *events[1:]]


CONDUCTOR = [*tempo(0, 97), *metre(0, 4, 2)]
BAND = [
    [*meta(0, 3, b"Bass"), *program(33, 1), *scale(root=36, channel=1)],
    [*meta(0, 3, b"Kit"), *drums()],
    [*meta(0, 3, b"EP"), *program(4, 2), *scale(root=60, channel=2)],
]
FILES = {
    "type 0": PromptFile([[*CONDUCTOR, *scale()]], format=0),
    "one note": PromptFile([notes((0, 60))], bars=None),
    "twenty tracks": PromptFile(
        [
            CONDUCTOR,
            *([*program(i, i % 16), *scale(root=40 + i, channel=i % 16)] for i in range(20)),
        ]
    ),
    "3/4": PromptFile([[*metre(0, 3, 2), *scale()]]),
    "drums only": PromptFile([CONDUCTOR, drums()], kind="groove2groove"),
    "unicode name": PromptFile([scale()], name="Ünïcødé ♫ 夜.mid"),
    "3,000 bars": PromptFile([scale(bars=3000)], bars=1),
    "tempo changes": PromptFile([[*tempo(0, 90), *tempo(500, 180.5), *tempo(9000, 60)], scale()]),
    "triplets": PromptFile([notes(*[(160 * i, 60 + i % 12, 150) for i in range(36)])], bars=None),
    "960 ticks a beat": PromptFile([scale(beat=960)], beat=960),
    "SysEx": PromptFile(
        [[(0, b"\xf0\x05\x7e\x7f\x09\x01\xf7"), (9, b"\xf7\x02\x01\xf7"), *scale()]]
    ),
    "lyrics": PromptFile(
        [CONDUCTOR, [*scale(), *meta(480, 5, "là".encode()), *meta(5000, 5, b"la")]]
    ),
    "running status to the end": PromptFile([CONDUCTOR, running()], bars=None),
    "pedal and bend": PromptFile(
        [[*scale(), (480, b"\xb0\x40\x7f"), (960, b"\xe0\x00\x50"), (6000, b"\xb0\x40\x00")]]
    ),
    "notes across the cut": PromptFile([[*scale(), *notes((3000, 48, 5000), (3600, 50, 800))]]),
    "a note without an end": PromptFile([[*scale(bars=2), (960, b"\x90\x30\x50")]], bars=None),
    "band in type 0": PromptFile(
        [[e for t in BAND for e in t[1:]]], format=0, kind="groove2groove"
    ),
    "band": PromptFile([CONDUCTOR, *BAND], kind="groove2groove", bars=None),
    "other chunks": PromptFile([CONDUCTOR, scale()], between=b"XFIH\0\0\0\2ab", after=b"garbage"),
    "two silent bars": PromptFile([[(t + 2 * BAR, e) for t, e in scale()]]),
    "drums go on": PromptFile([CONDUCTOR, scale(bars=2), drums(bars=5)], bars=None),
    "metre changes": PromptFile(
        [[*metre(0, 4, 2), *metre(BAR, 6, 3), *scale()]], kind="remi_metres"
    ),
    "no end of track": PromptFile([scale()], end_of_track=b"", bars=None),
    "POP909": PromptFile(
        [
            CONDUCTOR,
            *(
                [*meta(0, 3, n), *scale(root=r, channel=i)]
                for i, (n, r) in enumerate(((b"MELODY", 72), (b"BRIDGE", 60), (b"PIANO", 48)))
            ),
        ]
    ),
}


SCORES = {"remi": compose_pop(0, 1), "groove2groove": compose_groove(0, "bossa", 0, 0)}
TOKENIZERS = {"remi": REMI(), "groove2groove": Groove2Groove()}
READERS = {**TOKENIZERS, "remi_metres": REMI(time_signatures=TIME_SIGNATURES)}


def small_model(tokenizer, position=None, attention=None, **settings) -> Transformer:
    position = position or RoPE
    attention = attention or partial(LinearAttention, feature_map=ELU)
    settings = {"dim": 16, "num_layers": 1, "num_heads": 2, "ff_dim": 32} | settings
    model = small(position, attention, len(tokenizer.vocabulary), **settings)
    if isinstance(tokenizer, Groove2Groove):  # else a bar would have hundreds of tokens
        shifts = tokenizer.families["TimeShift"]
        model.head.bias.data[shifts.start : shifts.stop] += 2.5
    return model


def music_model(tokenizer, chords="none", **settings) -> MusicModel:
    content = SimpleNamespace(config={"loader": {"length": 64, "chords": chords}}, sampling=None)
    model = small_model(tokenizer, **settings)
    return MusicModel(model, tokenizer, content, Path("model.ckpt"))


def run(tokenizer, model=None, prompts=None, **kwargs):
    prompts = prompts or [make_prompt(tokenizer, SCORES[tokenizer.name], "p", 2)]
    if "total_tokens" not in kwargs:
        kwargs = {"bars": 2, **kwargs}
    request = GenerationRequest.of(**kwargs)
    done = Sampler(model or small_model(tokenizer), tokenizer, request).continuations(prompts)
    return sorted(done, key=lambda c: (c.prompt.name, c.sample))


def allowed_tokens(model: MusicModel, piece: Continuation, **options) -> torch.Tensor:
    """Which tokens were allowed at each new token of a piece of these options. [N, V]"""
    prompt, masks = piece.prompt, []
    sampler = Sampler(model.model, model.tokenizer, model.request(**options))
    grammar = sampler.constrained_grammar([prompt])
    state = grammar.start([prompt.tokens])
    for token in piece.tokens[len(prompt.tokens) :]:
        masks.append(grammar.allowed(state)[0])
        state = grammar.advance(state, [token])
    return torch.stack(masks)
