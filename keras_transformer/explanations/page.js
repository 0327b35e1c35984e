(async () => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.querySelector("main"), ROW = 26;

  // Tokens are set as text, so no part of them is ever read as HTML.
  function make(tag, values = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(values)) {
      if (name === "text") node.textContent = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = value => value.toFixed(2);

  for (const view of data.views) {
    const bytes = await unpacked(view.weights), rows = view.rows.length, keys = view.columns.length;
    view.weight = (l, h, q, k) => bytes[((l * view.heads + h) * rows + q) * keys + k] / 255;
    view.mean = (l, q, k) => {
      let sum = 0, count = 0;
      for (let h = 0; h < view.heads; h++)
        if (!view.missing[l][h]) { sum += view.weight(l, h, q, k); count++; }
      return sum / count;
    };
    for (const name of view.dim ? ["queries", "keys"] : []) {
      const part = view[name], flat = await unpacked(part.data), steps = 2 ** (view.bits - 1) - 1;
      const count = name === "queries" ? rows : keys;
      const at = i => view.bits === 8 ? flat[i] : i % 2 ? flat[i >> 1] & 15 : flat[i >> 1] >> 4;
      view[name + "Of"] = (l, h, place) => {
        const head = Math.floor(h * part.heads / view.heads);  // Groups of heads share keys.
        const start = ((l * part.heads + head) * count + place) * view.dim;
        return Array.from({ length: view.dim }, (_, d) =>
          (at(start + d) - steps - 1) / steps * part.scales[l][head]);
      };
    }
  }

  const state = { view: 0, layer: 0, head: -1, query: -1, tab: "" };
  const view = () => data.views[state.view];
  const weight = (q, k) =>
    state.head < 0 ? view().mean(state.layer, q, k)
      : view().weight(state.layer, state.head, q, k);

  const tabs = {};
  if (data.views.length) { tabs.Heads = heads; tabs.Model = model; }
  if (data.views.some(each => each.dim)) tabs.Neurons = neurons;
  if (data.lens) tabs["Layers' guesses"] = lens;
  if (data.added) tabs["What counts"] = added;

  const selects = {};
  function select(name, label) {
    const node = make("select", { id: name, onchange: () => {
      state[name] = Number(node.value);
      if (name === "view") state.query = -1;
      fill(); draw();
    } });
    selects[name] = node;
    return make("label", { for: name, text: label }, node);
  }
  function fill() {
    if (!data.views.length) return;
    const found = view();
    state.layer = Math.min(state.layer, found.layers.length - 1);
    state.head = Math.min(state.head, found.heads - 1);
    state.query = Math.min(state.query, found.rows.length - 1);
    const options = {
      view: data.views.map((each, i) => [i, each.title]),
      layer: found.layers.map((number, i) => [i, String(number)]),
      head: [[-1, "mean of all"], ...Array.from({ length: found.heads }, (_, h) => [h, String(h)])],
    };
    for (const [name, pairs] of Object.entries(options)) {
      selects[name].replaceChildren(...pairs.map(([value, text]) => make("option", { value, text })));
      selects[name].value = String(state[name]);
    }
  }

  const panel = make("div", { id: "panel", role: "tabpanel", tabindex: "-1" });
  const note = make("p", { class: "note", role: "status" });
  const list = make("div", { role: "tablist", "aria-label": "What is shown" });
  for (const name of Object.keys(tabs)) {
    list.append(make("button", {
      role: "tab", text: name, "aria-controls": "panel", onclick: () => { state.tab = name; draw(); },
    }));
  }
  list.addEventListener("keydown", event => {
    const names = Object.keys(tabs), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    state.tab = names[(names.indexOf(state.tab) + step + names.length) % names.length];
    draw();
    list.children[names.indexOf(state.tab)].focus();
  });
  main.append(make("h1", { text: data.model }));
  if (data.text) main.append(make("p", { text: `wrote: ${data.text}` }));
  const bar = make("div", { class: "bar" }, list);
  if (data.views.length) {
    bar.append(select("layer", "Layer"), select("head", "Head"));
    const which = select("view", "Attention");
    if (data.views.length > 1) bar.append(which);
  }
  main.append(bar, note, panel);

  function draw() {
    for (const node of list.children) {
      const chosen = node.textContent === state.tab;
      node.setAttribute("aria-selected", chosen);
      node.tabIndex = chosen ? 0 : -1;
    }
    note.textContent = "";
    panel.replaceChildren(tabs[state.tab]());
  }

  // Two columns of tokens, and a line for each pair, as strong as its weight.
  function heads() {
    const found = view(), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("aria-hidden", "true");
    const from = make("div", { class: "from", role: "group", "aria-label": "Queries" },
      make("h2", { text: "query" }));
    const to = make("div", { class: "to" }, make("h2", { text: "attends to" }));
    const box = make("div", { class: "heads" }, from, make("div"), to, svg);
    const numbers = found.columns.map(token => {
      const number = make("span");
      to.append(make("div", { class: "token", title: token }, token, number));
      return number;
    });
    let shown = state.query;
    const buttons = found.rows.map((token, q) => {
      const button = make("button", {
        class: "token", title: token, text: token,
        onclick: () => { state.query = state.query === q ? -1 : q; show(state.query); },
        onmouseenter: () => show(q), onfocus: () => show(q),
      });
      from.append(button);
      return button;
    });
    from.addEventListener("mouseleave", () => show(state.query));
    from.addEventListener("keydown", event => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const next = buttons[buttons.indexOf(document.activeElement) + step];
      if (step && next) { event.preventDefault(); next.focus(); }
    });
    function show(query) {
      shown = query;
      buttons.forEach((node, q) => node.setAttribute("aria-pressed", q === state.query));
      const lines = [];
      for (let q = 0; q < found.rows.length; q++)
        for (let k = 0; k < found.columns.length; k++) {
          const w = weight(q, k);
          if (w > 0.01 && (shown < 0 || shown === q)) lines.push([w, q, k]);
        }
      lines.sort((a, b) => b[0] - a[0]);
      // The lines of a single query may be faint: they are not lost among others.
      const strength = w => shown < 0 ? w : 0.1 + 0.9 * Math.sqrt(w);
      const left = from.offsetWidth, right = to.offsetLeft, y = i => ROW * (i + 1.5);
      svg.replaceChildren(...lines.slice(0, 3000).reverse().map(([w, q, k]) => {
        const line = document.createElementNS("http://www.w3.org/2000/svg", "path"), mid = (left + right) / 2;
        line.setAttribute("d", `M${left} ${y(q)}C${mid} ${y(q)} ${mid} ${y(k)} ${right} ${y(k)}`);
        line.setAttribute("stroke", `rgba(${color("--blue")},${strength(w).toFixed(3)})`);
        line.setAttribute("stroke-width", (0.6 + 2.4 * w).toFixed(2));
        line.setAttribute("fill", "none");
        return line;
      }));
      numbers.forEach((node, k) => {
        const w = shown < 0 ? 0 : weight(shown, k);
        node.textContent = shown < 0 ? "" : percent(w);
        node.parentNode.style.background = w ? `rgba(${color("--blue")},${(w * 0.55).toFixed(3)})` : "";
      });
      note.textContent = shown < 0
        ? "Point at a token, or press it, to see what it attends to."
        : `${found.rows[shown]} attends to ` + found.columns.map((token, k) => [weight(shown, k), token])
          .sort((a, b) => b[0] - a[0]).slice(0, 3).map(([w, token]) => `${token} ${percent(w)}`).join(", ");
    }
    requestAnimationFrame(() => show(shown));
    addEventListener("resize", () => box.isConnected && show(shown));
    return make("div", { class: "scroll" }, box);
  }

  // A small map of each head. Pressing one shows it large.
  function model() {
    const found = view(), table = make("table", { class: "model" });
    const blue = color("--blue").split(",").map(Number);
    const row = make("tr", {}, make("th", { text: "layer" }));
    for (let h = 0; h < found.heads; h++) row.append(make("th", { scope: "col", text: h }));
    table.append(row);
    found.layers.forEach((number, l) => {
      const line = make("tr", {}, make("th", { scope: "row", text: number }));
      for (let h = 0; h < found.heads; h++) {
        if (found.missing[l][h]) { line.append(make("td")); continue; }
        const canvas = make("canvas", { width: found.columns.length, height: found.rows.length });
        const context = canvas.getContext("2d");
        const pixels = context.createImageData(canvas.width, canvas.height);
        let best = [0, 0, 0];
        for (let q = 0, i = 0; q < found.rows.length; q++)
          for (let k = 0; k < found.columns.length; k++, i += 4) {
            const w = found.weight(l, h, q, k);
            if (w > best[0]) best = [w, q, k];
            pixels.data.set([...blue, Math.round(255 * Math.sqrt(w))], i);
          }
        context.putImageData(pixels, 0, 0);
        const name = `layer ${number}, head ${h}`;
        const tell = () => {
          note.textContent = `${name}: most from ${found.rows[best[1]]} to ${found.columns[best[2]]}, ${percent(best[0])}`;
        };
        line.append(make("td", {}, make("button", {
          "aria-label": name, title: name, "aria-pressed": l === state.layer && h === state.head,
          onmouseenter: tell, onfocus: tell,
          onclick: () => { Object.assign(state, { layer: l, head: h, tab: "Heads" }); fill(); draw(); },
        }, canvas)));
      }
      table.append(line);
    });
    note.textContent = "Queries from top to bottom, keys from left to right. Press a head to see it large.";
    return make("div", { class: "scroll" }, table);
  }

  // Query and key of a head, their products number by number, and the sum of these.
  function neurons() {
    const found = view();
    if (!found.dim) return make("p", { text: "Queries and keys were not kept for this attention." });
    const head = Math.max(state.head, 0), query = Math.max(state.query, 0), l = state.layer;
    const chooser = make("select", { id: "query", onchange: () => {
      state.query = Number(chooser.value); draw();
      document.getElementById("query").focus();
    } }, ...found.rows.map((token, q) => make("option", { value: q, text: `${q}: ${token}` })));
    chooser.value = String(query);
    const strip = values => {
      const canvas = make("canvas", { width: values.length, height: 1, role: "img",
        "aria-label": `${values.length} numbers` });
      canvas.style.width = `${Math.max(96, Math.min(values.length * 3, 220))}px`;
      const context = canvas.getContext("2d");
      const largest = Math.max(...values.map(Math.abs), 1e-9);
      values.forEach((value, i) => {
        const tone = color(value < 0 ? "--red" : "--blue");
        context.fillStyle = `rgba(${tone},${Math.abs(value / largest).toFixed(3)})`;
        context.fillRect(i, 0, 1, 1);
      });
      return canvas;
    };
    const own = found.queriesOf(l, head, query);
    const table = make("table", { class: "list" }, make("tr", {}, ...["key", "query q", "key k", "q × k",
      "q · k", "weight"].map(text => make("th", { scope: "col", text }))));
    found.columns.forEach((token, k) => {
      const key = found.keysOf(l, head, k), products = own.map((value, d) => value * key[d]);
      const w = found.weight(l, head, query, k), last = make("td", { text: percent(w) });
      last.style.background = `rgba(${color("--blue")},${(w * 0.6).toFixed(3)})`;
      table.append(make("tr", {}, make("th", { scope: "row", text: token }),
        make("td", {}, strip(own)), make("td", {}, strip(key)), make("td", {}, strip(products)),
        make("td", { text: products.reduce((a, b) => a + b, 0).toFixed(2) }), last));
    });
    note.textContent = `Layer ${found.layers[l]}, head ${head}: blue is above 0, red below. The weight is a softmax of the `
      + "products of one query, scaled, with what the model adds to them.";
    return make("div", { class: "neurons" },
      make("div", { class: "bar" }, make("label", { for: "query", text: "Query" }, chooser)),
      make("div", { class: "scroll" }, table));
  }

  function lens() {
    const table = make("table", { class: "list" }, make("tr", {}, make("th", { text: "behind layer" }),
      ...data.tokens.map(text => make("th", { scope: "col", text }))));
    data.lens.forEach((layer, i) => {
      table.append(make("tr", {}, make("th", { scope: "row", text: i ? i - 1 : "input" }), ...layer.map(best => {
        const cell = make("td", { text: best[0][0], title: best.map(([t, p]) => `${t} ${p}`).join(", ") });
        cell.style.background = `rgba(${color("--blue")},${(best[0][1] * 0.7).toFixed(3)})`;
        return cell;
      })));
    });
    note.textContent = "The likeliest token of each layer's states, through the final norm and the output matrix. "
      + "The bluer, the likelier; point at a cell for its probability.";
    return make("div", { class: "scroll" }, table);
  }

  function added() {
    const largest = Math.max(...data.added.flatMap(part => part.values.map(Math.abs)), 1e-9);
    note.textContent = `What each token adds to ${data.target}: blue to it, red against it.`;
    return make("div", {}, ...data.added.map(part => make("div", { class: "words" },
      ...part.tokens.map((token, i) => {
        const value = part.values[i], tone = color(value < 0 ? "--red" : "--blue");
        const node = make("span", {}, token, make("small", { text: (value > 0 ? "+" : "") + value }));
        node.style.background = `rgba(${tone},${(Math.abs(value) / largest * 0.6).toFixed(3)})`;
        return node;
      }))));
  }

  if (!Object.keys(tabs).length) {
    panel.append(make("p", { text: "There is nothing to show but numbers." }));
    return;
  }
  state.tab = Object.keys(tabs)[0];
  fill();
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
