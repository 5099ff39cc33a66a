// The grammar of REMI and Songs for one sequence, as musicgen/tokenization/bar_grammar.py has it for
// a batch.

const HEADER_FAMILIES = ["Bar", "Left", "Key", "Tempo", "EOS"]; // which are not written to a kept part

class BarGrammar extends Grammar {
  constructor(tokenizer) {
    super(tokenizer);
    const numParts = tokenizer.places.length;
    this.numBars = 0; // begun
    this.barStart = 0;
    this.barEnd = 0;
    this.part = -1;
    this.pitch = -1; // index of the last at this position
    // When each pitch of each part stops sounding, in units of a grid step.
    this.ends = new Int32Array(numParts * tokenizer.count("Pitch"));
    this.tempo = this.chord = this.timeSignature = this.key = -1; // ranks of the last tokens
    this.chordsAllowed = true;
    this.hasChords = false; // whether the part of chords has begun in this bar
    this.progression = null; // [grid step, chord], and at last an end that no piece reaches
    this.plan = null; // [grid step, kind] of ends of phrases and of the piece; null: any
    this.tempoFixed = this.timeSignatureFixed = false;
    this.orders = [...Array(2 ** numParts).keys()]; // sets of parts, as bits, that may come first
    this.isTarget = Array(numParts).fill(true);
    this.isFuture = false; // of a gap
  }

  copy() {
    const copy = Object.create(BarGrammar.prototype);
    return Object.assign(copy, this, { ends: this.ends.slice() });
  }

  afterPrompt(prompt) {
    const { families } = this.tokenizer;
    const hasFamily = (ids) => prompt.some((token) => within(token, ids));
    this.chordsAllowed = hasFamily(families.Chord) || !hasFamily(families.Pitch);
    const present = this.isTarget.map((_, part) => prompt.includes(families.Part[0] + part));
    this.isTarget = present.map((is, part) => is || !present.includes(true) || this.isChords(part));
  }

  /** The grid step up to which all parts are written. */
  get complete() {
    return this.barStart;
  }

  /** Put the kept parts first in each bar, and write only the target parts, and chords. */
  keepParts(kept, targets) {
    this.orders = [kept.reduce((parts, part) => parts | (1 << part), 0)];
    this.isTarget = this.isTarget.map((_, part) => targets.includes(part) || this.isChords(part));
  }

  /** @param progression [grid step, index] of each chord; null: the model chooses */
  followProgression(progression) {
    this.chordsAllowed ||= Boolean(progression);
    this.progression = progression && [...progression, [NO_LIMIT, -1]];
  }

  /**
   * Let phrases and the piece end where a plan says; after it they end as the model likes, but the
   * piece goes on. PlannedEnds in musicgen/tokenization/bar_constraints.py.
   *
   * @param plan [grid step, kind] of each end, ascending
   */
  planEnds(plan) {
    this.plan = plan;
  }

  fixTempo(isFixed) {
    this.tempoFixed = isFixed;
  }

  fixTimeSignature(isFixed) {
    this.timeSignatureFixed = isFixed;
  }

  isChords(part) {
    return this.tokenizer.places[part] === -1;
  }

  /** Return whether a part may follow another in a bar, if the parts of a set come first. */
  isOrdered(firstParts, before, next) {
    const { places } = this.tokenizer;
    const place = (part) => places[part] - ((firstParts >> part) & 1) * places.length;
    return before < 0 || place(before) < place(next);
  }

  fill(mask, until) {
    const { tokenizer } = this;
    const family = tokenizer.family(this.last);
    const last = this.last === this.pad || family === "Gap" ? "" : family;
    const needsKey = tokenizer.count("Key") && this.key < 0 && this.numBars;
    for (const family of tokenizer.followers[last]) {
      if (needsKey && family !== "Key" && family !== "Left") continue;
      const isTarget =
        family === "Part" || (this.isTarget[this.part] && !HEADER_FAMILIES.includes(family));
      const [first, stop] = tokenizer.families[family];
      const test = this.tokenTest(family, last);
      for (let token = first; token < stop; token++) {
        const isFree = until === undefined || isTarget || token === until;
        mask[token] = isFree && test(token - first) ? 1 : 0;
      }
    }
    if (this.progression) this.restrictToProgression(mask, last);
    if (this.plan && last === "Bar" && tokenizer.count("Left")) this.restrictToPlan(mask);
  }

