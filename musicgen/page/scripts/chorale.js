// Chorale, as in musicgen/tokenization/chorale: four voices in sixteenths, one token a voice.

const NUM_VOICES = 4;
const CENTRES = [70, 65, 59, 51]; // usual pitches of the voices
const SILENCE = -1;
const [UNISON, FIFTH] = [0, 7];

class ChoraleTokenizer {
  /** @param tables what musicgen/page/document.py writes of the tokenizer */
  constructor(tables) {
    Object.assign(this, tables); // families, tracks, pitches, lead, leading, and those of the grammar
    this.pad = tables.size - 1;
    this.eos = this.families.EOS[0];
    this.bos = this.families.BOS[0];
    this.barTokens = null;
    this.startTokens = [this.bos];
  }

  /** Return the grid steps in a bar of a score, in the metre of its first note. */
  barLength(score) {
    const [numerator, denominator] = metreAt(score, firstOnset(score));
    return Math.max(1, Math.floor((4 * this.stepsPerBeat * numerator) / denominator));
  }

  grammar() {
    return new ChoraleGrammar(this);
  }

  /** Return the ids of a whole piece, end token included. */
  encode(score) {
    return this.tokensOf(this.framesOf(score));
  }

  /** Return the ids of a whole piece of frames, in which voices have a pitch or SILENCE. */
  tokensOf(frames) {
    return [this.bos, ...frames.flat().map((pitch) => this.#token(pitch, "Pitch")), this.eos];
  }

  #token(pitch, family) {
    return pitch === SILENCE ? this.families.Silence[0] : this.families[family][0] + pitch - this.pitches.start;
  }

  /** Return the frames of a score until its last note ends. */
  framesOf(score) {
    const step = (tick) => toGrid(tick, this.stepsPerBeat, score.ticksPerBeat);
    const { start, size } = this.pitches;
    const parts = score.tracks.filter((track) => !track.isDrum).map(({ name, notes }) => ({
      name,
      notes: notes.map(([onset, duration, pitch]) => ({
        pitch, onset: step(onset), end: Math.min(step(onset) + Math.max(step(duration), 1), this.max_frames),
      })).filter(({ pitch, onset }) => pitch >= start && pitch < start + size && onset >= 0 && onset < this.max_frames),
    })).filter(({ notes }) => notes.length);
    const voices = this.voicesOfTracks(parts);
    if (voices) parts.forEach(({ notes }, i) => notes.forEach((note) => (note.voice = voices[i])));
    else leadVoices(parts.flatMap(({ notes }) => notes));
    const notes = parts.flatMap((part) => part.notes).filter(({ voice }) => voice >= 0);
    notes.sort((a, b) => a.voice - b.voice || a.onset - b.onset || a.pitch - b.pitch);
    const kept = notes.filter((note, i) => note.voice !== notes[i + 1]?.voice || note.onset !== notes[i + 1].onset);
    kept.forEach((note, i) => {
      if (kept[i + 1]?.voice === note.voice) note.end = Math.min(note.end, kept[i + 1].onset);
    });
    const frames = Array.from({ length: greatest(kept.map(({ end }) => end)) }, () => Array(NUM_VOICES).fill(SILENCE));
    for (const { voice, pitch, onset, end } of kept) {
      for (let frame = onset; frame < end; frame++) frames[frame][voice] = pitch;
    }
    return frames;
  }

  /** Return the voice of each track: by name, or by height of up to four without chords; else null. */
  voicesOfTracks(parts) {
    const names = this.tracks.map(({ name }) => name.toLowerCase());
    const named = parts.map(({ name }) => names.indexOf(name.trim().toLowerCase()));
    if (!named.includes(-1) && new Set(named).size === named.length) return named;
    const hasChords = ({ notes }) => new Set(notes.map(({ onset }) => onset)).size < notes.length;
    if (parts.length > NUM_VOICES || parts.some(hasChords)) return null;
    const means = parts.map(({ notes }) => notes.reduce((sum, { pitch }) => sum + pitch, 0) / notes.length);
    const order = [...means.keys()].sort((a, b) => means[b] - means[a]);
    const chosen = nearestVoices(order.map((i) => means[i]), [0, 1, 2, 3], CENTRES);
    return parts.map((_, i) => chosen[order.indexOf(i)]);
  }

  /** Return the complete frames of ids; those of `Lead_*` in musical order, to come: SILENCE. */
  frames(tokens) {
    const { Pitch, Ahead, Silence, Empty, EOS } = this.families;
    const end = tokens.findIndex((token) => within(token, EOS));
    const pitches = (end < 0 ? tokens : tokens.slice(0, end)).flatMap((token) => {
      if (within(token, Silence) || within(token, Empty)) return [SILENCE];
      const family = [Pitch, Ahead].find((ids) => within(token, ids));
      return family ? [token - family[0] + this.pitches.start] : [];
    });
    const frames = [];
    for (let i = 0; i + NUM_VOICES <= pitches.length; i += NUM_VOICES) frames.push(pitches.slice(i, i + NUM_VOICES));
    const { leading, delay } = this.order(tokens[0]);
    return frames.map((frame, i) => frame.map((pitch, voice) => (leading[voice] ? pitch : frames[i + delay]?.[voice] ?? SILENCE)));
  }

  /** Return the score of ids: a track for each voice; no tempo. */
  decode(tokens) {
    const step = TICKS_PER_BEAT / this.stepsPerBeat;
    const tracks = this.tracks.map((track) => ({ ...track, notes: [] }));
    this.frames(tokens).forEach((frame, i, frames) => frame.forEach((pitch, voice) => {
      if (pitch === SILENCE) return;
      const { notes } = tracks[voice];
      if (frames[i - 1]?.[voice] === pitch) notes.at(-1)[1] += step;
      else notes.push([i * step, step, pitch, 80]);
    }));
    return { ticksPerBeat: TICKS_PER_BEAT, tracks, tempos: [], signatures: [], markers: [] };
  }

  /** Return which voices lead after a first token, and by how many frames the others are behind. */
  order(header) {
    const leads = within(header, this.families.Lead);
    const leading = leads ? this.leading[header - this.families.Lead[0]] : Array(NUM_VOICES).fill(true);
    return { leading, delay: leads ? this.lead : 0 };
  }

  /** Return the frame of a token by its index. */
  timeOf(header, index, isEnd) {
    const [frame, voice] = placeOf(Math.max(index - 1, 0));
    const { leading, delay } = this.order(header);
    return Math.max(0, frame - (isEnd || !leading[voice] ? delay : 0));
  }

  times(tokens) {
    return tokens.map((token, i) => this.timeOf(tokens[0], i, token === this.eos));
  }

  barStarts(tokens, barLength) {
    const { Pitch, Silence } = this.families;
    const numNotes = tokens.filter((token) => within(token, Pitch) || within(token, Silence)).length;
    const numFrames = Math.max(1, Math.ceil(numNotes / NUM_VOICES));
    return Array.from({ length: Math.ceil(numFrames / barLength) }, (_, i) => i * barLength);
  }

  fromBar(tokens, bar, barLength) {
    return [this.bos, ...tokens.slice(1 + NUM_VOICES * bar * barLength)];
  }

  /**
   * Return ids whose highest voice, or only one, stands ahead of the others, which are null: they are
   * to be written; and where they end. It has no note after its last one.
   */
  withMelodyAhead(tokens) {
    const frames = this.frames(tokens);
    const sings = (voice) => frames.some((frame) => frame[voice] !== SILENCE);
    const voice = [0, 1, 2, 3].find(sings);
    if (voice === undefined) throw new UserError("no melody to harmonise; play one, or drop a MIDI file");
    if (voice && [0, 1, 2, 3].filter(sings).length > 1) throw new UserError("no note of the soprano, which is the melody");
    const melody = frames.map((frame) => frame[voice]);
    melody.length = 1 + melody.findLastIndex((pitch) => pitch !== SILENCE);
    const soprano = this.leading.findIndex((leads) => leads.every((each, i) => each === (i === 0)));
    const given = [this.families.Lead[0] + soprano];
    const [empty] = this.families.Empty;
    for (let frame = 0; frame < melody.length + this.lead; frame++) {
      const below = frame < this.lead ? empty : null;
      given.push(frame < melody.length ? this.#token(melody[frame], "Ahead") : empty, below, below, below);
    }
    return { given, endTime: melody.length, lead: 0 };
  }

  /** Return the ids of a piece of a number of frames: those so far of the given ones, then the melody. */
  withMelody(tokens, given, numFrames) {
    const whole = given.map((known, i) => tokens[i] ?? known ?? this.families.Silence[0]);
    return this.tokensOf(this.frames(whole).slice(0, numFrames)).slice(0, -1);
  }
}

/** Return the frame and the voice of a token, by its index after the first. */
const placeOf = (index) => [Math.floor(index / NUM_VOICES), index % NUM_VOICES];

/** Give each note the voice that sings it, -1 beyond four voices; see lead_voices in frames.py. */
function leadVoices(notes) {
  const [last, busyUntil] = [[...CENTRES], Array(NUM_VOICES).fill(0)];
  const sorted = notes.toSorted((a, b) => a.onset - b.onset || b.pitch - a.pitch || b.end - a.end);
  for (const note of sorted) note.voice = -1;
  for (let first = 0, next; first < sorted.length; first = next) {
    const { onset } = sorted[first];
    next = sorted.findIndex((note, i) => i > first && note.onset > onset);
    if (next < 0) next = sorted.length;
    let group = sorted.slice(first, next);
    const free = [0, 1, 2, 3].filter((voice) => busyUntil[voice] <= onset);
    if (group.length > free.length) {
      const highest = Math.floor((free.length + 1) / 2);
      group = [...group.slice(0, highest), ...group.slice(group.length - (free.length - highest))];
    }
    nearestVoices(group.map(({ pitch }) => pitch), free, last).forEach((voice, i) => {
      group[i].voice = voice;
      [last[voice], busyUntil[voice]] = [group[i].pitch, group[i].end];
    });
  }
}

/** Return as many of the free voices, in order, as there are pitches: those that move least. */
function nearestVoices(pitches, free, last) {
  const choices = (count, voices) => {
    if (!count) return [[]];
    return voices.flatMap((voice, i) => choices(count - 1, voices.slice(i + 1)).map((rest) => [voice, ...rest]));
  };
  const distance = (voices) => voices.reduce((sum, voice, i) => sum + Math.abs(pitches[i] - last[voice]), 0);
  return choices(pitches.length, free).reduce((best, each) => (distance(each) < distance(best) ? each : best));
}

/** One sequence of Chorale, in the plain order or after `Lead_*`, as chorale/grammar.py has a batch. */
class ChoraleGrammar extends Grammar {
  constructor(tokenizer) {
    super(tokenizer);
    this.limit = tokenizer.max_frames;
    this.header = this.pad;
    this.sounding = false; // whether a leading voice sounds in their last or current frame
    this.end = NO_LIMIT; // the frame in which a leading voice is empty for the first time
    this.mayBeParallel = true;
    // The pitches of the last tokens, counted from the lowest; SILENCE where there is none.
    this.recent = Array(NUM_VOICES * (tokenizer.lead + 2)).fill(SILENCE);
  }

  /** The frame up to which all voices are written. */
  get complete() {
    return Math.max(0, placeOf(this.index + 1)[0] - this.tokenizer.lead);
  }

  /** @param forbids whether no two voices may move in parallel fifths or octaves */
  forbidParallels(forbids) {
    this.mayBeParallel = !forbids;
  }

  copy() {
    return Object.assign(Object.create(ChoraleGrammar.prototype), this);
  }

  fill(mask) {
    const { families, bos } = this.tokenizer;
    const set = ([first, stop], value) => mask.fill(value ? 1 : 0, first, stop);
    if (this.index < 0) return [families.BOS, families.Lead].forEach((ids) => set(ids, true));
    const [frame, voice] = placeOf(this.index);
    const { leading, delay } = this.tokenizer.order(this.header);
    const leads = leading[voice];
    const [isFirst, isLast] = [voice === leading.indexOf(true), voice === leading.lastIndexOf(true)];
    const isOver = frame >= this.end + delay;
    const mustWait = leads ? frame >= this.end : frame < delay;
    const sings = !isOver && !mustWait && (!leads || frame < this.limit);
    // The last frame that fits must have a note, or else the piece could not end there.
    const isLastChance = leads && frame === this.limit - 1 && isLast;
    set(families.Pitch, sings && !(leads && delay));
    set(families.Ahead, sings && leads && delay);
    if (!this.mayBeParallel) {
      for (const [first, stop] of [families.Pitch, families.Ahead]) {
        for (let token = first; token < stop; token++) {
          if (mask[token] && this.isParallel(token - first, voice)) mask[token] = 0;
        }
      }
    }
    set(families.Silence, sings && (!isLastChance || this.sounding));
    set(families.EOS, voice === 0 && (this.header === bos ? frame === 0 || this.sounding : isOver));
    const mayStop = leads && isFirst && delay && this.sounding && frame > 0;
    set(families.Empty, !isOver && (mustWait || mayStop));
  }

  /** Return whether a pitch would make parallel fifths or octaves, as _parallels in chorale/grammar.py. */
  isParallel(pitch, voice) {
    const { leading, delay } = this.tokenizer.order(this.header);
    const behind = leading.map((leads) => (leads ? 0 : delay));
    const mine = this.recent.at(-NUM_VOICES);
    return behind.some((frames, other) => {
      const back = NUM_VOICES * (behind[voice] - frames) + voice - other;
      if (back <= 0) return false; // a voice that is still to come
      const [before, now] = [this.recent.at(-back - NUM_VOICES), this.recent.at(-back)];
      const interval = Math.abs(mine - before) % 12;
      const isPerfect = [UNISON, FIFTH].includes(interval) && Math.abs(pitch - now) % 12 === interval;
      return isPerfect && Math.min(mine, before, now) !== SILENCE && now !== before && pitch !== mine;
    });
  }

  keepTimeTokens(mask, until) {
    const [silence] = this.tokenizer.families.Silence;
    if (placeOf(this.index)[0] >= until) return;
    mask.forEach((_, token) => {
      if (token !== silence) mask[token] = 0;
    });
  }

  move(token) {
    const { families } = this.tokenizer;
    if (within(token, families.BOS) || within(token, families.Lead)) this.header = token;
    const [frame, voice] = placeOf(this.index - 1);
    const { leading } = this.tokenizer.order(this.header);
    const family = [families.Pitch, families.Ahead].find((ids) => within(token, ids));
    this.recent = [...this.recent.slice(1), family ? token - family[0] : SILENCE];
    if (this.index > 0 && leading[voice]) {
      this.sounding = family !== undefined || (this.sounding && voice !== leading.indexOf(true));
      if (within(token, families.Empty)) this.end = Math.min(this.end, frame);
    }
    this.time = this.tokenizer.timeOf(this.header, this.index, token === this.eos);
  }
}
