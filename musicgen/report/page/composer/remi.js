// REMI, as in musicgen/tokenization/remi: bars of positions, each with chord, tempo and notes.

const NO_LIMIT = 2 ** 60;

class RemiTokenizer {
  /** @param tables what musicgen/export/page.py writes of the tokenizer */
  constructor(tables) {
    Object.assign(this, tables); // families, lengths, metres, positions, pitches, velocities, tempi, …
    this.pad = tables.size - 1;
    this.eos = this.families.EOS[0];
    this.barTokens = this.families.Bar;
    this.startTokens = [this.families.Bar[0]];
    this.hasTempo = this.tempi !== null;
    this.numPitches = this.pitches.size;
  }

  grammar() {
    return new RemiGrammar(this);
  }

  /** Return the index of a metre: the same, else one with equal bars, else the first. */
  findMetre([numerator, denominator]) {
    const same = this.metres.findIndex(([n, d]) => n === numerator && d === denominator);
    if (same >= 0) return same;
    return Math.max(0, this.metres.findIndex(([n, d]) => n * denominator === numerator * d));
  }

  /** Return the grid steps in a bar of a score, in the metre of its first note. */
  barLength(score) {
    return this.bar_lengths[this.findMetre(metreAt(score, firstOnset(score)))];
  }

  /** Return the first grid step and the metre of each bar, and where the last one ends. */
  bars(score) {
    const bars = [];
    let [start, metre] = [0, this.findMetre(COMMON_TIME)];
    const fill = (until) => {
      while (start < until && bars.length < this.max_bars) {
        bars.push([start, metre]);
        start += this.bar_lengths[metre];
      }
    };
    for (const [tick, ...signature] of score.signatures) {
      fill(toGrid(tick, this.stepsPerBeat, score.ticksPerBeat));
      metre = this.findMetre(signature);
    }
    const end = lastTick(score) + 1;
    fill(toGrid(end, this.stepsPerBeat, score.ticksPerBeat) + 1);
    return { bars, end: start };
  }

  /** Return the ids of a whole piece, end token included. */
  encode(score) {
    const { bars, end } = this.bars(score);
    const step = (tick, perStep = 1) => toGrid(tick, perStep * this.stepsPerBeat, score.ticksPerBeat);
    const inside = ([at]) => at >= 0 && at < end;
    const notes = score.tracks.filter((track) => !track.isDrum).flatMap((track) => track.notes);
    const longest = this.families.Duration[1] - this.families.Duration[0];
    const kept = removeOverlaps(notes
      .filter(([onset, , pitch]) => inside([step(onset)]) && pitch >= this.pitches.start && pitch < this.pitches.start + this.numPitches)
      .map(([onset, duration, pitch, velocity]) => ({
        voice: pitch - this.pitches.start,
        onset: 2 * step(onset),
        duration: Math.min(Math.max(step(duration, 2), 1), longest),
        velocity: nearestBin(velocity, this.velocities),
      })));
    const chords = this.chords ? chordEvents(score, this).map(([tick, chord]) => [step(tick), chord]).filter(inside) : [];
    const tempi = this.hasTempo
      ? score.tempos.map(([tick, bpm]) => [step(tick), nearestBin(bpm, this.tempi)]).filter(inside)
      : [];

    // At each grid step: ids of Chord, Tempo and notes.
    const events = new Map();
    const add = (at, rank, ...tokens) => {
      if (!events.has(at)) events.set(at, []);
      events.get(at).push([rank, tokens]);
    };
    for (const [at, chord] of findChanges(chords)) add(at, -2, this.families.Chord[0] + chord);
    for (const [at, tempo] of findChanges(tempi)) add(at, -1, this.families.Tempo[0] + tempo);
    for (const { voice, onset, duration, velocity } of kept) {
      add(onset / 2, voice, this.families.Pitch[0] + voice, this.families.Velocity[0] + velocity, this.families.Duration[0] + duration - 1);
    }
    const tokens = [];
    let bar = -1;
    for (const [at, found] of [...events].sort(([a], [b]) => a - b)) {
      while (bar + 1 < bars.length && bars[bar + 1][0] <= at) tokens.push(this.families.Bar[0] + bars[++bar][1]);
      tokens.push(this.families.Beat[0] + at - bars[bar][0]);
      found.sort(([a], [b]) => a - b);
      for (const [, ids] of found) tokens.push(...ids);
    }
    tokens.push(this.eos);
    return tokens;
  }

