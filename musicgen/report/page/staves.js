"use strict";

// The staves of pieces, which verovio has engraved: the bar under the player is marked.

/** Return the staves in a page, see `Drawing` in staves.py; null without any. */
async function unpackStaves() {
  const source = document.getElementById("staves");
  if (!source) return null;
  const bytes = Uint8Array.from(atob(source.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Add the signs that all staves of the page use. */
function addGlyphs(glyphs) {
  const symbols = Object.entries(glyphs).map(([code, path]) => `<path id="glyph-${code}" d="${path}"/>`);
  const html = `<svg class="glyphs" aria-hidden="true"><defs>${symbols.join("")}</defs></svg>`;
  document.body.insertAdjacentHTML("beforeend", html);
}

class Staves {
  /**
   * @param element where the staves are shown
   * @param systems of each width, `wide` and `narrow`, the SVG of each system
   * @param choose gets the number of a bar that was clicked, from 1
   */
  constructor(element, systems, choose) {
    this.element = element;
    this.bar = 0; // the marked one; 0: none
    element.innerHTML = Object.entries(systems)
      .map(([width, each]) => `<div class="${width}">${each.map((svg) => `<div class="system">${svg}</div>`).join("")}</div>`)
      .join("");
    element.addEventListener("click", ({ target }) => {
      const measure = target.closest(".measure");
      if (measure) choose(Number(measure.dataset.bar) + 1);
    });
  }

  /** Mark a bar by its number, from 1; 0: none. Return whether that is another than before. */
  mark(bar) {
    if (bar === this.bar) return false;
    for (const each of this.#measures(this.bar)) each.classList.remove("now");
    for (const each of this.#measures(bar)) each.classList.add("now");
    this.bar = bar;
    return true;
  }

  /** Scroll to the system of the marked bar if it is not in view. */
  reveal() {
    const shown = this.#measures(this.bar).map((each) => each.closest(".system")).find((each) => each.clientWidth);
    if (!shown) return;
    const [box, window] = [shown, this.element].map((each) => each.getBoundingClientRect());
    if (box.top < window.top || box.bottom > window.bottom) this.element.scrollTop += box.top - window.top;
  }

  #measures(bar) {
    return [...this.element.querySelectorAll(`.measure[data-bar="${bar - 1}"]`)];
  }
}
