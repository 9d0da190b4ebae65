// A line chart of the last minutes, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120; // of the viewBox; the stylesheet stretches it

export class TimeChart {
  #name;
  #top = document.createElement("span");
  #svg = document.createElementNS(SVG, "svg");
  #lines;

  /** `names` are of the lines, the first one being filled. */
  constructor(figure, names) {
    this.#name = names.join(" and ");
    this.#svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.#svg.setAttribute("preserveAspectRatio", "none");
    this.#svg.setAttribute("role", "img");
    this.#lines = names.map((_, i) => {
      const line = document.createElementNS(SVG, "path");
      line.setAttribute("class", i ? "second" : "first");
      this.#svg.append(line);
      return line;
    });
    this.#top.className = "top";
    figure.append(this.#svg, this.#top);
  }

  /** Column i holds line i's values at `ages` (seconds, the oldest first), of the last `windowSeconds`. */
  draw(ages, columns, windowSeconds) {
    const most = Math.max(0, ...columns.flat());
    const top = roundUp(most);
    columns.forEach((values, i) => {
      const points = values.map((value, j) => {
        const x = WIDTH * (1 - ages[j] / windowSeconds);
        return `${x.toFixed(1)},${(HEIGHT * (1 - value / top)).toFixed(1)}`;
      });
      this.#lines[i].setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
    });
    this.#top.textContent = top.toLocaleString("en");
    const now = columns.map((values) => values.at(-1) ?? 0).join(" and ");
    this.#svg.setAttribute("aria-label", `${this.#name}: ${now} now, at most ${most}`);
  }
}

/** The next 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}
