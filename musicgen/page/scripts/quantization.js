// Times and values on a tokenizer's grid, as in musicgen/tokenization/quantization.py.

/** Return the nearest grid step of a tick; halves round up. */
function toGrid(tick, stepsPerBeat, ticksPerBeat) {
  return Math.floor((2 * stepsPerBeat * tick + ticksPerBeat) / (2 * ticksPerBeat));
}

/** Return a score, as far as it was played, with its onsets and ends at sixteenths, or at thirds of a beat. */
function inTime(score) {
  const [notes, beat] = [allNotes(score), score.ticksPerBeat];
  const nearest = (tick, perBeat) => Math.floor((toGrid(tick, perBeat, beat) * beat) / perBeat);
  const between = notes.map(([onset, duration]) => onset + duration).filter((end) => nearest(end, 12) !== end);
  const last = between.reduce((a, b) => Math.max(a, b), 0);
  const played = notes.filter(([onset]) => onset < last);
  if (2 * between.length <= played.length) return score;
  const away = (onset, perBeat) => Math.abs(nearest(onset, perBeat) - onset);
  const exact = played.filter(([onset]) => 200 * Math.min(away(onset, 4), away(onset, 3)) < beat);
  const grids = [[4, 1], [3, 2], [24, 20]].slice(0, 3 * exact.length >= 2 * played.length ? 3 : 2);
  const [far, grid] = [{}, {}];
  for (const [onset] of notes) {
    const at = Math.floor(onset / beat);
    far[at] = grids.map(([each, weight], i) => weight * away(onset, each) + (far[at]?.[i] ?? 0));
    grid[at] = grids[far[at].indexOf(Math.min(...far[at]))][0];
  }
  const perBeat = (tick) => (Math.floor(tick / beat) > last / beat ? 12 : (grid[Math.floor(tick / beat)] ?? 4));
  const moved = ([onset, duration, ...rest]) => {
    const [start, end] = [onset, onset + duration].map((tick) => nearest(tick, perBeat(tick)));
    return [start, Math.max(end - start, Math.floor(beat / perBeat(start))), ...rest];
  };
  return { ...score, tracks: score.tracks.map((track) => ({ ...track, notes: track.notes.map(moved) })) };
}

/** Return the index of the nearest value of bins, which have edges between them. */
const binOf = (value, { edges }) => edges.findLastIndex((edge) => edge <= value) + 1;

/**
 * Make each voice play one note at a time; return the notes by voice, then onset.
 *
 * Notes { voice, onset, duration, velocity } of a voice that begin together are merged into one with
 * the longest duration and the highest velocity. A note ends where the next of its voice begins.
 */
function removeOverlaps(notes) {
  const sorted = notes.toSorted((a, b) => a.voice - b.voice || a.onset - b.onset);
  const kept = [];
  for (const note of sorted) {
    const last = kept.at(-1);
    if (last && last.voice === note.voice && last.onset === note.onset) {
      last.duration = Math.max(last.duration, note.duration);
      last.velocity = Math.max(last.velocity, note.velocity);
    } else {
      kept.push({ ...note });
    }
  }
  for (let i = 1; i < kept.length; i++) {
    const [note, next] = [kept[i - 1], kept[i]];
    if (note.voice === next.voice) note.duration = Math.min(note.duration, next.onset - note.onset);
  }
  return kept;
}

/** Return the last value of each step where it changes; [step, value] are sorted by step. */
function findChanges(events) {
  const last = events.filter(([step], i) => step !== events[i + 1]?.[0]);
  return last.filter(([, value], i) => i === 0 || value !== last[i - 1][1]);
}

/** Return the last element whose first entry is at most `value`. */
const latestAt = (events, value) => events.findLast(([at]) => at <= value);

const within = (token, [first, stop]) => token >= first && token < stop;
