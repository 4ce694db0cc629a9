"use strict";
// Hover, touch, arrow keys or #step=12 in the address choose a run; the panel shows the tensors that it holds.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const picture = document.getElementById("memory");
  const panel = document.getElementById("details");
  const cursor = document.getElementById("cursor");
  const last = data.step.length - 1;
  let chosen = data.peak;

  const bytes = (size) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = 0;
    while (size >= 1024 && power < 5) { size /= 1024; power += 1; }
    return power ? `${size.toFixed(size < 100 ? 2 : 1)} ${units[power]}` : `${size} B`;
  };
  const element = (name, text, ...children) => {
    const made = document.createElement(name);
    if (text !== null) made.textContent = text; // names are text, never markup
    made.append(...children);
    return made;
  };
  const row = (name, size) => {
    const number = element("td", bytes(size));
    number.className = "n";
    return element("tr", null, element("td", name), number);
  };

  const show = (group) => {
    chosen = Math.max(0, Math.min(last, group));
    const x = (data.edges[chosen] + data.edges[chosen + 1]) / 2;
    cursor.setAttribute("transform", `translate(${x} 0)`);
    cursor.setAttribute("visibility", "visible");
    const kinds = element("table", null);
    data.kinds.forEach((kind, k) => {
      if (data.held[k][chosen]) kinds.append(row(kind, data.held[k][chosen]));
    });
    const tensors = element("table", null);
    data.top[chosen].forEach((t) => tensors.append(row(data.tensors[t], data.sizes[t])));
    const over = data.budget === null ? 0 : data.memory[chosen] - data.budget;
    const free = data.budget === null ? "" : `, ${bytes(Math.abs(over))} ${over > 0 ? "over" : "below"} the budget`;
    panel.replaceChildren(
      element("b", data.names[data.op[chosen]]),
      element("div", `step ${data.step[chosen]}, ${data.phases[data.phase[chosen]]}, cost ${data.cost[chosen]}`),
      element("div", bytes(data.memory[chosen]) + free),
      kinds,
      element("div", data.top[chosen].length ? "the largest resident:" : ""),
      tensors,
    );
    document.documentElement.dataset.step = data.step[chosen];
  };

  const at = (event) => {
    const box = picture.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * picture.viewBox.baseVal.width;
    let low = 0;
    let high = last;
    while (low < high) { // the last group that begins at or before x
      const middle = (low + high + 1) >> 1;
      if (data.edges[middle] <= x) low = middle; else high = middle - 1;
    }
    show(low);
  };
  const fromAddress = () => {
    const match = /^#step=(\d+)$/.exec(location.hash);
    if (!match) return;
    const later = data.step.findIndex((step) => step >= Number(match[1]));
    show(later < 0 ? last : later);
  };

  picture.addEventListener("pointermove", at);
  picture.addEventListener("pointerdown", at);
  picture.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    show(chosen + move);
  });
  addEventListener("hashchange", fromAddress);
  show(chosen);
  fromAddress();
  document.documentElement.dataset.ready = "true";
})();
