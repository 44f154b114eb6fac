// Draws the bars of a prediction in the colours of the page; the timeline below them has its own script.
{
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const coloured = (trace) => ({
    ...trace,
    textfont: { size: 11, color: color(trace.textposition === "inside" ? "on-bar" : "ink") },
    marker: { ...trace.marker, color: color(trace.meta) },
  });

  const layout = (plain) => ({
    ...plain,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: color("faint") },
    hoverlabel: { bgcolor: color("raised"), bordercolor: color("line"), align: "left", font: { size: 13, color: color("ink") } },
    xaxis: { ...plain.xaxis, gridcolor: color("line"), zerolinecolor: color("faint") },
    yaxis: { ...plain.yaxis, tickfont: { size: 12, color: color("ink") } },
  });

  const drawPlots = () => {
    document.querySelectorAll("[data-plot]").forEach((box) => {
      const plot = data.plots[box.dataset.plot];
      Plotly.react(box, plot.traces.map(coloured), layout(plot.layout), { displayModeBar: false, responsive: true });
    });
  };

  drawPlots();
  dark.addEventListener("change", drawPlots);
}
