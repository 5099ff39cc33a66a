"""Families of grooves as rhythm patterns. The patterns of a style are drawn from its family.

A pattern is text for one bar of 4/4. 16 cells are sixteenths, 12 are triplet eighths. `.` is
silence, `-` holds the previous note, and other symbols are strokes:

    drums   `x` normal, `X` accented, `o` soft
    bass    `1` root, `3` third, `5` fifth, `7` seventh or sixth, `8` octave, `a` a step above or
            below the bass of the next chord
    others  `c` chord, `0`–`4` one of its notes, from the lowest on, into the next octave

Spaces separate alternative patterns. A single `.` is a silent bar.
"""

from dataclasses import dataclass

BAR = 48
"""Steps in a bar: twelfths of a beat."""

Hit = tuple[int, int, str]
"""A stroke of a pattern: onset and length in steps of the bar, and its symbol."""

DRUM_KEYS = {
    "kick": 36, "snare": 38, "rim": 37, "clap": 39, "hat": 42, "pedal": 44, "open": 46,
    "ride": 51, "crash": 49, "tom_high": 50, "tom_mid": 47, "tom_low": 43, "cowbell": 56,
    "tambourine": 54, "maracas": 70, "claves": 75, "conga_high": 63, "conga_low": 64,
    "timbale": 65, "agogo": 67, "surdo": 41,
}  # fmt: skip
"""General MIDI percussion keys, by the names of drums in patterns."""


@dataclass(frozen=True)
class Family:
    """The parameters of a family of styles.

    Attributes:
        tempo: slowest and fastest tempo, in beats per minute.
        drums: alternative patterns of each instrument of the kit.
        bass, piano, guitar, strings: alternative patterns.
        progressions: Roman numerals, one chord a bar (see `harmony.spell`).
        programs: General MIDI programs of bass, piano, guitar and strings.
    """

    tempo: tuple[int, int]
    drums: dict[str, str]
    bass: str
    piano: str
    guitar: str
    strings: str
    progressions: tuple[str, ...]
    programs: tuple[int, int, int, int]


def parse(pattern: str, bar: int = BAR) -> list[Hit]:
    """Return the strokes of a pattern.

    Args:
        pattern: text for one bar; a cell has `bar / len(pattern)` steps.
        bar: steps in a bar.
    """
    hits: list[Hit] = []
    for i, symbol in enumerate(pattern):
        cell = bar // len(pattern)
        if symbol == "-":
            onset, length, struck = hits[-1]
            hits[-1] = onset, length + cell, struck
        elif symbol != ".":
            hits.append((i * cell, cell, symbol))
    return hits


_PADS = "c--------------- c-------c------- ."
_FOUR = "X...X...X...X..."
_POP = ("I V vi IV", "vi IV I V", "I vi IV V", "I IV V IV", "i bVI bIII bVII", "i bVII bVI bVII")
_SOUL = (
    "IM7 vi7 ii7 V7", "IM7 iii7 IVM7 V7", "ii7 V7 IM7 vi7", "i7 iv7 i7 v7", "IVM7 iii7 ii7 IM7",
)  # fmt: skip
_FUNK = ("i7 i7 IV7 IV7", "I7 I7 IV7 I7", "i7 bVII7 i7 bVII7", "i7 i7 i7 V7", "ii7 V7 ii7 V7")
_JAZZ = (
    "ii7 V7 IM7 VI7", "IM7 vi7 ii7 V7", "IM7 IV7 iii7 VI7 ii7 V7 IM7 V7", "iih7 V7 i7 i7",
    "IM7 Io7 ii7 V7", "i7 iv7 bVII7 bIIIM7 bVIM7 iih7 V7 i7",
)  # fmt: skip
_BLUES = (
    "I7 IV7 I7 I7 IV7 IV7 I7 I7 V7 IV7 I7 V7",
    "I7 I7 I7 I7 IV7 IV7 I7 I7 V7 V7 I7 I7",
    "i7 iv7 i7 i7 iv7 iv7 i7 i7 bVI7 V7 i7 V7",
)
_DANCE = ("i bVI bIII bVII", "i i bVI bVII", "i7 iv7 i7 bVII7", "vi IV I V", "i bVII iv i")
_LATIN = ("i7 iv7 V7 i7", "i bVII bVI V7", "I IV V7 IV", "ii7 V7 IM7 IM7", "i7 V7 V7 i7")

