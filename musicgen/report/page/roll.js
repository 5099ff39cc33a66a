// The piano roll of one piece. The canvas is as wide as the window and stays in place while the
// wider element `.extent` scrolls. Only the visible part is drawn.
const GUTTER = 58; // px, left: pitch names and drum names
const LANE = 18; // px, one line of text
const DRUM_ROW = 13; // px
const BLACK_KEYS = new Set([1, 3, 6, 8, 10]);
const DRUM_ROWS = { // from top to bottom
  cymbal: "cymbal", openHat: "open hat", hat: "hi-hat", tom: "toms",
  percussion: "perc.", snare: "snare", kick: "kick",
};

class Roll {
  /**
   * @param element the scrolling element, with .extent, canvas and .cursor within
   * @param audible function from a track number to whether the track is audible
   */
  constructor(element, score, audible) {
    this.element = element;
    this.score = score;
    this.audible = audible;
    this.extent = element.querySelector(".extent");
    this.canvas = element.querySelector("canvas");
    this.cursor = element.querySelector(".cursor");
    this.visible = false;
    this.scale = 0; // px per tick, chosen by the user; 0: fit the whole piece
    this.selection = null; // two ticks
    this.#layOut();

    element.addEventListener("scroll", () => this.redraw(), { passive: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    for (const button of element.closest(".piece").querySelectorAll(".zoom")) {
      button.addEventListener("click", () => this.zoom(Number(button.dataset.factor)));
    }
    new ResizeObserver(() => this.#resize()).observe(element);
    // Release the memory of canvases out of view.
    new IntersectionObserver(([entry]) => {
      this.visible = entry.isIntersecting;
      if (this.visible) this.redraw();
      else this.canvas.width = 0;
    }, { rootMargin: "400px" }).observe(element);
  }

  /** Show another score: fitted to the window with `fit`, else at the scale chosen by the user. */
  setScore(score, { fit }) {
    this.score = score;
    if (fit) this.scale = 0;
    this.#layOut();
    this.#resize();
  }

  redraw() {
    if (!this.visible) return;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.#draw();
    });
  }

  /** Multiply the scale and keep the tick in the middle; the roll always fills the window. */
  zoom(factor) {
    const middle = this.element.clientWidth / 2;
    const tick = this.#tickAt(middle);
    this.scale = Math.min(160 / this.score.ticksPerBeat, this.pixelsPerTick * factor);
    this.#setScale();
    this.element.scrollLeft = GUTTER + tick * this.pixelsPerTick - middle;
    this.moveCursor(this.cursorTick);
    this.redraw();
  }

  moveCursor(tick) {
    this.cursorTick = tick;
    this.cursor.style.transform = `translateX(${GUTTER + tick * this.pixelsPerTick}px)`;
  }

  /** Scroll if the cursor leaves the window on the right while playing, or jumps back. */
  follow(previousTick) {
    const right = this.element.clientWidth - 12;
    const leaves = this.#x(previousTick) <= right && this.#x(this.cursorTick) > right;
    if (leaves || this.cursorTick < previousTick) this.reveal();
  }

  /** Shade what is between two ticks; null: nothing. */
  select(span) {
    if (String(span) === String(this.selection)) return;
    this.selection = span;
    this.redraw();
  }

  reveal() {
    const x = this.#x(this.cursorTick);
    if (x < GUTTER || x > this.element.clientWidth - 12) {
      this.element.scrollLeft += x - GUTTER - 24;
    }
  }

  tickOfPointer(event) {
    const x = event.clientX - this.element.getBoundingClientRect().left;
    return Math.min(this.score.end, Math.max(0, this.#tickAt(x)));
  }

  #x(tick) {
    return GUTTER + tick * this.pixelsPerTick - this.element.scrollLeft;
  }

  #tickAt(x) {
    return (x + this.element.scrollLeft - GUTTER) / this.pixelsPerTick;
  }

  /** Compute the vertical layout: sections, bar numbers, marks, markers, pitches, drums. */
  #layOut() {
    const { notes, markers, marks, promptEnd, hasGap } = this.score;
    const pitches = notes.filter((note) => !note.drum).map((note) => note.pitch);
    const drums = new Set(notes.filter((note) => note.drum).map((note) => drumKind(note.pitch)));
    let y = 0;
    const lane = (height) => {
      const top = y;
      y += height;
      return top;
    };
    this.sectionTop = lane(promptEnd > 0 || hasGap ? LANE : 0);
    this.rulerTop = lane(LANE);
    this.markTop = lane(marks.length ? LANE : 0);
    this.markerTop = lane(markers.length ? LANE : 0);
    this.pitchTop = lane(0);
    let lowest = pitches.reduce((a, b) => Math.min(a, b), 127);
    let highest = pitches.reduce((a, b) => Math.max(a, b), 0);
    if (!pitches.length) [lowest, highest] = drums.size ? [0, -1] : [48, 72];
    else [lowest, highest] = [lowest - 2, highest + 2];
    const rows = highest - lowest + 1;
    Object.assign(this, { lowest, highest });
    this.rowHeight = Math.max(4, Math.min(9, Math.floor(260 / Math.max(1, rows))));
    lane(rows * this.rowHeight);
    lane(rows && drums.size ? 6 : 0);
    this.drumTop = lane(0);
    this.drumKinds = Object.keys(DRUM_ROWS).filter((kind) => drums.has(kind));
    lane(this.drumKinds.length * DRUM_ROW);
    this.height = y + 4;
    this.canvas.style.height = `${this.height}px`;
  }

