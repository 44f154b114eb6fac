// Draws every timeline on the time axis that they share, for the stretch of time that is picked, and an action's card.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.querySelector("main");
const card = document.getElementById("card");
const axis = document.getElementById("axis");
const whole = document.getElementById("whole");
const cells = [...document.querySelectorAll("td.picture")];
const ROOM_AT_END = 1.012; // so that the line at the end of the longest step can be seen
const LEAST_DRAG_PX = 6;
const LEAST_TICK_PX = 90;
const DIGIT_PX = 6.5;
const FULL = [0, (data.end_s || 1) * ROOM_AT_END];
let view = FULL;

const px = (name) => {
  const probe = document.createElement("div");
  probe.style.height = `var(--${name})`;
  main.append(probe);
  const height = probe.getBoundingClientRect().height;
  probe.remove();
  return height;
};
const size = { compute: px("compute"), lane: px("lane"), gap: px("gap"), pad: px("pad"), row: px("row") };

function element(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  parent?.append(made);
  return made;
}

function laneTop(lane) {
  return size.pad + (lane ? size.compute + size.gap + (lane - 1) * (size.lane + size.gap) : 0);
}

function barPlace([row, lane, track, numTracks]) {
  const height = (lane ? size.lane : size.compute) / numTracks;
  return { y: row * size.row + laneTop(lane) + track * height, height: Math.max(1, height) };
}

function ticks(width) {
  const least = ((view[1] - view[0]) * LEAST_TICK_PX) / width;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  const first = Math.ceil(view[0] / step);
  const numTicks = Math.floor(view[1] / step) - first + 1;
  const inSeconds = step >= 0.5;
  const unit = inSeconds ? 1 : 1e3;
  const digits = Math.max(0, -Math.floor(Math.log10(step * unit) + 1e-9));
  return Array.from({ length: numTicks }, (_, number) => {
    const at = (first + number) * step;
    return { at, label: `${(at * unit).toFixed(digits)} ${inSeconds ? "s" : "ms"}` };
  });
}

function drawAxis() {
  const width = axis.clientWidth;
  const svg = element("svg", { height: 26 });
  ticks(width).forEach(({ at, label }) => {
    const x = ((at - view[0]) / (view[1] - view[0])) * width;
    const half = (label.length * DIGIT_PX) / 2 + 2; // at both ends, a label moves inwards rather than being cut
    element("text", { x: Math.min(Math.max(x, half), width - half), y: 16 }, svg).textContent = label;
    element("line", { class: "grid", x1: x, x2: x, y1: 21, y2: 26 }, svg);
  });
  axis.replaceChildren(svg);
}

