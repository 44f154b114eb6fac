// Draws the picture for the grain size that is picked, in the colours of the page, and shows a layer's card.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const picture = document.getElementById("picture");
const heads = document.querySelector(".heads");
const card = document.getElementById("card");
const marker = document.getElementById("marker");
const fit = document.getElementById("fit");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const margin = data.layout.margin;
const numRows = data.names.length;
const numDigits = String(numRows - 1).length;
const READABLE_PX = numRows > 60 ? 17 : numRows > 16 ? 22 : 30;
const SMALLEST_TEXT_PX = 12;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const grain = () => data.grains[Number(document.querySelector("input[name=grain]:checked").value)];
const screenPx = () => (window.innerHeight - heads.offsetHeight - margin.t - margin.b) / numRows;
const rowPx = () => (fit.checked ? screenPx() : READABLE_PX);

function rowLabel(row) {
  const number = String(row).padStart(numDigits, "\u00a0");
  return `${data.names[row]} <span style="color:${color("faint")}">\u00a0${number}\u00a0</span>`;
}

function traces() {
  return grain().traces.map((trace) => ({
    ...trace,
    textfont: { size: 11, color: color("ink") },
    text: rowPx() < SMALLEST_TEXT_PX ? null : trace.text,
    marker: { ...trace.marker, color: color(trace.meta), pattern: { ...trace.marker.pattern, fgcolor: color("paper") } },
  }));
}

function stripes() {
  const every = Math.ceil(SMALLEST_TEXT_PX / rowPx());
  const shapes = [];
  for (let row = 0; row < numRows; row += 2 * every) {
    shapes.push({
      type: "rect", layer: "below", xref: "paper", x0: 0, x1: 1, yref: "y", y0: row - 0.5,
      y1: Math.min(row + every, numRows) - 0.5, line: { width: 0 }, fillcolor: color("stripe"),
    });
  }
  return shapes;
}

function layout() {
  const every = Math.ceil(SMALLEST_TEXT_PX / rowPx());
  const named = data.names.map((_, row) => row).filter((row) => row % every === 0);
  const drawn = {
    ...data.layout,
    height: rowPx() * numRows + margin.t + margin.b,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: color("faint") },
    shapes: stripes(),
    yaxis: {
      ...data.layout.yaxis,
      tickvals: named,
      ticktext: named.map(rowLabel),
      tickfont: { family: color("mono"), size: 11, color: color("ink") },
    },
  };
  grain().axes.forEach((axis, panel) => {
    const name = panel ? `xaxis${panel + 1}` : "xaxis";
    drawn[name] = {
      ...data.layout[name], range: axis.range, tickvals: axis.values, ticktext: axis.labels, gridcolor: color("line"),
    };
  });
  return drawn;
}

function draw() {
  hideCard();
  document.querySelectorAll("[data-sum]").forEach((sum) => {
    sum.textContent = grain().sums[sum.dataset.sum];
  });
  return Plotly.react(picture, traces(), layout(), { displayModeBar: false, responsive: true });
}

function cell(row, text) {
  row.insertCell().textContent = text;
}

function showCard(event) {
  const row = event.points[0].pointNumber;
  const facts = grain().cards[row];
  const name = document.createElement("strong");
  name.textContent = facts.name;
  const position = document.createElement("small");
  position.textContent = facts.position;
  const table = document.createElement("table");
  facts.rows.forEach(([what, value]) => {
    const line = table.insertRow();
    cell(line, what);
    cell(line, value);
  });
  card.replaceChildren(name, position, table);
  card.hidden = false;
  const { clientX, clientY } = event.event;
  const left = clientX + 18 + card.offsetWidth > window.innerWidth ? clientX - 18 - card.offsetWidth : clientX + 18;
  const top = Math.min(clientY + 18, window.innerHeight - card.offsetHeight - 8);
  card.style.left = `${Math.max(8, left)}px`;
  card.style.top = `${Math.max(8, top)}px`;
  marker.style.top = `${margin.t + row * rowPx()}px`;
  marker.style.height = `${rowPx()}px`;
  marker.style.visibility = "visible";
}

function hideCard() {
  card.hidden = true;
  marker.style.visibility = "hidden";
}

draw().then(() => {
  picture.on("plotly_hover", showCard);
  picture.on("plotly_unhover", hideCard);
});
document.querySelectorAll("input[name=grain]").forEach((button) => button.addEventListener("change", draw));
fit.parentElement.hidden = screenPx() >= READABLE_PX;
fit.addEventListener("change", () => draw().then(() => heads.scrollIntoView()));
window.addEventListener("resize", () => fit.checked && draw());
dark.addEventListener("change", draw);
