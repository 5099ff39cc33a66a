"""Corpora, their preparation (files to a token cache), and loading (cache to batches).

Treatment of dirty MIDI: the cache's `report.csv` has the reason why a piece was left out, and the
changes to one that was kept; `summary.txt` sums them up. `Limits` has the limits of a piece; the
tokenizer limits bars and beats.

=============================================  ================================================
in the file                                    treatment
=============================================  ================================================
not MIDI, empty, a broken or truncated track   left out
a pitch or velocity above 127                  left out: the data after a damaged byte is lost
a pitch outside the vocabulary                 the note is dropped; reported
a velocity or tempo outside the vocabulary     the nearest bin
a division of 0, or in SMPTE frames            left out: there are no beats
a tempo of 0                                   removed from the piece; reported
a time signature of 0, or beyond 64ths         removed from the piece; reported
no time signature; none at the beginning       4/4
a metre outside the vocabulary                 read in the vocabulary's bars; reported
a note without an end                          ends when its key is next released, or with its
                                               track, after 4 beats at most; reported
an end without a note                          ignored
a note of length 0                             the shortest duration of the grid
a note repeated while it sounds                ends there; reported
a duplicate note                               the longest duration, the highest velocity; reported
a note longer than the vocabulary's longest    shortened; reported
several tracks of one instrument               merged (REMI: all tracks, into one piano)
drums, in a vocabulary without drums           dropped; reported
a track without an instrument                  dropped; reported
music beyond the tokenizer's last bar          dropped; reported
no note that is kept, or fewer than the limit  left out
more bytes or tokens than the limits           left out
more time or memory than the limits            the process is stopped, the piece left out
a reader that crashes or raises                the piece is left out, the others continue
=============================================  ================================================
"""