  /** End a bar where the model ends it: to_bar_line in musicgen/tokenization/bar_headers.py. */
  redirected(logits, allowed) {
    const { Bar, Beat, Pitch } = this.tokenizer.families;
    const nextBars = allowed.subarray(...Bar);
    const rank = nextBars.indexOf(1);
    const isOne = rank >= 0 && rank === nextBars.lastIndexOf(1);
    if (!isOne || !allowed.subarray(...Pitch).includes(1)) return logits;
    const behind = Beat[0] + this.barEnd - this.barStart;
    const ends = [...logits.slice(...Bar), ...logits.slice(behind, Beat[1])];
    const highest = Math.max(...ends);
    const sum = ends.reduce((sum, logit) => sum + Math.exp(logit - highest), 0);
    return logits.with(Bar[0] + rank, highest + Math.log(sum));
  }

  /** Leave the count of bars that the plan has for this one, if it has one. */
  restrictToPlan(mask) {
    const { barStart, barEnd } = this;
    const [first, stop] = this.tokenizer.families.Left;
    const tokens = Array.from({ length: stop - first }, (_, rank) => first + rank);
    const leadingTo = ([step, kindOfEnd]) =>
      tokens.filter((token) => {
        const [count, kind] = countOf(token - first);
        return kind === kindOfEnd && barStart + count * (barEnd - barStart) === step;
      });
    const end = this.plan.find(([step]) => step >= barEnd);
    const pieceEnd = this.plan.find(([, kind]) => kind === PIECE);
    const ofPiece = pieceEnd ? leadingTo(pieceEnd) : []; // which replace those of a phrase
    const due = ofPiece.length || !end ? ofPiece : leadingTo(end);
    if (due.length) mask.fill(0, 0, first).fill(0, stop);
    for (const token of tokens) {
      const mayCome = end ? due.includes(token) : countOf(token - first)[1] !== PIECE;
      if (!mayCome) mask[token] = 0;
    }
  }

  /** Return when the progression changes the chord next from a time on, and to which. */
  nextChord(time) {
    const at = this.progression.findIndex(([, chord], i) => {
      const end = this.progression[i + 1]?.[0];
      return end === undefined || (end > time && chord !== this.chord);
    });
    const [start, chord] = this.progression[at];
    return [Math.max(start, time), chord];
  }

  /** Leave the tokens with which the chords come at their times, as bar_constraints.py does. */
  restrictToProgression(mask, last) {
    const { tokenizer, time, barStart, barEnd } = this;
    const { families, followers, hasParts } = tokenizer;
    const inChords = hasParts && this.part >= 0 && this.isChords(this.part);
    const mayEndPart = ["Part", "Bar", "EOS"].some((family) => followers[last].includes(family));
    const isBefore = barEnd <= this.progression[0][0]; // in these bars the model chooses
    if (hasParts && (isBefore || !(mayEndPart || inChords))) return;
    const ofPart = this.hasChords ? barEnd - 1 : barStart;
    const [due, chord] = this.nextChord(hasParts && !inChords ? ofPart : time);
    const isComplete = due >= Math.min(barEnd, this.limit);
    const first = this.progression[0][0]; // before it within a bar the model chooses, too
    const isEarly = inChords && time < first && first < NO_LIMIT;
    const restrict = (family, test) => {
      const [first, stop] = families[family] ?? [0, 0];
      for (let token = first; token < stop; token++) if (!test(token - first)) mask[token] = 0;
    };
    restrict("Chord", (rank) => isEarly || (rank === chord && due === time));
    for (const family of ["Bar", "EOS"]) restrict(family, () => isComplete);
    if (hasParts) {
      const comes = (beat) => beat === due || (isEarly && beat < first);
      restrict("Beat", (rank) => !inChords || comes(barStart + rank));
      restrict("Part", (part) => this.isChords(part) !== isComplete);
      return;
    }
    restrict("Beat", (rank) => barStart + rank <= due);
    if (last === "Beat" && due === time)
      mask.forEach((_, token) => within(token, families.Chord) || (mask[token] = 0));
  }