function draw(cell, timeline) {
  const width = cell.clientWidth;
  const height = timeline.members.length * size.row;
  const scale = width / (view[1] - view[0]);
  const x = (at) => (at - view[0]) * scale;
  const svg = element("svg", { height });
  timeline.members.forEach((_, row) => {
    if (row % 2 === 0) element("rect", { class: "stripe", x: 0, y: row * size.row, width, height: size.row }, svg);
  });
  ticks(width).forEach(({ at }) => element("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height }, svg));
  const waits = element("g", {}, svg);
  const bars = element("g", {}, svg);
  const texts = element("g", {}, svg);
  const longest = timeline.members.map(() => 0); // digits of grains: a row has all of its numbers of a width, or none
  timeline.bars.forEach(([row, , , , , grain]) => {
    longest[row] = Math.max(longest[row], String(grain ?? "").length);
  });
  timeline.bars.forEach((bar, index) => {
    const [row, lane, , , color, grain, posted, start, end, isMeeting] = bar;
    if (end < view[0] || posted > view[1]) return;
    const { y, height: thickness } = barPlace(bar);
    const left = Math.max(x(start), -9);
    const length = Math.max(1, Math.min(x(end), width + 9) - left);
    if (isMeeting && (start - posted) * scale > 2) {
      const middle = y + thickness / 2;
      element("line", { class: `wait ${color}`, x1: Math.max(x(posted), 0), x2: left, y1: middle, y2: middle }, waits);
    }
    const rounding = Math.min(2.5, length / 4, thickness / 4);
    const drawn = { class: `bar ${color}`, x: left, y, width: length, height: thickness, rx: rounding };
    if (length < 3 || thickness < 4) {
      drawn.class += " bare"; // too thin for a border, so that a gap tells neighbours apart
      drawn.width = Math.max(1, length - 0.75);
    }
    element("rect", { ...drawn, "data-bar": index, "data-grain": grain ?? "" }, bars);
    if (!lane && grain !== null && length > longest[row] * DIGIT_PX + 3) {
      const middle = (Math.max(left, 0) + Math.min(left + length, width)) / 2;
      const position = { class: "number-of-grain", x: middle, y: y + thickness / 2 + 0.5, "data-grain": grain };
      element("text", position, texts).textContent = grain;
    }
  });
  element("line", { class: "end", x1: x(timeline.step_s), x2: x(timeline.step_s), y1: 0, y2: height }, svg);
  cell.replaceChildren(svg);
}

function drawAll() {
  hideCard();
  whole.hidden = view === FULL;
  drawAxis();
  cells.forEach((cell) => draw(cell, data.timelines[cell.dataset.timeline]));
}

function showCard(event, timeline, bar) {
  const [row, lane, , , , , , , , , action, words, start, duration, waited] = bar;
  const name = document.createElement("strong");
  name.textContent = action;
  const what = document.createElement("small");
  what.textContent = words;
  const table = document.createElement("table");
  const facts = [
    ["member", timeline.members[row]],
    ["lane", data.lane_names[lane]],
    ["start", start],
    ["duration", duration],
    ["waited before", waited],
  ].filter(([, value]) => value);
  facts.forEach(([fact, value]) => {
    const line = table.insertRow();
    line.insertCell().textContent = fact;
    line.insertCell().textContent = value;
  });
  card.replaceChildren(name, what, table);
  card.hidden = false;
  const { clientX, clientY } = event;
  const left = clientX + 18 + card.offsetWidth > window.innerWidth ? clientX - 18 - card.offsetWidth : clientX + 18;
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${Math.max(8, Math.min(clientY + 18, window.innerHeight - card.offsetHeight - 8))}px`;
}

function follow(svg, grain) {
  svg.querySelectorAll(".followed").forEach((one) => one.classList.remove("followed"));
  svg.classList.toggle("following", grain !== "");
  if (grain !== "") svg.querySelectorAll(`[data-grain="${grain}"]`).forEach((one) => one.classList.add("followed"));
}

function hideCard() {
  card.hidden = true;
  document.querySelectorAll("svg.following").forEach((svg) => follow(svg, ""));
}

function startDrag(cell, event) {
  if (event.button !== 0) return;
  const box = cell.getBoundingClientRect();
  const svg = cell.firstChild;
  const area = element("rect", { class: "selection", y: 0, height: box.height, x: 0, width: 0 }, svg);
  const from = event.clientX;
  const range = (to) => [from, to].map((at) => Math.min(Math.max(at - box.left, 0), box.width)).sort((a, b) => a - b);
  const move = (moved) => {
    const [left, right] = range(moved.clientX);
    area.setAttribute("x", left);
    area.setAttribute("width", right - left);
  };
  const end = (ended) => {
    window.removeEventListener("pointermove", move);
    area.remove();
    const [left, right] = range(ended.clientX);
    if (right - left < LEAST_DRAG_PX) return;
    const perPx = (view[1] - view[0]) / box.width;
    view = [view[0] + left * perPx, view[0] + right * perPx];
    drawAll();
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", end, { once: true });
}

function showWhole() {
  view = FULL;
  drawAll();
}

cells.forEach((cell) => {
  cell.addEventListener("pointermove", (event) => {
    const index = event.target.dataset?.bar;
    if (index === undefined || event.buttons) {
      hideCard();
      return;
    }
    const timeline = data.timelines[cell.dataset.timeline];
    follow(cell.firstChild, event.target.dataset.grain);
    showCard(event, timeline, timeline.bars[index]);
  });
  cell.addEventListener("pointerleave", hideCard);
  cell.addEventListener("pointerdown", (event) => startDrag(cell, event));
  cell.addEventListener("dblclick", showWhole);
});
whole.addEventListener("click", showWhole);
window.addEventListener("resize", drawAll);
drawAll();