  #resize() {
    this.#setScale();
    this.moveCursor(this.cursorTick ?? 0);
    this.redraw();
  }

  #setScale() {
    const end = Math.max(1, this.score.end);
    const fit = (this.element.clientWidth - GUTTER - 8) / end;
    // At first, a quarter note is at least 10 px wide.
    this.pixelsPerTick = Math.max(fit, this.scale || 10 / this.score.ticksPerBeat);
    this.extent.style.width = `${Math.floor(GUTTER + end * this.pixelsPerTick + 8)}px`;
  }

  #draw() {
    const ratio = devicePixelRatio;
    const width = this.element.clientWidth;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${width}px`;
    const g = this.canvas.getContext("2d");
    const colours = readColours();
    g.scale(ratio, ratio);
    g.font = "12px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.fillStyle = colours.surface;
    g.fillRect(0, 0, width, this.height);

    this.#drawRows(g, colours, width);
    this.#drawSelection(g, colours);
    this.#drawSections(g, colours, width);
    this.#drawBars(g, colours, width);
    this.#drawBoundary(g, colours);
    this.#drawMarks(g, colours, width);
    this.#drawMarkers(g, colours, width);
    this.#drawNotes(g, colours, width);
    this.#drawGutter(g, colours);
  }

  #drawRows(g, colours, width) {
    g.fillStyle = colours.row;
    for (let pitch = this.lowest; pitch <= this.highest; pitch++) {
      if (BLACK_KEYS.has(((pitch % 12) + 12) % 12)) g.fillRect(0, this.#y(pitch), width, this.rowHeight);
    }
    this.drumKinds.forEach((_, row) => {
      if (row % 2 === 0) g.fillRect(0, this.drumTop + row * DRUM_ROW, width, DRUM_ROW);
    });
  }

  #drawSelection(g, colours) {
    if (!this.selection) return;
    const [left, right] = this.selection.map((tick) => this.#x(tick));
    g.fillStyle = colours.accent;
    g.globalAlpha = 0.2;
    g.fillRect(left, 0, right - left, this.height);
    g.globalAlpha = 1;
  }

  #y(pitch) {
    return this.pitchTop + (this.highest - pitch) * this.rowHeight;
  }

  #drawSections(g, colours, width) {
    const { promptEnd, newEnd, end, hasGap } = this.score;
    if (!promptEnd && !hasGap) return;
    const section = (from, to, text, shade, ink) => {
      const left = Math.max(GUTTER, this.#x(from));
      const right = Math.min(width, this.#x(to));
      if (right <= left) return;
      g.fillStyle = shade;
      g.fillRect(left, this.sectionTop, right - left, LANE);
      if (g.measureText(text).width + 12 > right - left) return;
      g.fillStyle = ink;
      g.fillText(text, left + 6, this.sectionTop + LANE / 2);
    };
    g.fillStyle = colours.prompt;
    const [begin, stop] = [promptEnd, newEnd].map((tick) => this.#x(tick));
    g.fillRect(0, this.rulerTop, begin, this.height);
    if (hasGap) g.fillRect(stop, this.rulerTop, width - stop, this.height);
    section(0, promptEnd, "Prompt", colours.prompt, colours.muted);
    section(promptEnd, newEnd, hasGap ? "Gap" : "Continuation", colours["accent-soft"], colours.accent);
    section(newEnd, end, "Kept", colours.prompt, colours.muted);
  }

  #drawBars(g, colours, width) {
    const { bars, meters, end } = this.score;
    const shortest = bars.reduce((least, bar, i) => Math.min(least, (bars[i + 1] ?? Infinity) - bar || least), end);
    let every = 1; // number of bars between bar numbers
    while (shortest * this.pixelsPerTick * every < 30 && every < bars.length) every *= 2;
    bars.forEach((bar, i) => {
      const next = bars[i + 1] ?? end;
      if (this.#x(next) < 0 || this.#x(bar) > width) return;
      const meter = meters[lastAtOrBefore(meters, bar, (m) => m[0])];
      const beat = meter[1];
      if (beat * this.pixelsPerTick >= 7) {
        g.fillStyle = colours.line;
        for (let tick = bar + beat; tick < next; tick += beat) this.#verticalLine(g, tick);
      }
      if ((next - bar) * this.pixelsPerTick < 3 && i % every) return;
      g.fillStyle = colours.bar;
      this.#verticalLine(g, bar);
      if (i % every) return;
      g.fillStyle = colours.muted;
      const signature = i === 0 || meter[0] === bar ? `  ${meter[2]}` : "";
      const room = (bars[i + every] ?? end) - bar;
      const text = `${i + 1}${signature}`;
      const fits = g.measureText(text).width + 10 < room * this.pixelsPerTick;
      g.fillText(fits ? text : `${i + 1}`, this.#x(bar) + 4, this.rulerTop + LANE / 2);
    });
  }

  #verticalLine(g, tick) {
    g.fillRect(Math.round(this.#x(tick)), this.rulerTop, 1, this.height);
  }

  /** Draw marked passages: a shade behind the notes, a line above them, and a text. */
  #drawMarks(g, colours, width) {
    for (const [start, end, text] of this.score.marks) {
      const left = this.#x(start);
      const right = Math.max(left + 4, this.#x(end));
      if (right < GUTTER || left > width) continue;
      g.fillStyle = colours.mark;
      g.globalAlpha = 0.25;
      g.fillRect(left, this.markerTop, right - left, this.height);
      g.globalAlpha = 1;
      g.fillRect(left, this.markTop + LANE - 4, right - left, 3);
      g.fillStyle = colours.ink;
      // Moved to the left if there is no room on the right.
      const x = Math.min(left, width - g.measureText(text).width - 8);
      g.fillText(text, Math.max(GUTTER + 4, x), this.markTop + LANE / 2 - 2);
    }
  }

  #drawMarkers(g, colours, width) {
    let free = -Infinity; // where there is room for the next text; other markers are short lines
    for (const [tick, text] of this.score.markers) {
      const x = this.#x(tick);
      if (x > width) break;
      g.fillStyle = colours.accent;
      const top = x < free ? LANE - 3 : 2;
      g.fillRect(Math.round(x), this.markerTop + top, 1, LANE - top);
      if (x < free) continue;
      g.fillStyle = colours.ink;
      g.fillText(text, x + 4, this.markerTop + LANE / 2);
      free = x + g.measureText(text).width + 10;
    }
  }

  #drawNotes(g, colours, width) {
    for (const note of this.score.notes) {
      const left = this.#x(note.onset);
      if (left > width) break;
      const right = note.drum ? left + 4 : this.#x(note.end);
      if (right < 0) continue;
      const palette = note.kept ? colours.mutedTracks : colours.tracks;
      g.fillStyle = palette[note.track % NUM_TRACK_COLOURS];
      g.globalAlpha = (0.35 + (0.65 * note.velocity) / 127) * (this.audible(note.track) ? 1 : 0.12);
      if (note.drum) {
        const row = this.drumKinds.indexOf(drumKind(note.pitch));
        g.fillRect(left, this.drumTop + row * DRUM_ROW + 2, 4, DRUM_ROW - 4);
      } else {
        // One pixel shorter, so that repeated notes are separate.
        g.fillRect(left, this.#y(note.pitch), Math.max(2, right - left - 1), this.rowHeight - 0.5);
      }
    }
    g.globalAlpha = 1;
  }

  #drawBoundary(g, colours) {
    const { promptEnd, newEnd, hasGap } = this.score;
    g.fillStyle = colours.accent;
    for (const tick of [promptEnd || null, hasGap ? newEnd : null])
      if (tick !== null) g.fillRect(Math.round(this.#x(tick)) - 1, 0, 2, this.height);
  }

  #drawGutter(g, colours) {
    g.fillStyle = colours.surface;
    g.fillRect(0, 0, GUTTER - 1, this.height);
    g.fillStyle = colours.bar;
    g.fillRect(GUTTER - 1, 0, 1, this.height);
    g.fillStyle = colours.muted;
    g.textAlign = "right";
    g.fillText("bar", GUTTER - 5, this.rulerTop + LANE / 2);
    for (let pitch = this.lowest; pitch <= this.highest; pitch++) {
      const y = this.#y(pitch) + this.rowHeight / 2;
      if (pitch % 12 || y < this.pitchTop + 5) continue; // too close to the text above
      g.fillText(`C${pitch / 12 - 1}`, GUTTER - 5, y); // middle C is C4
    }
    this.drumKinds.forEach((kind, row) => {
      g.fillText(DRUM_ROWS[kind], GUTTER - 4, this.drumTop + (row + 0.5) * DRUM_ROW);
    });
    g.textAlign = "left";
  }
}
