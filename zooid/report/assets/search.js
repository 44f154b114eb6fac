// Draws the candidates of a search in the colours of the page, all of them or those near the front.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const box = document.getElementById("plot");
const dark = window.matchMedia("(prefers-color-scheme: dark)");

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isOpen = (trace) => trace.marker.symbol.endsWith("-open");
const view = () => data.views[Number(document.querySelector("input[name=view]:checked")?.value ?? 0)];

function coloured(trace) {
  const own = color(trace.meta);
  if (trace.mode === "lines") return { ...trace, line: { ...trace.line, color: own } };
  const line = { ...trace.marker.line, color: isOpen(trace) ? own : color("paper") };
  return { ...trace, textfont: { size: 12.5, color: color("ink") }, marker: { ...trace.marker, color: own, line } };
}

function colouredAxis(plain, seen) {
  return { ...plain, ...seen, gridcolor: color("line"), tickfont: { size: 12, color: color("ink") } };
}

function draw() {
  const family = getComputedStyle(document.body).fontFamily;
  const hover = { bgcolor: color("raised"), bordercolor: color("line"), align: "left" };
  const layout = {
    ...data.layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family, size: 12, color: color("faint") },
    hoverlabel: { ...hover, font: { family, size: 12.5, color: color("ink") } },
    xaxis: colouredAxis(data.layout.xaxis, view().xaxis),
    yaxis: colouredAxis(data.layout.yaxis, view().yaxis),
  };
  Plotly.react(box, data.traces.map(coloured), layout, { displayModeBar: false, responsive: true });
}

draw();
dark.addEventListener("change", draw);
document.querySelectorAll("input[name=view]").forEach((button) => button.addEventListener("change", draw));
