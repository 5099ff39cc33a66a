// The page of a blind comparison: one pair after the other, then the result.

const LETTERS = ["A", "B"];

class Comparison {
  constructor(data) {
    Object.assign(this, data); // page, runs, trials
    this.others = new Map(); // votes of other listeners by their id
    this.elements = Object.fromEntries(
      [...document.querySelectorAll("[id]")].map((element) => [element.id, element])
    );
    this.state = this.#restored() ?? this.#fresh();
    this.#connect();
    this.#next();
  }

  get current() {
    return this.state.comparisons[this.state.votes.length];
  }

  // What the player tells.

  selected() {
    this.elements.seek.max = this.player.card.score.duration;
  }

  moved() {}
  played() {}

  show() {
    const { card, position, playing } = this.player;
    const side = this.sides.indexOf(card);
    this.elements.seek.value = position;
    const clock = `${LETTERS[side]} · ${clockText(position)} / ${clockText(card.score.duration)}`;
    this.elements.clock.textContent = clock;
    this.elements.seek.setAttribute("aria-valuetext", clock);
    LETTERS.forEach((letter, i) => {
      const active = playing && i === side;
      this.elements[`play-${i}`].textContent = `${active ? "Pause" : "Play"} ${letter}`;
      this.elements[`play-${i}`].classList.toggle("playing", active);
    });
  }