  /** Return the grid step of each id: that of its Bar or of the last Beat. */
  times(tokens) {
    let [start, end, time] = [0, 0, 0];
    return tokens.map((token) => {
      if (within(token, this.families.Bar)) {
        [start, time] = [end, end];
        end += this.bar_lengths[token - this.families.Bar[0]];
      } else if (within(token, this.families.Beat)) {
        time = start + token - this.families.Beat[0];
      }
      return time;
    });
  }

  barStarts(tokens) {
    const times = this.times(tokens);
    const starts = times.filter((_, i) => within(tokens[i], this.families.Bar));
    return starts.length ? starts : [0];
  }

  /** Return the ids from a bar on, which begins with the chord and the tempo in force. */
  fromBar(tokens, bar) {
    const isBar = tokens.flatMap((token, i) => (within(token, this.families.Bar) ? [i] : []));
    const [before, rest] = [tokens.slice(0, isBar[bar]), tokens.slice(isBar[bar])];
    const beat = this.families.Beat[0];
    let begin = rest[1] === beat ? 2 : 1;
    const inForce = [];
    for (const family of ["Chord", "Tempo"]) {
      const ids = this.families[family];
      if (rest[1] === beat && within(rest[begin], ids)) inForce.push(rest[begin++]);
      else inForce.push(...before.filter((token) => within(token, ids)).slice(-1));
    }
    return inForce.length ? [rest[0], beat, ...inForce, ...rest.slice(begin)] : rest;
  }

  /** Return the score of ids up to the first end token: one track, with tempi, chords and metres. */
  decode(tokens) {
    const end = tokens.indexOf(this.eos);
    if (end >= 0) tokens = tokens.slice(0, end);
    const { families, stepsPerBeat } = this;
    const [step, half] = [TICKS_PER_BEAT / stepsPerBeat, TICKS_PER_BEAT / (2 * stepsPerBeat)];
    const track = { ...this.tracks[0], notes: [] };
    const [tempos, markers, metres] = [[], [], []];
    this.times(tokens).forEach((time, i) => {
      const [token, tick] = [tokens[i], time * step];
      if (within(token, families.Bar)) metres.push([tick, token - families.Bar[0]]);
      else if (within(token, families.Tempo)) tempos.push([tick, this.tempi.start + (token - families.Tempo[0]) * this.tempi.step]);
      else if (within(token, families.Chord)) markers.push([tick, this.chordNames[token - families.Chord[0]]]);
      else if (within(token, families.Pitch) && within(tokens[i + 2], families.Duration)) {
        const velocity = this.velocities.start + (tokens[i + 1] - families.Velocity[0]) * this.velocities.step;
        const duration = (tokens[i + 2] - families.Duration[0] + 1) * half;
        track.notes.push([tick, duration, token - families.Pitch[0] + this.pitches.start, velocity]);
      }
    });
    const signatures = findChanges(metres).map(([tick, metre]) => [tick, ...this.metres[metre]]);
    if (signatures.length && signatures[0][1] === 4 && signatures[0][2] === 4) signatures.shift(); // the default
    return { ticksPerBeat: TICKS_PER_BEAT, tracks: [track], tempos, signatures, markers };
  }
}

/** One sequence of REMI, as musicgen/tokenization/remi/grammar.py has a batch. */
class RemiGrammar extends Grammar {
  constructor(tokenizer) {
    super(tokenizer);
    this.longestBar = Math.max(...tokenizer.bar_lengths);
    this.numBars = 0; // begun
    this.barStart = 0;
    this.barEnd = 0;
    this.pitch = -1; // index of the last at this position
    this.ends = new Int32Array(tokenizer.numPitches); // half grid step at which each stops sounding
    this.tempo = this.chord = this.metre = -1;
    this.chordsAllowed = true;
    this.holdTempo = this.holdMetre = false;
  }

