// Groove2Groove, as in musicgen/tokenization/groove2groove: note-ons, note-offs and time shifts.

const NUM_KEYS = 128; // of each instrument
const LONGEST_SHIFT = 24;
const NEVER = 2 ** 31 - 1;

class GrooveTokenizer extends BarlessTokenizer {
  constructor(tables) {
    super(tables);
    this.numVoices = this.families.NoteOn[1] - this.families.NoteOn[0];
  }

  grammar() {
    return new GrooveGrammar(this);
  }

  /** Return the index of the instrument that plays a track; undefined if there is none. */
  findInstrument(track) {
    const plain = (name) => name.trim().toLowerCase();
    const name = plain(track.name);
    const names = this.tracks.map((each) => plain(each.name));
    if (names.includes(name)) return names.indexOf(name);
    const sameKind = [...this.tracks.keys()].filter((i) => this.tracks[i].isDrum === track.isDrum);
    const byName = sameKind.filter((i) => name.endsWith(` ${names[i]}`));
    const byProgram = sameKind.filter((i) => track.isDrum || this.tracks[i].takes.includes(track.program));
    return [...byName, ...byProgram][0];
  }

  /** Return the ids of a whole piece, end token included. */
  encode(score) {
    const step = (tick) => toGrid(tick, this.stepsPerBeat, score.ticksPerBeat);
    const notes = score.tracks.flatMap((track) => {
      const index = this.findInstrument(track);
      if (index === undefined) return [];
      return track.notes.map(([onset, duration, pitch, velocity]) => ({
        voice: pitch + index * NUM_KEYS, onset: step(onset), duration: step(duration), velocity,
      }));
    }).filter(({ onset }) => onset >= 0 && onset < this.max_length);
    for (const note of notes) note.duration = Math.min(Math.max(note.duration, 1), this.max_length - note.onset);
    const events = removeOverlaps(notes).flatMap(({ voice, onset, duration }) => {
      const end = onset + Math.min(duration, this.max_durations[Math.floor(voice / NUM_KEYS)]);
      return [[onset, 1, voice], [end, 0, voice]]; // by time, ends before beginnings
    });
    events.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
    return [this.bos, ...this.serialise(events), this.eos];
  }

  /** Return the ids of sorted [time, 1 for a note-on, voice], with shifts where time passes. */
  serialise(events) {
    const tokens = [];
    let now = 0;
    for (const [time, isOn, voice] of events) {
      // A shift counts from the start of the current beat; more than 24 ticks take several.
      let distance = time > now ? time - now + (now % this.stepsPerBeat) : 0;
      for (; distance > LONGEST_SHIFT; distance -= LONGEST_SHIFT) tokens.push(this.families.TimeShift[1] - 1);
      if (distance) tokens.push(this.families.TimeShift[0] + distance - 1);
      tokens.push(isOn ? voice : voice + this.numVoices);
      now = time;
    }
    return tokens;
  }

  /** Return the time that a shift leads to. */
  arrival(time, shift) {
    return time - (time % this.stepsPerBeat) + shift - this.families.TimeShift[0] + 1;
  }

  times(tokens) {
    let time = 0;
    return tokens.map((token) => {
      if (within(token, this.families.TimeShift)) time = this.arrival(time, token);
      return time;
    });
  }

  barStarts(tokens, barLength) {
    const end = greatest(this.times(tokens));
    return Array.from({ length: Math.floor(end / barLength) + 1 }, (_, i) => i * barLength);
  }

  /** Return voice, onset and offset of the notes; those without an end last until the end. */
  notes(tokens) {
    const times = this.times(tokens);
    const [found, open] = [[], new Map()];
    tokens.forEach((token, i) => {
      if (token >= 2 * this.numVoices) return;
      const voice = token % this.numVoices;
      const note = open.get(voice);
      if (note) note[2] = times[i];
      open.delete(voice);
      if (token >= this.numVoices) return;
      const begun = [voice, times[i], times.at(-1)];
      open.set(voice, begun);
      found.push(begun);
    });
    return found;
  }

  /** Return the ids from a bar on, without the ends of notes that began before it. */
  fromBar(tokens, bar, barLength) {
    const start = bar * barLength;
    const events = this.notes(tokens).filter(([, onset]) => onset >= start).flatMap(([voice, onset, end]) => [
      [onset - start, 1, voice], [end - start, 0, voice],
    ]);
    events.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
    return [this.bos, ...this.serialise(events), this.eos];
  }

