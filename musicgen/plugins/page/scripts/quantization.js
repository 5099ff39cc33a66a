// Times and values on a tokenizer's grid, as in musicgen/tokenization.

/** Return the nearest grid step of a tick; halves round up. */
function toGrid(tick, stepsPerBeat, ticksPerBeat) {
  return Math.floor((2 * stepsPerBeat * tick + ticksPerBeat) / (2 * ticksPerBeat));
}

// Grids of played music, as steps of a beat, and how much a distance from each of them counts.
const SIXTEENTHS = { perBeat: 4, weight: 1 };
const THIRDS = { perBeat: 3, weight: 2 };
const TWENTY_FOURTHS = { perBeat: 24, weight: 20 };
const TWELFTHS = 12; // of a beat, which all notes have that were not played

/** Return a score, as far as it was played, with its notes at sixteenths or at thirds of a beat. */
function printedRhythm(score) {
  const [notes, beat] = [allNotes(score), score.ticksPerBeat];
  const nearest = (tick, perBeat) => Math.floor((toGrid(tick, perBeat, beat) * beat) / perBeat);
  const distance = (tick, perBeat) => Math.abs(nearest(tick, perBeat) - tick);
  const ends = notes.map(([onset, duration]) => onset + duration);
  const playedEnds = ends.filter((end) => nearest(end, TWELFTHS) !== end);
  const lastPlayed = greatest(playedEnds);
  const played = notes.filter(([onset]) => onset < lastPlayed);
  if (2 * playedEnds.length <= played.length) return score;
  const isExact = ([onset]) => 200 * Math.min(distance(onset, 4), distance(onset, 3)) < beat;
  const isPrinted = 3 * played.filter(isExact).length >= 2 * played.length; // only lengths were played
  const grids = isPrinted ? [SIXTEENTHS, THIRDS, TWENTY_FOURTHS] : [SIXTEENTHS, THIRDS];
  const gridOfBeat = nearestGrids(
    notes.map(([onset]) => onset),
    beat,
    grids,
    distance,
  );
  const gridAt = (tick) => {
    const number = Math.floor(tick / beat);
    return number > lastPlayed / beat ? TWELFTHS : (gridOfBeat.get(number) ?? SIXTEENTHS.perBeat);
  };
  const moved = ([onset, duration, ...rest]) => {
    const [start, end] = [onset, onset + duration].map((tick) => nearest(tick, gridAt(tick)));
    return [start, Math.max(end - start, Math.floor(beat / gridAt(start))), ...rest];
  };
  const tracks = score.tracks.map((track) => ({ ...track, notes: track.notes.map(moved) }));
  return { ...score, tracks };
}

/** Return the steps of the grid that the onsets of each beat are nearest to, by number of the beat. */
function nearestGrids(onsets, beat, grids, distance) {
  const sums = new Map();
  for (const onset of onsets) {
    const number = Math.floor(onset / beat);
    const before = sums.get(number) ?? grids.map(() => 0);
    sums.set(
      number,
      grids.map(({ perBeat, weight }, i) => before[i] + weight * distance(onset, perBeat)),
    );
  }
  const nearest = (distances) => grids[distances.indexOf(least(distances))].perBeat;
  return new Map([...sums].map(([number, distances]) => [number, nearest(distances)]));
}

/** Return the index of the nearest value of bins, which have edges between them. */
const binOf = (value, { edges }) => edges.findLastIndex((edge) => edge <= value) + 1;

/**
 * Make each line play one note at a time; return the notes by line, then onset.
 *
 * A line is a pitch of a part. Notes { line, onset, duration, velocity } of a line that begin together
 * are merged into one with the longest duration and the highest velocity. A note ends where the next
 * of its line begins.
 */
function removeOverlaps(notes) {
  const sorted = notes.toSorted((a, b) => a.line - b.line || a.onset - b.onset);
  const merged = [];
  for (const note of sorted) {
    const last = merged.at(-1);
    if (last && last.line === note.line && last.onset === note.onset) {
      last.duration = Math.max(last.duration, note.duration);
      last.velocity = Math.max(last.velocity, note.velocity);
    } else {
      merged.push({ ...note });
    }
  }
  for (let i = 1; i < merged.length; i++) {
    const [note, next] = [merged[i - 1], merged[i]];
    if (note.line === next.line) note.duration = Math.min(note.duration, next.onset - note.onset);
  }
  return merged;
}

/** Return the last value of each step where it changes; [step, value] are sorted by step. */
function findChanges(events) {
  const last = events.filter(([step], i) => step !== events[i + 1]?.[0]);
  return last.filter(([, value], i) => i === 0 || value !== last[i - 1][1]);
}