FAMILIES: dict[str, Family] = {
    "rock": Family(
        tempo=(112, 152), programs=(33, 0, 29, 48),
        drums={
            "kick": "X.....x.X....... X.......X.x..... X..x....X.x.....",
            "snare": "....X.......X...",
            "hat": "x.x.x.x.x.x.x.x. X.x.X.x.X.x.X.x.",
        },
        bass="1.1.1.1.1.1.1.1. 1---1-1-1---1-5- 1-.11-1-1-.11-a- 1-1-1-1-5-5-1-a-",
        piano=". c-------c------- c-----c-----c---",
        guitar="c.c.c.c.c.c.c.c. c---c-c-c---c-c- c--c--c-c--c--c- c-----cc..c---c-",
        strings=". . c---------------", progressions=(*_POP, "I bVII IV I", "i bVI bVII i"),
    ),
    "metal": Family(
        tempo=(140, 184), programs=(34, 0, 30, 48),
        drums={
            "kick": "x.xxx.xxx.xxx.xx x.x.x.x.x.x.x.x. xx..xx..xx..xx..",
            "snare": "....X.......X... ........X.......",
            "ride": "x...x...x...x... x.x.x.x.x.x.x.x. .",
            "open": "X...X...X...X... .",
        },
        bass="1.111.111.111.11 1.1.1.1.1.1.1.1. 1-.1-.1-1-.1-.1-",
        piano=".",
        guitar="c.ccc.ccc.ccc.cc c--c--c-c--c--c- cc..cc..cc..cc.. c-----c-c-----c-",
        strings=". c---------------",
        progressions=("i bVI bVII i", "i i bVI bVII", "i bII i bVII", "i bIII bVI bII"),
    ),
    "funk": Family(
        tempo=(92, 116), programs=(36, 4, 28, 48),
        drums={
            "kick": "X.x.......x..x.. X..x..x...x..... X.x....x..x..x..",
            "snare": "....X..o.o..X..o ....X..o....X.o. ...oX.o..o.oX...",
            "hat": "xxxxxxxxxxxxxxxx x.xxx.xxx.xxx.xx X.xXX.x.X.xXX.x.",
            "open": ". ......x......... ..............x.",
        },
        bass="1..8.1....5.7.1. 1--.1.7.8..5..a. 1.1...57..81..a. 1..1..8...7.5.1.",
        piano="..c..c..c..c..c. c..c....c..c.... ...c..c....c..c. .",
        guitar="c.ccc.c.c.ccc.c. ..cc..c...cc..c. .c.cc.c..c.cc.c. c..c.c..c..c.c..",
        strings=". . ........c-c-....", progressions=_FUNK,
    ),
    "soul": Family(
        tempo=(80, 108), programs=(33, 4, 27, 49),
        drums={
            "kick": "X.....x.X....... X......xX....... X..x....X..x....",
            "snare": "....X.......X... ....X.......X..o ....X..o....X...",
            "hat": "x.x.x.x.x.x.x.x. x.xxx.x.x.xxx.x.",
            "tambourine": ". ....x.......x... x.x.x.x.x.x.x.x.",
        },
        bass="1-..1-5-8-..5-a- 1--1..5-1--1..a- 1-..3-5-7-5-3-a-",
        piano="c---c---c---c--- c--c..c-c--c..c- c-......c-..c-..",
        guitar="....c.......c... ..0.2.3.2...0.2. ....cc......c...",
        strings="c-------c------- ....0-2-3------- c---------------", progressions=_SOUL,
    ),
    "hiphop": Family(
        tempo=(80, 98), programs=(38, 4, 27, 48),
        drums={
            "kick": "X..x..x...x..... X......x..x..... X.x....x.xx.....",
            "snare": "....X.......X... ....X.......X.o.",
            "hat": "x.x.x.x.x.x.x.x. x.xxx.x.x.x.xxx. x.x.x.xxx.x.x.x.",
            "clap": ". ....x.......x...",
        },
        bass="1--.....1-1-.... 1-----.1..5--... 1---......7-1---",
        piano="c---....c-c-.... 0.2.3.2.0.2.3.2. c--c--....c-....",
        guitar=". . ......0.2...3...",
        strings="c--------------- . ..c-......c-....",
        progressions=("i7 i7 iv7 i7", "i bVI i V", "i7 bVIM7 i7 bVIM7", "ii7 V7 i7 i7"),
    ),
    "house": Family(
        tempo=(118, 130), programs=(38, 0, 27, 50),
        drums={
            "kick": _FOUR,
            "clap": "....X.......X...",
            "open": "..x...x...x...x.",
            "hat": "xxxxxxxxxxxxxxxx x.xxx.xxx.xxx.xx .",
            "maracas": ". x.xxx.xxx.xxx.xx",
        },
        bass="..1...1...1...1. 1..1..1...1..1.. ..1.1..1..1.1..8 1.....1..1..8...",
        piano="c..c..c...c..c.. ..c..c....c..c.. c..c..c..c..c.c.",
        guitar=". . ..c...c...c...c.",
        strings=_PADS, progressions=(*_DANCE, "i7 iv7 bVIIM7 bIIIM7"),
    ),
    "techno": Family(
        tempo=(124, 140), programs=(38, 81, 27, 51),
        drums={
            "kick": _FOUR,
            "hat": "..x...x...x...x. ..xx..xx..xx..xx",
            "clap": "............X... ....X.......X... .",
            "rim": "...x..x...x..x.. x..x..x..x..x... .......x..x.....",
            "tom_low": ". ......x..x......",
        },
        bass="..11..11..11..11 .111.111.111.111 ..1...1...1...18",
        piano="0.3.0..3.0.3.0.. 0..2..3.0..2..3. ...c......c.....",
        guitar=".",
        strings="c--------------- .",
        progressions=("i i i i", "i i bVI i", "i i bII i", "i bVII i bVII"),
    ),
    "disco": Family(
        tempo=(110, 128), programs=(36, 0, 28, 49),
        drums={
            "kick": _FOUR,
            "snare": "....X.......X... ....X.......X..x",
            "open": "..x...x...x...x.",
            "hat": "xx.xxx.xxx.xxx.x x...x...x...x...",
            "tambourine": ". xxxxxxxxxxxxxxxx",
        },
        bass="1.8.1.8.1.8.1.8. 1-8-1-8-5-8-a-8- 1..81.8.1..81.8.",
        piano="c---c---c---c--- ..c...c...c...c. c..c..c...c.c...",
        guitar="c.cc..cc..cc..cc ..cc..c...cc..c. ccc.cc.cccc.cc.c",
        strings="c-------....0.2. 0-1-2-3-4------- ........3-2-1-0-",
        progressions=(*_SOUL, "i7 iv7 bVII7 bIIIM7", "i bVII bVI V7"),
    ),
    "reggae": Family(
        tempo=(66, 84), programs=(32, 16, 27, 48),
        drums={
            "kick": "........X....... ........X.....x. X...X...X...X...",
            "rim": "........X....... ....x...X...x...",
            "hat": "x.x.x.x.x.x.x.x. x.xxx.xxx.xxx.xx ..x...x...x...x.",
        },
        bass="....1-1-3-..5-.. 1-..1-..3-5-1-.. 1-..5-1-....3-a-",
        piano="..c...c...c...c. ..cc..cc..cc..cc ..c..cc...c..cc.",
        guitar="....c.......c... ....cc......cc.. ..c...c...c...c.",
        strings=". . c---------------",
        progressions=("I V vi IV", "i iv i iv", "I IV I V", "i bVII i bVII", "ii V I I"),
    ),
    "ska": Family(
        tempo=(128, 160), programs=(32, 16, 27, 61),
        drums={
            "kick": "X.......X....... ....X.......X... X.......X.x.....",
            "snare": "....X.......X...",
            "hat": "..x...x...x...x. x.x.x.x.x.x.x.x.",
        },
        bass="1---3---5---3--- 1-1-3-3-5-5-7-a- 1---5---8---5---",
        piano="..c...c...c...c. .",
        guitar="..c...c...c...c. ..cc..cc..cc..cc",
        strings=". 0-0.2-2.3-...... ........3-2-0-..",
        progressions=("I vi ii V", "I IV V IV", "I V vi IV", "I I IV V", "i bVII bVI V"),
    ),
    "bossa": Family(
        tempo=(112, 144), programs=(32, 0, 24, 48),
        drums={
            "kick": "x..xx..xx..xx..x x..xx...x..xx...",
            "rim": "x..x..x...x..x.. x..x..x...x..x..",
            "hat": "xxxxxxxxxxxxxxxx x.xxx.xxx.xxx.xx",
            "maracas": ". xxxxxxxxxxxxxxxx",
        },
        bass="1--.5---5--.1--- 1--15---5--51--- 1--.5--.1--.5-a-",
        piano="c..c..c...c..c.. ..c-..c...c-..c. .",
        guitar="c--c--c---c--c-- c..c..c..c..c... 0.cc..c.0.c..c..",
        strings=_PADS, progressions=(*_JAZZ, "IM7 II7 ii7 V7", "IM7 IM7 ii7 V7"),
    ),
    "samba": Family(
        tempo=(92, 112), programs=(32, 0, 24, 48),
        drums={
            "surdo": "o.......X....... o...x...X..xX...",
            "snare": "xooXxooXxoXooXoo XooxXooxXoxoXoox",
            "agogo": "x.x..x.x.x..x.x. x..x.x..x.x.x...",
            "tambourine": "XxxXXxxXXxxXXxxX x.xxx.xxx.xxx.xx",
            "kick": "x..xx..xx..xx..x .",
        },
        bass="1..15--.5..51--. 1..1....5..5.... 1..15..51..15.a.",
        piano="c.c..c.c.c..c.c. ..c.c..c..c.c..c .",
        guitar="c.c..cc.c.c..cc. c..cc.c.c..c.cc. 0.cc.c.c0.c..c.c",
        strings=". c---------------", progressions=(*_JAZZ, "I VI7 ii V7", "I I7 IV iv"),
    ),
    "salsa": Family(
        tempo=(88, 108), programs=(32, 0, 24, 61),
        drums={
            "claves": "x..x..x...x.x... ..x.x...x..x..x.",
            "cowbell": "X.x.X.x.X.x.X.x. X.xxX.x.X.xxX.x.",
            "conga_high": "......xx......xx ..x...xx..x...xx",
            "conga_low": "x...........x... ....x.......x...",
            "timbale": ". x.x.xx.x.xx.xx.x",
            "maracas": "xxxxxxxxxxxxxxxx x.xxx.xxx.xxx.xx",
        },
        bass="......5-....1--- 1-....5-....1--- ...5--1-...5--8-",
        piano="0.4..4.4.42.4.4. 4.04.4.0.4.04.4. 0.c.c..c.c.c..c.",
        guitar=". . ..c...c...c...c.",
        strings=". c.c...c-......c. ........0-2-4---", progressions=_LATIN,
    ),
    "country": Family(
        tempo=(96, 132), programs=(32, 0, 25, 40),
        drums={
            "kick": "X.......X....... X.......X.....x.",
            "snare": "....X.......X... ..x.X.x...x.X.x. o.o.X.o.o.o.X.oo",
            "hat": "x.x.x.x.x.x.x.x. ..x...x...x...x.",
        },
        bass="1---....5---.... 1---5---1---5--- 1---....5---3-a-",
        piano=". ....c.......c... c---c---c---c---",
        guitar="0...c.c.2...c.c. 0.1.2.3.0.1.2.3. 0.c.2.c.1.c.2.c. ....cc......cc..",
        strings=". . c---------------",
        progressions=("I I IV V", "I IV I V", "I V I I", "I vi IV V", "I IV V I", "I ii V I"),
    ),
    "ballad": Family(
        tempo=(60, 80), programs=(35, 0, 25, 48),
        drums={
            "kick": "X.......X....... X.....x.X....... X.........x.....",
            "rim": "....X.......X... .",
            "snare": ". ....X.......X...",
            "hat": "x.x.x.x.x.x.x.x. x...x...x...x...",
        },
        bass="1-------........ 1-------5------- 1-----1-5-----a- 1-----5-8-----5-",
        piano="0-1-2-3-4-3-2-1- 0.2.1.2.0.2.1.2. c---c---c---c--- c-----2-3-----2-",
        guitar=". 0-2-3-4-3-2-1-2- c---------------",
        strings="c--------------- c-------c------- 3-------2-1-0---",
        progressions=(*_POP, "I iii IV iv", "IM7 vi7 ii7 V7", "I V7/vi vi IV"),
    ),
    "swing": Family(
        tempo=(112, 176), programs=(32, 0, 26, 61),
        drums={
            "ride": "x..x.xx..x.x X..x.xX..x.x x..x..x..x.x",
            "pedal": "...x.....x..",
            "kick": "x..x..x..x.. x........... .",
            "snare": ". ..........o. .....o...... ........o...",
        },
        bass="1--3--5--a-- 1--5--8--a-- 1--3--5-57-- 1--5--3--a--",
        piano="..c...c..... c....c...... .....c...c-. c-...c....c.",
        guitar="c..c..c..c.. . ...c.....c..",
        strings=". . c-----c----- 0..2.3-----.", progressions=_JAZZ,
    ),
    "shuffle": Family(
        tempo=(96, 136), programs=(33, 0, 27, 48),
        drums={
            "kick": "X.....x..... X....xx..... X..x..x..x..",
            "snare": "...X.....X.. ..oX....oX..",
            "hat": "x.xx.xx.xx.x X..x.xX..x.x",
        },
        bass="1.13.35.57.7 1-.3-.5-.3-. 1.15.57.75.5 1-.1-.5-.5-a",
        piano="c.cc.cc.cc.c ...c.....c.. ..c..c..c..c",
        guitar="c.cc.cc.cc.c 0.02.20.02.2 ...c.....c..",
        strings=". . c-----------", progressions=_BLUES,
    ),
    "gospel": Family(
        tempo=(66, 92), programs=(33, 0, 26, 52),
        drums={
            "kick": "X....xX..... X.....X..x.. X..........x",
            "snare": "...X.....X.. ...X....oX..",
            "hat": "xxxxxxxxxxxx x.xx.xx.xx.x",
            "tambourine": ". ...x.....x.. x.xx.xx.xx.x",
        },
        bass="1-----5---3a 1---1-5---5a 1-.3-.5-.7-a",
        piano="c--c.cc--c.c 012321012321 0..ccc2..ccc c-c--cc-c--c",
        guitar=". . c-----------",
        strings="c----------- c-----c----- c--c--c--c--",
        progressions=("I IV I V", "I I7 IV iv", "I V7/vi vi7 IV", "I7 IV7 I7 V7"),
    ),
}  # fmt: skip