  /** Return the score of ids up to the first end token: all instruments; no tempo. */
  decode(tokens) {
    const end = tokens.indexOf(this.eos);
    if (end >= 0) tokens = tokens.slice(0, end);
    const step = TICKS_PER_BEAT / this.stepsPerBeat;
    const tracks = this.tracks.map((track) => ({ ...track, notes: [] }));
    for (const [voice, onset, offset] of this.notes(tokens)) {
      const note = [onset * step, Math.max(offset - onset, 1) * step, voice % NUM_KEYS, 80];
      tracks[Math.floor(voice / NUM_KEYS)].notes.push(note);
    }
    return { ticksPerBeat: TICKS_PER_BEAT, tracks, tempos: [], signatures: [], markers: [] };
  }
}

/** One sequence of Groove2Groove, as groove2groove/grammar.py has a batch. */
class GrooveGrammar extends Grammar {
  constructor(tokenizer) {
    super(tokenizer);
    this.noteOns = tokenizer.families.NoteOn;
    this.limit = tokenizer.max_length;
    this.ends = new Int32Array(tokenizer.numVoices); // by when each voice must end, 0 if silent
    this.maxNotes = null; // of each instrument that sound at once
  }

  copy() {
    return Object.assign(Object.create(GrooveGrammar.prototype), this, { ends: this.ends.slice() });
  }

  bound(maxNotes) {
    this.maxNotes = maxNotes;
  }

  /** Return the time by which a note or else the piece must end, and the lowest such voice. */
  nextEnd() {
    let [end, voice] = [NEVER, this.ends.length];
    this.ends.forEach((each, i) => {
      if (each && each < end) [end, voice] = [each, i];
    });
    return end < NEVER ? [end, voice] : [this.limit, voice];
  }

  fill(mask) {
    const { numVoices, families, bos, stepsPerBeat } = this.tokenizer;
    const { last, time, ends } = this;
    const afterOn = last < numVoices;
    const afterOff = last >= numVoices && last < 2 * numVoices;
    const begun = last !== this.pad;
    const [end, voiceToEnd] = this.nextEnd();
    const anySounds = voiceToEnd < numVoices;
    const isDue = end <= time;

    const lowestOn = begun && !isDue ? (afterOn ? last + 1 : 0) : numVoices;
    for (let voice = lowestOn; voice < numVoices; voice++) {
      if (!ends[voice] && !this.isFull(Math.floor(voice / NUM_KEYS))) mask[voice] = 1;
    }
    const lowestOff = afterOn ? numVoices : afterOff ? last - numVoices + 1 : 0;
    // Ends ascend, so that none may pass over a voice that must end now.
    const highestOff = isDue ? Math.min(voiceToEnd, numVoices - 1) : numVoices - 1;
    for (let voice = lowestOff; voice <= highestOff; voice++) {
      if (ends[voice]) mask[voice + numVoices] = 1;
    }
    const [firstShift, stop] = families.TimeShift;
    const mayShift = afterOn || afterOff || last === stop - 1 || last === bos;
    for (let shift = firstShift; mayShift && shift < stop; shift++) {
      const isLater = shift - firstShift + 1 > time % stepsPerBeat;
      // Without a note to close there, nothing can follow at the limit.
      if (isLater && this.tokenizer.arrival(time, shift) < end + (anySounds ? 1 : 0)) mask[shift] = 1;
    }
    if (!anySounds && (afterOff || last === bos)) mask[this.eos] = 1;
    if (!begun) mask[bos] = 1;
  }

  isFull(instrument) {
    if (!this.maxNotes) return false;
    const first = instrument * NUM_KEYS;
    let sounding = 0;
    for (let voice = first; voice < first + NUM_KEYS; voice++) sounding += this.ends[voice] > 0 ? 1 : 0;
    return sounding >= this.maxNotes[instrument];
  }

  keepTimeTokens(mask, until) {
    const { numVoices, families } = this.tokenizer;
    const [end] = this.nextEnd();
    for (let token = 0; token < mask.length; token++) {
      const isShift = within(token, families.TimeShift);
      // An event must follow any shift but the longest.
      const ready = this.tokenizer.arrival(this.time, token) >= Math.min(until, end);
      const closes = token >= numVoices && token < 2 * numVoices && end <= this.time;
      if (!(isShift && (ready || token === families.TimeShift[1] - 1)) && !closes) mask[token] = 0;
    }
  }

  move(token) {
    const { numVoices, max_durations, families } = this.tokenizer;
    if (token < numVoices) {
      const longest = max_durations[Math.floor(token / NUM_KEYS)];
      this.ends[token] = Math.min(this.time + longest, this.limit);
    } else if (token < 2 * numVoices) this.ends[token - numVoices] = 0;
    else if (within(token, families.TimeShift)) this.time = this.tokenizer.arrival(this.time, token);
  }
}