  copy() {
    return Object.assign(Object.create(RemiGrammar.prototype), this, { ends: this.ends.slice() });
  }

  afterPrompt(prompt) {
    const { Chord, Pitch } = this.tokenizer.families;
    const has = (ids) => prompt.some((token) => within(token, ids));
    this.chordsAllowed = has(Chord) || !has(Pitch);
  }

  hold(tempo, metre) {
    [this.holdTempo, this.holdMetre] = [tempo, metre];
  }

  fill(mask) {
    const { families, followers, bar_lengths, max_bars } = this.tokenizer;
    const may = new Set(followers[this.last === this.pad ? "" : this.family(this.last)]);
    const set = (name, test) => {
      if (!may.has(name)) return;
      const [first, stop] = families[name];
      for (let token = first; token < stop; token++) mask[token] = test(token - first) ? 1 : 0;
    };
    const count = (name) => families[name][1] - families[name][0];
    const hasTempo = this.tempo >= 0 || this.ends.some((end) => end > 0);
    const mayTempo = !(this.holdTempo && hasTempo);
    set("Tempo", (rank) => mayTempo && rank !== this.tempo);
    set("Chord", (rank) => this.chordsAllowed && rank !== this.chord);
    set("Pitch", (rank) => this.ends[rank] <= 2 * this.time && rank > this.pitch);
    set("Velocity", () => true);
    set("EOS", () => true);
    // A Beat needs content: a change of tempo or chord, or else a pitch that is silent by then.
    const differs = (name, value) => count(name) > (value >= 0 ? 1 : 0);
    const anyChange = (mayTempo && differs("Tempo", this.tempo)) || (this.chordsAllowed && differs("Chord", this.chord));
    const ready = anyChange ? 0 : Math.floor((this.ends.reduce((a, b) => Math.min(a, b)) + 1) / 2);
    const earliest = this.time + (within(this.last, families.Bar) ? 0 : 1);
    set("Beat", (rank) => {
      const time = this.barStart + rank;
      return time >= earliest && time >= ready && time < Math.min(this.barEnd, this.limit);
    });
    const numMore = max_bars - 1 - this.numBars;
    set("Bar", (rank) => {
      const end = this.barEnd + bar_lengths[rank] + numMore * this.longestBar;
      const held = this.holdMetre && this.metre >= 0;
      return numMore >= 0 && end > ready && (!held || rank === this.metre) && this.barEnd < this.limit;
    });
    set("Duration", (rank) => rank < 2 * (this.limit - this.time));
  }

  keepTimeTokens(mask, until) {
    const { Bar, Beat } = this.tokenizer.families;
    for (let token = 0; token < mask.length; token++) {
      const arrives = within(token, Beat) && this.barStart + token - Beat[0] >= until;
      if (!within(token, Bar) && !arrives) mask[token] = 0;
    }
  }

  family(token) {
    const { families } = this.tokenizer;
    return Object.keys(families).find((name) => within(token, families[name]));
  }

  move(token) {
    const family = this.family(token);
    if (family === undefined) return;
    const rank = token - this.tokenizer.families[family][0];
    if (family === "Bar") {
      this.barStart = this.time = this.barEnd;
      this.barEnd += this.tokenizer.bar_lengths[rank];
      this.numBars++;
      this.metre = rank;
      this.pitch = -1;
    } else if (family === "Beat") {
      this.time = this.barStart + rank;
      this.pitch = -1;
    } else if (family === "Pitch") this.pitch = rank;
    else if (family === "Duration" && this.pitch >= 0) this.ends[this.pitch] = 2 * this.time + rank + 1;
    else if (family === "Tempo") this.tempo = rank;
    else if (family === "Chord") this.chord = rank;
  }
}