  /** Return which tokens of a family, by rank, may follow one of the family `last`. */
  tokenTest(family, last) {
    const { tokenizer, time, limit } = this;
    const { durations, unit } = tokenizer;
    const part = Math.max(this.part, 0);
    const isDrum = tokenizer.tracks[part]?.isDrum ?? false;
    switch (family) {
      case "Key":
        return () => this.key < 0; // it stays
      case "Tempo": {
        const isFixed = this.tempoFixed && (this.tempo >= 0 || this.ends.some((end) => end !== 0));
        return (rank) => !isFixed && rank !== this.tempo;
      }
      case "Chord": {
        const mayChange = this.chordsAllowed && (!tokenizer.hasParts || this.isChords(part));
        return (rank) => mayChange && rank !== this.chord;
      }
      case "Pitch": {
        const isPitched = !isDrum && !this.isChords(part);
        const first = part * tokenizer.count("Pitch");
        const above = Math.max(this.pitch, (tokenizer.lowestPitches[part] ?? 0) - 1);
        return (rank) => isPitched && rank > above && this.ends[first + rank] <= unit * time;
      }
      case "Drum":
        return (rank) => isDrum && rank > this.pitch;
      case "Duration":
        return (rank) => !isDrum && durations.values[rank] <= unit * (limit - time);
      case "Beat":
      case "Part":
      case "Bar":
      case "EOS":
        if (last === "Velocity" && !isDrum) return () => false; // a duration follows
        return this.placeTest(family, last);
      default:
        return () => true;
    }
  }

  placeTest(family, last) {
    const { tokenizer, time, limit } = this;
    if (family === "Beat") {
      const first = time - this.barStart + (["Bar", "Part"].includes(last) ? 0 : 1);
      const end = Math.min(this.barEnd, limit);
      return (rank) => rank >= first && this.barStart + rank < end;
    }
    if (family === "Part") {
      const mayFollow = (next) =>
        this.orders.some((firstParts) => this.isOrdered(firstParts, this.part, next));
      return (next) =>
        this.isTarget[next] && (this.chordsAllowed || !this.isChords(next)) && mayFollow(next);
    }
    if (family === "Bar") {
      const isFixed = this.timeSignatureFixed && this.timeSignature >= 0;
      const hasRoom = this.numBars < tokenizer.max_bars && this.barEnd < limit;
      return (rank) => hasRoom && (!isFixed || rank === this.timeSignature);
    }
    return () => true;
  }

  keepTimeTokens(mask, until) {
    const { families } = this.tokenizer;
    mask.forEach((_, token) => {
      const isBeat = within(token, families.Beat);
      const arrives = isBeat && this.barStart + token - families.Beat[0] >= until;
      if (!within(token, families.Bar) && !arrives) mask[token] = 0;
    });
  }

  move(token) {
    const { unit, durations, bar_lengths } = this.tokenizer;
    const [family, rank] = [this.tokenizer.family(token), this.tokenizer.rank(token)];
    if (["Bar", "Part", "Beat"].includes(family)) this.pitch = -1;
    if (family === "Gap") {
      // What is behind each mark begins anew.
      Object.assign(this, new BarGrammar(this.tokenizer), { index: this.index, isFuture: !rank });
    } else if (family === "Bar") {
      this.barStart = this.time = this.barEnd;
      this.barEnd += bar_lengths[rank];
      this.numBars++;
      this.hasChords = false;
      this.timeSignature = rank;
      this.part = -1;
    } else if (family === "Part") {
      this.time = this.barStart;
      this.orders = this.orders.filter((firstParts) => this.isOrdered(firstParts, this.part, rank));
      this.part = rank;
      this.hasChords ||= this.isChords(rank);
    } else if (family === "Beat") {
      this.time = this.barStart + rank;
    } else if (family === "Pitch" || family === "Drum") {
      this.pitch = rank;
    } else if (family === "Duration" && this.pitch >= 0) {
      const line = Math.max(this.part, 0) * this.tokenizer.count("Pitch") + this.pitch;
      this.ends[line] = unit * this.time + durations.values[rank];
    } else if (["Key", "Tempo", "Chord"].includes(family)) {
      this[family.toLowerCase()] = rank;
    }
  }
}
