"""Corpora: files to a token cache, and the cache to batches.

What is done with dirty MIDI, and where it is told. "Left out" pieces have their reason in the
cache's `report.csv`; what is told of a piece that is kept stands there too, summed up in
`summary.txt`. `data.limits` has the limits of a piece, the tokenizer those of bars and beats.

=============================================  ================================================
in the file                                    what is done
=============================================  ================================================
no MIDI, nothing, a broken or cut-off track    left out
a pitch or velocity past 127                   left out: a number was damaged, and what follows it
a pitch past the vocabulary's                  the note is dropped, and told
a velocity or tempo past the vocabulary's      the nearest bin
a division of 0, or in SMPTE frames            left out: it has no beats
a tempo of 0                                   left out of the piece, and told
a time signature of 0, or past 64ths           left out of the piece, and told
no time signature; none at the beginning       4/4
a metre that the vocabulary has not            bars in its own; told as `7/8 read as 4/4`
a note that never ends                         ends when its key is next let go, or with its track,
                                               after 4 beats at most; told
an end without a note                          passed over
a note of no length                            the shortest of the grid
a note struck again while it sounds            ends there, and told
a note twice at once                           the longest duration and the loudest velocity; told
a note longer than any of the vocabulary       cut, and told
several tracks for one instrument              merged (REMI: all of them, into one piano)
drums, where the vocabulary has none           dropped, and told
a track that no instrument stands for          dropped, and told
music past the tokenizer's last bar            dropped, and told: a gap may be of 200 M ticks
no note that is kept, or too few of them       left out
more bytes or tokens than the limits           left out
more time or memory than the limits            the process is ended, the piece left out
a reader that crashes or raises                the piece is left out, the others go on
=============================================  ================================================
"""
