// Bars and parts that somebody selects to be written anew, parts that are locked, and the takes.

const AS_IT_WAS = -1; // in place of the number of a take

class Rewriting {
  constructor(page) {
    this.page = page;
    this.bars = null; // the first and the last of a drag or of the fields, from 1; null: none
    [this.parts, this.locked] = [new Set(), new Set()];
    this.count = 0; // how often it has written
    this.begin({ tracks: [] });
    this.items = CONTENT.tables.tracks.map((track, part) => this.#partItem(track, part));
    byId("legend").replaceChildren(...this.items);
    this.cards = [...document.querySelectorAll(".take")].map((card, number) => {
      card.querySelector("button").addEventListener("click", () => this.hear(number));
      const roll = new Roll(card.querySelector(".roll"), page.piece.score, () => true);
      new ResizeObserver(() => this.#showTake(number)).observe(roll.element);
      return { card, roll };
    });
    this.#connect();
  }

  /** Forget the takes, which are of the piece before; the selection stays. */
  begin(piece) {
    Object.assign(this, { piece, takes: [], shown: AS_IT_WAS, isWriting: false });
  }

  #partItem({ name }, part) {
    const item = byId("part").content.firstElementChild.cloneNode(true);
    const [choose, lock] = item.querySelectorAll("button");
    choose.querySelector(".swatch").classList.add(`track-${part % NUM_TRACK_COLOURS}`);
    choose.append(name);
    lock.setAttribute("aria-label", `Lock ${name}`);
    choose.addEventListener("click", () => this.#toggle(this.parts, part));
    lock.addEventListener("click", () => {
      this.parts.delete(part);
      this.#toggle(this.locked, part);
    });
    return item;
  }

  #toggle(set, part) {
    if (!set.delete(part)) set.add(part);
    this.page.show();
  }

  #connect() {
    const { roll } = this.page;
    this.fields = ["first-bar", "last-bar"].map(byId);
    for (const field of this.fields) field.addEventListener("change", () => this.#readFields(field));
    byId("rewrite").addEventListener("click", () => this.rewrite());
    byId("as-it-was").addEventListener("click", () => this.hear(AS_IT_WAS));
    byId("keep").addEventListener("click", () => this.keep());
    byId("discard").addEventListener("click", () => this.discard());
    roll.element.addEventListener("keydown", (event) => this.#pressed(event));
    roll.element.setAttribute("aria-label", "Piano roll: Shift and the arrows select bars");
    this.ruler = document.createElement("div");
    this.ruler.className = "ruler";
    this.ruler.title = "Drag to select bars";
    roll.extent.append(this.ruler);
    const barAt = (event) => this.page.piece.score.barAt(roll.tickOfPointer(event));
    let from = null;
    this.ruler.addEventListener("pointerdown", (event) => {
      this.ruler.setPointerCapture(event.pointerId);
      from = barAt(event);
      const isSelected = this.bars?.every((bar) => bar === from);
      this.select(isSelected ? null : [from, from]);
    });
    this.ruler.addEventListener("pointermove", (event) => {
      if (from !== null && (this.bars || barAt(event) !== from)) this.select([from, barAt(event)]);
    });
    for (const name of ["pointerup", "pointercancel"])
      this.ruler.addEventListener(name, () => (from = null));
    this.ruler.addEventListener("click", (event) => event.stopPropagation()); // it moves no cursor
  }

  /** Select bars with the arrows, as text is selected. */
  #pressed(event) {
    const { score } = this.page.piece;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.select(null);
    else if (event.shiftKey && move) {
      event.preventDefault();
      const bar = score.barAt(this.page.roll.cursorTick);
      const [from, to] = this.bars ?? [bar, bar - move];
      this.select([from, Math.min(score.bars.length, Math.max(1, to + move))]);
    }
  }

  /** Select the bars of the fields; one that is empty is like the other. */
  #readFields(changed) {
    const most = this.page.piece.score.bars.length;
    if (changed.value)
      changed.value = Math.min(most, Math.max(1, Math.round(Number(changed.value))));
    const numbers = this.fields.map(({ value }) => Number(value)).filter((bar) => bar > 0);
    this.bars = numbers.length ? [numbers[0], numbers.at(-1)] : null;
    this.page.show();
  }

  select(bars) {
    this.bars = bars;
    const sorted = bars?.toSorted((a, b) => a - b);
    this.fields.forEach((field, i) => (field.value = sorted?.[i] ?? ""));
    this.page.show();
  }

  /** The ticks between which the selected bars are; null: none are selected. */
  get span() {
    const { bars, end } = this.page.piece.score;
    if (!this.bars) return null;
    const [first, last] = this.bars.toSorted((a, b) => a - b);
    return first > bars.length ? null : [bars[first - 1], bars[last] ?? end];
  }

  get sounding() {
    return [...this.piece.tracks.keys()].filter((part) => this.piece.tracks[part].notes.length);
  }

  /** The parts to write: those that are selected, else all of the piece, but none that is locked. */
  get targets() {
    return this.parts.size ? [...this.parts].sort((a, b) => a - b) : this.unlocked;
  }

  get unlocked() {
    return this.sounding.filter((part) => !this.locked.has(part));
  }

  get hasTakes() {
    return this.isWriting || this.takes.length > 0;
  }

  rewrite() {
    if (!this.isWriting) return this.write(this.span ?? [0, this.piece.end]);
    this.stop();
    this.page.say("Stopped.");
    this.page.show();
  }

