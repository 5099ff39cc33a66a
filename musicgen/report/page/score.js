"use strict";

// One piece from JSON: notes in ticks and seconds, and conversions between the two.

/** Return the index of the last element whose key is at most `value`, or -1. */
function lastAtOrBefore(items, value, key = (item) => item) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(items[middle]) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function runningSum(differences) {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

class Score {
  constructor(data) {
    Object.assign(this, data); // ticksPerBeat, end, promptEnd, newEnd, tempo, meters, markers, marks, tracks
    this.bars = runningSum(data.bars);
    this.notes = data.tracks.flatMap((track, number) =>
      runningSum(track.onset).map((onset, i) => {
        const end = onset + track.duration[i];
        return {
          track: number,
          drum: track.voice === "drums",
          pitch: track.pitch[i],
          velocity: track.velocity[i],
          onset,
          end,
          kept: onset < this.promptEnd || track.kept?.[i] > 0,
          start: this.secondsAt(onset),
          stop: this.secondsAt(end),
        };
      })
    );
    this.notes.sort((a, b) => a.onset - b.onset);
    this.duration = this.secondsAt(this.end);
    this.newEnd ??= this.end;
    this.hasGap = this.newEnd < this.end;
    [this.promptSeconds, this.newSeconds] = [this.promptEnd, this.newEnd].map((tick) => this.secondsAt(tick));
  }

  secondsAt(tick) {
    const segment = Math.max(0, lastAtOrBefore(this.tempo, tick, (s) => s[0]));
    const [first, second, rate] = this.tempo[segment];
    return second + (tick - first) * rate;
  }

  tickAt(time) {
    const segment = Math.max(0, lastAtOrBefore(this.tempo, time, (s) => s[1]));
    const [first, second, rate] = this.tempo[segment];
    return rate > 0 ? first + (time - second) / rate : first;
  }

  /** Return the bar number, from 1. */
  barAt(tick) {
    return Math.max(1, lastAtOrBefore(this.bars, tick + 0.01) + 1); // 1919.9999 is 1920 with a rounding error
  }
}