  #fresh() {
    const listener = Math.random().toString(36).slice(2);
    const comparisons = drawComparisons(this.trials.length, this.runs.length);
    return { listener, comparisons, votes: [] };
  }

  /** Return what this browser remembers of the page; null if it keeps nothing. */
  #restored() {
    try {
      return JSON.parse(localStorage.getItem(`blind-${this.page}`));
    } catch {
      return null;
    }
  }

  #remember() {
    try {
      localStorage.setItem(`blind-${this.page}`, JSON.stringify(this.state));
    } catch {
      // Without storage the votes last as long as the page is open.
    }
  }

  #connect() {
    const { elements } = this;
    const on = (id, event, action) => elements[id].addEventListener(event, action);
    LETTERS.forEach((_, side) => on(`play-${side}`, "click", () => this.#listen(side)));
    for (const button of document.querySelectorAll(".vote")) {
      button.addEventListener("click", () => this.#vote(button.dataset.vote));
    }
    on("seek", "input", () => this.player.seek(Number(elements.seek.value)));
    on("volume", "input", () => this.player.setVolume(Number(elements.volume.value)));
    on("back", "click", () => this.#takeBack());
    on("finish", "click", () => this.#showResult());
    on("continue", "click", () => this.#next());
    on("save", "click", () => this.#save());
    on("add", "change", () => this.#add([...elements.add.files]));
    on("restart", "click", () => this.#restart());
    document.addEventListener("keydown", (event) => this.#pressKey(event));
  }

  #pressKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (this.elements.trial.hidden || event.target.closest("input")) return;
    const actions = {
      a: () => this.#listen(0),
      b: () => this.#listen(1),
      1: () => this.#vote("0"),
      2: () => this.#vote("none"),
      3: () => this.#vote("1"),
    };
    actions[event.key.toLowerCase()]?.();
  }

  /** Show the next pair, or the result after the last one. */
  #next() {
    if (this.player?.playing) this.player.pause();
    if (!this.current) {
      this.#showResult();
      return;
    }
    const { elements, current, state } = this;
    const { title, versions } = this.trials[current.trial];
    elements.trial.hidden = false;
    elements.result.hidden = true;
    elements["trial-title"].textContent = title;
    elements.count.textContent = `Pair ${state.votes.length + 1} of ${state.comparisons.length}`;
    this.sides = current.runs.map((run) => {
      const piece = new Piece(new Score(versions[run]));
      const { bars, promptEnd } = piece.score;
      piece.position = piece.score.secondsAt(bars[Math.max(0, lastAtOrBefore(bars, promptEnd - 1))]);
      return piece;
    });
    this.heard = [false, false];
    if (this.player) {
      this.player.select(this.sides[0]);
    } else {
      this.player = new Player(this.sides[0], Number(elements.volume.value), this);
    }
    this.selected();
    this.show();
    this.#allowVotes();
  }

  #listen(side) {
    this.player.toggle(this.sides[side]);
    this.heard[side] = true;
    this.#allowVotes();
  }

  #allowVotes() {
    const { elements, heard } = this;
    const ready = heard[0] && heard[1];
    for (const button of document.querySelectorAll(".vote")) button.disabled = !ready;
    elements.hint.hidden = ready;
    elements.back.disabled = elements.finish.disabled = !this.state.votes.length;
  }

  #vote(side) {
    if (!this.heard[0] || !this.heard[1]) return;
    const { trial, runs } = this.current;
    this.state.votes.push({ trial, runs, winner: side === "none" ? null : runs[Number(side)] });
    this.#remember();
    this.#next();
  }

  #takeBack() {
    this.state.votes.pop();
    this.#remember();
    this.#next();
  }

  #restart() {
    this.state = this.#fresh();
    this.#remember();
    this.#next();
  }

  #showResult() {
    if (this.player?.playing) this.player.pause();
    const { elements, state, others, runs } = this;
    elements.trial.hidden = true;
    elements.result.hidden = false;
    elements.continue.hidden = !this.current;
    elements.message.hidden = true;
    const files = [...others].filter(([listener]) => listener !== state.listener);
    const votes = [...state.votes, ...files.flatMap(([, saved]) => saved)];
    const listeners = files.length + (state.votes.length ? 1 : 0);
    const total = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
    elements["votes-counted"].textContent =
      `${total(votes.length, "vote")} of ${total(listeners, "listener")}. The interval treats all votes as independent.`;
    elements.table.replaceChildren(...countVotes(votes, runs.length).map((pair) => this.#resultOf(pair)));
  }

  #resultOf(pair) {
    const create = (name, className, text = "") => {
      const element = document.createElement(name);
      element.className = className;
      element.textContent = text;
      return element;
    };
    const element = create("div", "pair");
    const names = create("div", "names");
    // The share is the first run's: its side of the scale is the right one.
    const [right, left] = pair.runs.map((run) => create("strong", "", this.runs[run]));
    names.append(left, right);
    element.append(names, scaleOf(pair), create("p", "", describeResult(pair, this.runs)));
    return element;
  }

  #save() {
    const { page, runs, trials, state } = this;
    const content = { page, names: runs, prompts: trials.map(({ title }) => title), ...state };
    delete content.comparisons;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
    link.download = `votes-${state.listener}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  async #add(files) {
    const lines = [];
    for (const file of files) {
      try {
        const saved = readVotes(await file.text(), this.page, this.trials.length, this.runs.length);
        if (saved.listener === this.state.listener || this.others.has(saved.listener)) {
          lines.push(`${file.name}: counted already`);
        }
        this.others.set(saved.listener, saved.votes);
      } catch (error) {
        lines.push(`${file.name}: ${error.message}`);
      }
    }
    this.elements.add.value = "";
    this.#showResult();
    this.elements.message.textContent = lines.join("; ");
    this.elements.message.hidden = !lines.length;
  }
}

/** Draw the interval and the share on a scale from 0 to 100%, with a mark at 50%. */
function scaleOf({ share, interval }) {
  const create = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const svg = create("svg", { class: "scale", viewBox: "0 0 100 16", preserveAspectRatio: "none", "aria-hidden": "true" });
  const [low, high] = interval.map((x) => 100 * x);
  svg.append(create("rect", { class: "line", y: 7, width: 100, height: 2 }));
  if (share !== null) svg.append(create("rect", { class: "interval", x: low, y: 3, width: high - low, height: 10 }));
  svg.append(create("rect", { class: "anchor", x: 49.8, width: 0.4, height: 16 }));
  if (share !== null) svg.append(create("rect", { class: "value", x: 99 * share, width: 1, height: 16 }));
  return svg;
}

const dataElement = document.getElementById("data");
if (dataElement) new Comparison(JSON.parse(dataElement.textContent));