  /** Write parts between two ticks, in takes. */
  write([from, to], targets = this.targets) {
    const { page, piece } = this;
    this.discard();
    this.asked = { from, to: Math.min(to, piece.end), parts: targets };
    this.isWriting = true;
    page.player.wake();
    page.send("rewrite", {
      from: from / page.stepTicks,
      to: this.asked.to / page.stepTicks,
      parts: targets,
      keepsChords: this.sounding.some((part) => !targets.includes(part)),
      settings: { ...page.settings, take: this.count++ },
    });
    page.say("Writing three takes …");
    page.show();
  }

  /** End the writing; what is there of takes stays. */
  stop() {
    if (this.isWriting) this.page.send("stop");
    this.isWriting = false;
  }

  /** Show one more take. */
  add(score) {
    if (!this.isWriting) return; // it was stopped meanwhile
    this.takes.push(score);
    this.page.say(`Take ${this.takes.length} is there.`);
    this.page.show();
    this.#showTake(this.takes.length - 1);
  }

  /** Show the bars of a take that are written anew. */
  #showTake(number) {
    const score = this.takes[number];
    if (!score) return;
    const { from, to, parts } = this.asked;
    const { roll } = this.cards[number];
    const early = CONSTANTS.ticksPerBeat / 8; // a note may be played before its bar
    const isInside = ([onset]) => onset >= from - early && onset < to;
    const tracks = score.tracks.map((track, part) => ({
      ...track,
      isKept: !parts.includes(part),
      notes: track.notes.filter(isInside),
    }));
    roll.scale = (roll.element.clientWidth - GUTTER - 8) / (to - from);
    roll.setScore(new Score(payloadOf({ ...score, promptEnd: score.end, tracks })), { fit: false });
    roll.element.scrollLeft = from * roll.pixelsPerTick;
  }

  done() {
    this.isWriting = false;
    this.page.say("Click a take to hear it; keep one, or discard them.");
    this.page.show();
  }

  /** Show a take in its place, and play it from the bar before. */
  hear(number) {
    const { page } = this;
    const { from, to } = this.asked;
    this.#display(number);
    const { score } = page.piece;
    page.piece.position = score.secondsAt(score.bars.findLast((bar) => bar < from) ?? from);
    page.player.play();
    page.roll.reveal();
    page.say(number === AS_IT_WAS ? "As it was." : `Take ${number + 1}.`);
    page.show();
  }

  #display(number) {
    const { page } = this;
    const { from, to } = this.asked;
    if (page.player.playing) page.player.pause();
    this.shown = number;
    const marks = number === AS_IT_WAS ? page.phrases : [[from, to, `Take ${number + 1}`]];
    page.piece.score = page.shownAs(this.takes[number] ?? this.piece, marks);
    page.roll.setScore(page.piece.score, { fit: false });
  }

  /** Make the take that is shown the piece. */
  keep() {
    this.page.player.pause();
    this.page.send("keep", { take: this.shown });
    this.page.say(`Take ${this.shown + 1} is kept.`);
  }

  /** Return to the piece as it was. */
  discard() {
    this.stop();
    if (this.shown !== AS_IT_WAS) this.#display(AS_IT_WAS);
    this.begin(this.piece);
    this.page.show();
  }

  #described() {
    const { tracks } = CONTENT.tables;
    const bars = this.bars?.toSorted((a, b) => a - b);
    const when = !bars ? "All bars" : bars[0] === bars[1] ? `Bar ${bars[0]}` : `Bars ${bars.join("–")}`;
    const names = this.targets.map((part) => tracks[part].name).join(", ");
    return `${when}: ${names || "no part"}`;
  }

  /** Show what is selected, and what can be done. */
  update() {
    const { page, sounding, targets } = this;
    const isAny = this.bars !== null || this.parts.size > 0;
    const isPiece = sounding.length > 0;
    const words = isPiece && isAny ? this.#described() : "Select bars above the notes, or parts.";
    if (byId("selected").textContent !== words) byId("selected").textContent = words;
    byId("legend").hidden = !isPiece;
    this.items.forEach((item, part) => {
      const [choose, lock] = item.querySelectorAll("button");
      choose.setAttribute("aria-pressed", this.parts.has(part));
      choose.disabled = this.locked.has(part);
      lock.setAttribute("aria-pressed", this.locked.has(part));
      item.classList.toggle("silent", !sounding.includes(part));
    });
    for (const field of this.fields) field.max = page.piece.score.bars.length;
    const { pitchTop } = page.roll;
    this.ruler.style.height = `${pitchTop}px`;
    this.ruler.hidden = !isPiece;
    page.roll.select(isPiece ? this.span : null);
    byId("rewrite").textContent = this.isWriting ? "Stop" : "Rewrite";
    byId("rewrite").disabled =
      !this.isWriting && (!isAny || !isPiece || !targets.length || page.composing || page.isLive);
    byId("takes").hidden = !this.takes.length;
    this.cards.forEach(({ card }, number) => {
      card.classList.toggle("pending", number >= this.takes.length);
      card.querySelector("button").setAttribute("aria-pressed", number === this.shown);
    });
    byId("as-it-was").setAttribute("aria-pressed", this.shown === AS_IT_WAS);
    byId("keep").disabled = this.shown === AS_IT_WAS;
  }
}
