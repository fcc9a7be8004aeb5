"use strict";
// The report's program. Everything that comes from models is put on the page as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const doc = data.document;
  const SIDES = ["before", "after"];
  const NAMES = data.command === "diff" ? { before: "A", after: "B" } : { before: "Before", after: "After" };
  const within = (side) => (data.command === "diff" ? NAMES[side] : NAMES[side].toLowerCase()); // within a sentence
  const $ = (id) => document.getElementById(id);

  // -- building blocks -------------------------------------------------------------------------------------------

  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    fill(made, attributes, children);
    return made;
  }
  function svg(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    fill(made, attributes, children);
    return made;
  }
  function fill(made, attributes, children) {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "class") made.setAttribute("class", value);
      else if (key === "style") for (const [k, v] of Object.entries(value)) made.style.setProperty(k, v);
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  }
  const count = (n) => (n === null || n === undefined ? "" : Math.round(n).toLocaleString("en-US"));
  function amount(value, unit = "") {
    if (value === null || value === undefined) return "";
    let scaled = value, prefix = "";
    for (prefix of ["", "k", "M", "G", "T", "P"]) {
      if (Math.abs(scaled) < 999.5) break;
      scaled /= 1000;
    }
    const size = Math.abs(scaled);
    const digits = prefix === "" ? (Number.isInteger(scaled) ? 0 : size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) :
      size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    return `${scaled.toFixed(digits)} ${prefix}${unit}`.trimEnd();
  }
  function figure(value, digits = 3) {
    if (value === null || value === undefined) return "";
    if (typeof value === "string") return value;
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 1).replace("e+", "e") : String(Number(value.toPrecision(digits)));
  }
  // Three digits in the largest unit of which there is one or more; final zeros stay, for columns to align.
  function scaled(value, units) {
    if (value === 0) return "0";
    const [unit, size] = units.find(([, u]) => Math.abs(value) >= 0.9995 * u) || units[units.length - 1];
    const parts = Math.abs(value) / size;
    return `${value < 0 ? "\u2212" : ""}${parts < 0.001 ? figure(parts) : parts >= 999.5 ? count(parts) : parts.toPrecision(3)} ${unit}`;
  }
  const time = (us) => (us === null || us === undefined ? "" : scaled(us, [["s", 1e6], ["ms", 1000], ["\u00b5s", 1], ["ns", 0.001]]));
  const energy = (uj) => scaled(uj, [["J", 1e6], ["mJ", 1000], ["\u00b5J", 1], ["nJ", 0.001], ["pJ", 1e-6]]);
  // Steps of 1, 2 or 5 from nothing to what is given, about as many as wanted.
  function ticks(most, wanted) {
    const power = 10 ** Math.floor(Math.log10(most / wanted));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n * wanted >= most * 0.999);
    return Array.from({ length: Math.floor(most / step * 1.0001) + 1 }, (_, i) => i * step);
  }
  const round = (value, unit) => `${Number(value.toPrecision(6))} ${unit}`;
  const key = (colour, text) => el("span", { class: "key" }, el("i", { style: { background: colour } }), text);
  const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
  function change(before, after) {
    if (before === after || before === null || after === null) return "";
    if (!before) return "new";
    const percent = (after - before) / before * 100;
    const size = Math.abs(percent);
    if (size < 0.005) return "\u2248 0 %";
    return `${percent > 0 ? "+" : "\u2212"}${size.toFixed(size < 0.05 ? 2 : 1)} %`;
  }
  const changed = (before, after) => el("span", { class: !before || Math.abs(after / before - 1) < 5e-4 ? "muted" : after < before ? "down" : after > before ? "up" : "" }, change(before, after));
  const cell = (content, numeric) => el("td", { class: numeric ? (/^0( \w+)?$/.test(content) ? "n none" : "n") : null }, content);
  function table(caption, heads, rows, attributes) {
    return el("table", attributes,
      caption && el("caption", {}, caption),
      el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col", class: h.startsWith(">") ? "n" : null }, h.replace(/^>/, ""))))),
      el("tbody", {}, rows.map((cells) => (cells instanceof Node ? cells :
        el("tr", {}, cells.map((c, i) => (c instanceof HTMLTableCellElement ? c : cell(c, heads[i].startsWith(">")))))))));
  }
  // A table of which the first rows are shown, the rest on demand: pages of thousands of rows are slow and help no one.
  function long(caption, heads, rows, make, limit = 25) {
    const body = table(caption, heads, rows.slice(0, limit).map(make));
    const box = el("div", {}, body);
    if (rows.length > limit) {
      let shown = limit;
      const more = el("button", { type: "button", class: "more", onclick: () => {
        const next = rows.slice(shown, shown + 200);
        body.tBodies[0].append(...table("", heads, next.map(make)).tBodies[0].children);
        shown += next.length;
        label();
      } });
      const label = () => {
        more.textContent = rows.length - shown > 200 ? `Show 200 more of ${count(rows.length - shown)}` : `Show the other ${count(rows.length - shown)}`;
        more.hidden = shown >= rows.length;
      };
      label();
      box.append(more);
    }
    return box;
  }
  function section(id, title, about, ...content) {
    const made = $(id);
    made.append(el("div", { class: "title" }, el("h2", { id: `${id}-title` }, title), about && el("p", {}, about)), ...content);
    return made;
  }
  const base = (path) => (path || "").split(/[\\/]/).pop();

  // -- colours ---------------------------------------------------------------------------------------------------

  const PALETTE = ["#3b7dd8", "#e08a1e", "#2f9e6e", "#b85bc4", "#d1495b", "#1f9fb3", "#8c7a2b", "#6f6ad9", "#c2568f", "#5d8a3a"];
  const LEVELS = { compute: "#5b7fb8", L1: "#6db5a8", L2: "#9cc76a", L3: "#e6b53c", DRAM: "#d9593f" };
  const ROLES = { i: ["input", "#e0a73a"], o: ["output", "#4ea673"], t: ["intermediate", "#6d9bd3"], s: ["scratch", "#a8a8a8"] };
  const STATES = { same: ["unchanged", null, ""], changed: ["changed", "#e08a1e", "~"], gone: [data.command === "diff" ? "in A only" : "removed or merged", "#d1495b", "\u2212"],
    new: [data.command === "diff" ? "in B only" : "new", "#2f9e6e", "+"] };
  let theme = {};
  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["bg", "surface", "raised", "text", "muted", "line", "accent", "before", "after", "edge", "node", "node-line", "warn"])
      theme[name] = style.getPropertyValue(`--${name}`).trim();
  }
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  function mix(a, b, share) {
    const [x, y] = [rgb(a), rgb(b)];
    return `#${x.map((v, i) => Math.round(v * share + y[i] * (1 - share)).toString(16).padStart(2, "0")).join("")}`;
  }
  const kindsOfRegions = [...new Map(SIDES.flatMap((s) => data[s].regions).map((r) => [r.kind, 0])).keys()];
  const regionColour = (kind) => PALETTE[kindsOfRegions.indexOf(kind) % PALETTE.length];
  // From pale to dark, so that dark is dear in light pages and bright in dark ones; readable in grey too.
  const heat = (share) => mix("#d1495b", theme.node, 0.08 + 0.82 * Math.pow(share, 0.45));

  // -- models ----------------------------------------------------------------------------------------------------

  const models = {};
  for (const side of SIDES) {
    const model = data[side];
    const makers = new Map(), readers = new Map();
    model.nodes.forEach((node, n) => {
      node.id = n;
      node.side = side;
      for (const t of node.o) makers.set(t, n);
      for (const t of new Set(node.i)) readers.set(t, [...(readers.get(t) || []), n]);
    });
    const fed = new Map();
    model.nodes.forEach((node, n) => node.h !== undefined && fed.set(node.h, [...(fed.get(node.h) || []), n]));
    const members = model.regions.map(() => []);
    if (model.regions.length) model.nodes.forEach((node, n) => node.r !== undefined && members[node.r].push(n));
    const drawn = model.nodes.filter((node) => node.p);
    const rows = new Map();
    for (const node of drawn) rows.set(node.p[1], [...(rows.get(node.p[1]) || []), node]);
    for (const row of rows.values()) row.sort((a, b) => a.p[0] - b.p[0]);
    const costs = drawn.map((node) => node.us || 0);
    models[side] = { ...model, makers, readers, fed, members, drawn, rows, dearest: Math.max(...costs, 1e-9),
      width: Math.max(1, ...model.groups.map((g) => g.x + g.w)), height: Math.max(1, ...model.groups.map((g) => g.h)) };
  }
  const regionOf = (node) => (node.r === undefined ? null : (data[node.side].regions.length ? data[node.side] : data.after).regions[node.r]);
  const output = (node) => (node.o.length ? data[node.side].tensors[node.o[0]] : null);
  const dims = (t) => (t.d === null || t.d === undefined ? "?" : t.d.length ? t.d.map((d) => (d < 0 ? "?" : d)).join("\u00d7") : "scalar");
  const brief = (kind) => kind.replace(/^composite:/, "").replace(/^custom:/, "");

  // -- the graph -------------------------------------------------------------------------------------------------

  const W = 164, H = 40;
  let mode = SIDES.some((s) => data[s].regions.length) ? "regions" : "changes";
  let selected = null, hits = null, drawing = 0, printing = false;
  const pictures = []; // what draws those beside the graph, anew for another theme or for paper

  class View {
    constructor(side) {
      this.side = side;
      this.model = models[side];
      this.figure = $(`view-${side}`);
      this.canvas = this.figure.querySelector("canvas");
      this.context = this.canvas.getContext("2d");
      this.x = this.y = 0;
      this.scale = 1;
      this.ready = false;
      this.overview = null;
      this.pointers = new Map();
      const caption = this.figure.querySelector("figcaption");
      const hidden = this.model.nodes.length - this.model.drawn.length;
      caption.append(`${NAMES[side]} `, el("span", {}, plural(this.model.nodes.length, "operator") + (hidden ? `, ${count(hidden)} on constants not drawn` : "")));
      this.canvas.setAttribute("aria-label", `Graph ${within(side)}: ${plural(this.model.nodes.length, "operator")}`);
      new ResizeObserver(() => { this.resize(); }).observe(this.figure);
      this.listen();
    }
    resize() {
      const box = this.canvas.getBoundingClientRect();
      if (!box.width || !box.height || printing) return;
      const ratio = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(box.width * ratio);
      this.canvas.height = Math.round(box.height * ratio);
      this.w = box.width;
      this.h = box.height;
      if (!this.ready) this.start();
      this.ready = true;
      this.draw(); // at once: a canvas of a new size is empty
    }
    get tall() { return !printing && this.model.height > 3 * this.model.width && this.model.drawn.length > 12; }
    // What names of subgraphs take above the graph.
    get headroom() { return this.model.groups.length > 1 ? 26 : 0; }
    get room() { return this.w - (this.tall ? 64 : 0); }
    start() {
      // Whole if its text stays legible, else as wide as the view, from the top.
      const whole = Math.min(this.room / (this.model.width + 60), this.h / (this.model.height + 60));
      this.scale = whole >= 0.6 ? whole : Math.min(1, Math.max(0.72, this.room / (this.model.width + 60)));
      this.scale = Math.min(this.scale, 1.25);
      const top = this.model.drawn.length ? this.model.drawn[0].p : [0, 0];
      const wide = this.model.width * this.scale + 40 > this.room;
      this.x = this.room / 2 - (wide ? top[0] : this.model.width / 2) * this.scale;
      if (wide) this.x = Math.min(20, Math.max(this.room - 20 - this.model.width * this.scale, this.x));
      this.y = whole >= this.scale ? (this.h - this.model.height * this.scale) / 2 + this.headroom / 2 : 20 + this.headroom;
    }
    fit() {
      this.scale = Math.min(1.25, this.room / (this.model.width + 60), this.h / (this.model.height + 60));
      this.x = (this.room - this.model.width * this.scale) / 2;
      this.y = (this.h - this.model.height * this.scale) / 2 + this.headroom / 2;
      redraw();
    }
    // Where the operator is that is nearest to the middle of the view: about it buttons and keys zoom, so that it stays in sight.
    middle() {
      let [x, y, near] = [this.room / 2, this.h / 2, Infinity];
      for (const { p } of this.model.drawn) {
        const at = [p[0] * this.scale + this.x, p[1] * this.scale + this.y], far = Math.hypot(at[0] - this.room / 2, at[1] - this.h / 2);
        if (far < near) [x, y, near] = [...at, far];
      }
      return [x, y];
    }
    zoom(factor, [x, y] = this.middle()) {
      const least = Math.min(0.05, this.h / (this.model.height + 60), this.room / (this.model.width + 60));
      const next = Math.min(4, Math.max(least, this.scale * factor));
      this.x = x - (x - this.x) * next / this.scale;
      this.y = y - (y - this.y) * next / this.scale;
      this.scale = next;
      redraw();
    }
    show(node, force) {
      const at = (node.p ? node : this.model.nodes[node.h]).p;
      if (!at || !this.w) return;
      if (this.scale < 0.5) this.scale = 0.8;
      const [x, y] = [at[0] * this.scale + this.x, at[1] * this.scale + this.y];
      const margin = 90;
      if (force || x < margin || x > this.room - margin || y < margin || y > this.h - margin) {
        this.x += this.room / 2 - x;
        this.y += this.h / 2 - y;
        const high = this.model.height * this.scale;
        if (high + 60 > this.h) this.y = Math.min(20 + this.headroom, Math.max(this.h - 40 - high, this.y));
      }
      redraw();
    }
    at(x, y) {
      const [gx, gy] = [(x - this.x) / this.scale, (y - this.y) / this.scale];
      return this.model.drawn.find((n) => Math.abs(n.p[0] - gx) <= W / 2 && Math.abs(n.p[1] - gy) <= H / 2) || null;
    }
    listen() {
      const canvas = this.canvas;
      const place = (e) => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
      let moved = 0, grabbed = false;
      canvas.addEventListener("pointerdown", (e) => {
        canvas.setPointerCapture(e.pointerId);
        this.pointers.set(e.pointerId, place(e));
        moved = 0;
        grabbed = this.tall && place(e)[0] > this.room;
        if (grabbed) this.jump(place(e)[1]);
      });
      canvas.addEventListener("pointermove", (e) => {
        const [x, y] = place(e);
        const last = this.pointers.get(e.pointerId);
        if (!last) {
          const node = this.tall && x > this.room ? null : this.at(x, y);
          canvas.style.cursor = node ? "pointer" : "grab";
          tip(node && `${brief(node.k)} #${node.n}${output(node) ? ` \u2192 ${dims(output(node))}` : ""}`, e);
          return;
        }
        this.pointers.set(e.pointerId, [x, y]);
        if (grabbed) return this.jump(y);
        if (this.pointers.size === 2) {
          const other = [...this.pointers].find(([id]) => id !== e.pointerId)[1];
          const far = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
          this.zoom(far([x, y]) / Math.max(1, far(last)), [(x + other[0]) / 2, (y + other[1]) / 2]);
        } else {
          this.x += x - last[0];
          this.y += y - last[1];
          redraw();
        }
        moved += Math.abs(x - last[0]) + Math.abs(y - last[1]);
        tip(null);
      });
      const end = (e) => {
        this.pointers.delete(e.pointerId);
        if (e.type === "pointerup" && moved < 5 && !grabbed) select(this.at(...place(e)), this.side);
      };
      canvas.addEventListener("pointerup", end);
      canvas.addEventListener("pointercancel", end);
      canvas.addEventListener("pointerleave", () => tip(null));
      canvas.addEventListener("wheel", (e) => {
        if (!e.ctrlKey && !e.metaKey && document.activeElement !== canvas) return;
        e.preventDefault();
        this.zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.002)), place(e));
      }, { passive: false });
      canvas.addEventListener("keydown", (e) => this.key(e));
    }
    jump(y) {
      this.y = this.h / 2 - (y - 8) / (this.h - 16) * this.model.height * this.scale;
      redraw();
    }
    key(e) {
      const { model } = this;
      if (e.ctrlKey || e.metaKey || e.altKey || !model.drawn.length) return;
      const now = selected && selected.side === this.side ? (selected.p ? selected : model.nodes[selected.h]) : null;
      const step = { ArrowUp: [0, 80], ArrowDown: [0, -80], ArrowLeft: [80, 0], ArrowRight: [-80, 0] }[e.key];
      let next = null;
      if (step && e.shiftKey) {
        this.x += step[0];
        this.y += step[1];
        redraw();
      } else if (step && !now) next = model.drawn[0];
      else if (e.key === "ArrowUp") next = this.along(now.i.map((t) => model.makers.get(t)), now.id, -1);
      else if (e.key === "ArrowDown") next = this.along(now.o.flatMap((t) => model.readers.get(t) || []), now.id, 1);
      else if (step) {
        const row = model.rows.get(now.p[1]), by = e.key === "ArrowLeft" ? -1 : 1;
        next = row[row.indexOf(now) + by] || model.drawn[model.drawn.indexOf(now) + by];
      } else if (e.key === "Home") next = model.drawn[0];
      else if (e.key === "End") next = model.drawn[model.drawn.length - 1];
      else if (e.key === "+" || e.key === "=") this.zoom(1.3);
      else if (e.key === "-" || e.key === "_") this.zoom(1 / 1.3);
      else if (e.key === "0") this.fit();
      else if (e.key === "Escape") select(null, this.side);
      else if (e.key === "Enter" && selected) $("details").focus();
      else return;
      e.preventDefault();
      if (next) select(next, this.side);
    }
    along(ids, from, by) {
      const found = ids.filter((n) => n !== undefined).map((n) => this.model.nodes[n]).find((n) => n.p);
      return found || this.model.drawn[this.model.drawn.indexOf(this.model.nodes[from]) + by];
    }
    colour(node) {
      if (mode === "regions") {
        const region = regionOf(node);
        return region ? mix(regionColour(region.kind), theme.node, 0.24) : theme.node;
      }
      if (mode === "changes") return STATES[node.st][1] ? mix(STATES[node.st][1], theme.node, 0.3) : theme.node;
      return heat(Math.min(1, (node.us || 0) / this.model.dearest));
    }
    border(node) {
      if (mode === "regions" && regionOf(node)) return regionColour(regionOf(node).kind);
      if (mode === "changes" && STATES[node.st][1]) return STATES[node.st][1];
      return theme["node-line"];
    }
    path(c, edge) {
      const [a, b] = [this.model.nodes[edge.a].p, this.model.nodes[edge.b].p];
      let [x, y] = [a[0], a[1] + H / 2];
      c.moveTo(x, y);
      const points = [...(edge.p || []), b[0], b[1] - H / 2];
      for (let i = 0; i < points.length; i += 2) {
        const [nx, ny] = [points[i], points[i + 1]];
        const middle = (y + ny) / 2;
        if (Math.abs(nx - x) < 0.5) c.lineTo(nx, ny);
        else c.bezierCurveTo(x, middle, nx, middle, nx, ny);
        [x, y] = [nx, ny];
      }
    }
    // On paper a tall graph is cut between its rows into columns side by side: as many as make it largest.
    paper() {
      const { model } = this, rows = [...model.rows.keys()].sort((a, b) => a - b), first = 10 + this.headroom;
      [this.w, this.h] = [660, rows.length > 400 ? 860 : 380]; // which the first page has below the summary, if that is enough
      const scaled = (n) => Math.min(1, this.w / n / (model.width + 50), (this.h - first) / (model.height / n + 2 * H + 20));
      let best = 1;
      for (let n = 2; n <= Math.min(16, rows.length); n++) if (scaled(n) > 1.02 * scaled(best)) best = n;
      const cuts = Array.from({ length: best - 1 }, (_, i) => rows.find((y) => y - H / 2 >= model.height * (i + 1) / best)).filter((y) => y !== undefined);
      const scale = scaled(best), tops = [0, ...cuts.map((y) => y - H / 2 - 14)];
      this.columns = tops.map((top, i) => ({ top, scale, first, deep: ((i + 1 < tops.length ? tops[i + 1] : model.height + 20) - top) * scale, left: i * this.w / best, wide: this.w / best }));
      this.h = first + Math.max(...this.columns.map((column) => column.deep));
      this.canvas.width = 3 * this.w;
      this.canvas.height = Math.round(3 * this.h);
      this.draw();
    }
    draw() {
      if (!this.w) return;
      const c = this.context, ratio = this.canvas.width / this.w;
      if (!printing) {
        this.paint(c, this.w, this.h, ratio);
        return;
      }
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.fillStyle = theme.surface;
      c.fillRect(0, 0, this.w, this.h);
      for (const { top, scale, first, deep, left, wide } of this.columns) {
        [this.scale, this.x, this.y] = [scale, left + (wide - this.model.width * scale) / 2, first - top * scale];
        c.save();
        c.setTransform(ratio, 0, 0, ratio, 0, 0);
        c.beginPath();
        c.rect(left, top ? first : 0, wide, deep + (top ? 0 : first));
        c.clip();
        this.paint(c, this.w, this.h, ratio);
        c.restore();
      }
    }
    paint(c, w, h, ratio) {
      const { model, scale } = this;
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.fillStyle = theme.surface;
      c.fillRect(0, 0, w, h);
      c.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.x, ratio * this.y);
      const [left, right] = [(-this.x) / scale - W, (w - this.x) / scale + W];
      const [top, bottom] = [(-this.y) / scale - H, (h - this.y) / scale + H];
      const nodes = model.drawn.filter((n) => n.p[0] > left && n.p[0] < right && n.p[1] > top && n.p[1] < bottom);
      const edges = model.edges.filter((e) => {
        const [a, b] = [model.nodes[e.a].p, model.nodes[e.b].p];
        if (a[1] > bottom || b[1] < top) return false;
        return e.p || !(Math.max(a[0], b[0]) < left || Math.min(a[0], b[0]) > right);
      });
      const inside = (e) => model.nodes[e.a].r !== undefined && model.nodes[e.a].r === model.nodes[e.b].r;
      if (mode === "regions") {
        // A region is what lies under its operators and the edges between them.
        const by = new Map();
        const of = (node) => {
          const region = regionOf(node);
          if (!by.has(region)) by.set(region, [[], []]);
          return by.get(region);
        };
        for (const e of edges) if (inside(e)) of(model.nodes[e.a])[0].push(e);
        for (const n of nodes) if (n.r !== undefined && regionOf(n)) of(n)[1].push(n);
        for (const [region, [between, members]] of by) {
          if (!region) continue;
          c.strokeStyle = c.fillStyle = mix(regionColour(region.kind), theme.surface, 0.16);
          c.lineWidth = 26;
          c.lineJoin = "round";
          c.beginPath();
          for (const e of between) this.path(c, e);
          c.stroke();
          for (const n of members) {
            c.beginPath();
            c.roundRect(n.p[0] - W / 2 - 9, n.p[1] - H / 2 - 9, W + 18, H + 18, 12);
            c.fill();
          }
        }
      }
      c.lineWidth = Math.max(1.2, 0.6 / scale);
      c.strokeStyle = theme.edge;
      c.beginPath();
      for (const e of edges) this.path(c, e);
      c.stroke();
      const now = selected && selected.side === this.side ? (selected.p ? selected : model.nodes[selected.h]) : null;
      const twin = selected && selected.side !== this.side && selected.c !== undefined ? model.nodes[selected.c] : null;
      if (now) {
        c.strokeStyle = theme.accent;
        c.lineWidth = Math.max(2, 1.2 / scale);
        c.beginPath();
        for (const e of edges) if (e.a === now.id || e.b === now.id) this.path(c, e);
        c.stroke();
      }
      const legible = scale > (printing ? 0.22 : 0.42);
      if (scale > 0.25) {
        c.fillStyle = theme.edge;
        for (const e of edges) {
          const [x, y] = model.nodes[e.b].p;
          c.beginPath();
          c.moveTo(x, y - H / 2);
          c.lineTo(x - 4, y - H / 2 - 7);
          c.lineTo(x + 4, y - H / 2 - 7);
          c.fill();
        }
      }
      c.textBaseline = "middle";
      for (const n of nodes) {
        const dim = hits && !hits.has(`${this.side}:${n.id}`);
        if (dim) {  // first without what lies under it
          c.fillStyle = theme.surface;
          c.beginPath();
          c.roundRect(n.p[0] - W / 2, n.p[1] - H / 2, W, H, 7);
          c.fill();
        }
        c.globalAlpha = dim ? 0.28 : 1;
        c.fillStyle = this.colour(n);
        c.strokeStyle = this.border(n);
        c.lineWidth = Math.max(1, 0.5 / scale);
        c.beginPath();
        c.roundRect(n.p[0] - W / 2, n.p[1] - H / 2, W, H, 7);
        c.fill();
        c.stroke();
        if (legible) {
          const [x, y] = [n.p[0] - W / 2 + 10, n.p[1]];
          c.fillStyle = mode === "cost" && (n.us || 0) / model.dearest > 0.5 ? "#ffffff" : theme.text;
          c.font = "600 11.5px system-ui, 'DejaVu Sans', sans-serif";
          const mark = mode === "changes" ? STATES[n.st][2] : "";
          c.fillText(cut(c, brief(n.k), W - 20), x, y - 7.5);
          if (mark) c.fillText(mark, n.p[0] + W / 2 - 17, y + 8);
          c.font = "10.5px system-ui, 'DejaVu Sans', sans-serif";
          c.fillStyle = c.fillStyle === "#ffffff" ? "#ffffff" : mode === "cost" ? theme.text : theme.muted;
          const shape = output(n) ? dims(output(n)) : "";
          const figures = mode === "cost" ? time(n.ms !== undefined && n.ms > 0 ? n.ms * 1000 : n.us) : "";
          const room = figures ? c.measureText(figures).width + 8 : 0;
          c.fillText(cut(c, shape, W - 20 - room - (mark ? 12 : 0)), x, y + 8);
          if (figures) c.fillText(figures, n.p[0] + W / 2 - 10 - room + 8, y + 8);
        }
        if (n === now || n === twin || (hits && !dim)) {
          c.strokeStyle = n === now ? theme.accent : n === twin ? theme.text : theme.warn;
          c.lineWidth = Math.max(2.5, 1.6 / scale);
          if (n === twin) c.setLineDash([5, 4]);
          c.beginPath();
          c.roundRect(n.p[0] - W / 2 - 2, n.p[1] - H / 2 - 2, W + 4, H + 4, 9);
          c.stroke();
          c.setLineDash([]);
        }
      }
      c.globalAlpha = 1;
      if (model.groups.length > 1) {
        // Of one size whatever the zoom, and no wider than the subgraph and the gap beside it: they never overlap.
        c.setTransform(ratio, 0, 0, ratio, 0, 0);
        c.fillStyle = theme.muted;
        c.font = "12px system-ui, 'DejaVu Sans', sans-serif";
        model.groups.forEach((g, i) => {
          const room = ((i + 1 < model.groups.length ? model.groups[i + 1].x : g.x + Math.max(g.w, 4 * W)) - g.x) * scale - 8;
          if (room > 24) c.fillText(cut(c, room < 110 ? String(g.index) : `subgraph ${g.index}${g.name ? ` ${g.name}` : ""}`, room), g.x * scale + this.x, this.y - 14);
        });
      }
      if (this.tall) this.drawOverview(c, ratio, w, h);
    }
    drawOverview(c, ratio, w, h) {
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      const { model } = this;
      const [x, wide, high] = [this.room + 6, 52, h - 16];
      c.fillStyle = theme.bg;
      c.fillRect(this.room, 0, w - this.room, h);
      const key = [mode, document.documentElement.dataset.theme, wide, high, hits].join();
      if (this.overviewKey !== key || this.overviewHits !== hits) {
        const made = this.overview = document.createElement("canvas");
        made.width = wide * ratio;
        made.height = high * ratio;
        const o = made.getContext("2d");
        o.scale(ratio, ratio);
        const [sx, sy] = [Math.min(0.12, wide / model.width), high / model.height];
        const offset = (wide - model.width * sx) / 2;
        for (const n of model.drawn) {
          const hit = hits && hits.has(`${this.side}:${n.id}`);
          const fillStyle = hit ? theme.warn : this.border(n);
          o.globalAlpha = hits && !hit ? 0.25 : 1;
          o.fillStyle = mode === "cost" && !hit ? this.colour(n) : fillStyle;
          o.fillRect(offset + (n.p[0] - W / 2) * sx, (n.p[1] - H / 2) * sy, Math.max(2, W * sx), Math.max(hit ? 2 : 0.8, H * sy * 0.9));
        }
        this.overviewKey = key;
        this.overviewHits = hits;
      }
      c.drawImage(this.overview, x, 8, wide, high);
      const [from, to] = [-this.y, h - this.y].map((v) => 8 + v / this.scale / model.height * high);
      c.strokeStyle = theme.accent;
      c.lineWidth = 1.5;
      const [a, b] = [Math.max(2, from), Math.min(h - 2, to)];
      if (b > a) c.strokeRect(this.room + 2, a, w - this.room - 4, Math.max(4, b - a));
    }
  }
  function cut(c, text, width) {
    if (c.measureText(text).width <= width) return text;
    let low = 0, high = Math.min(text.length, 60);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (c.measureText(`${text.slice(0, middle)}\u2026`).width <= width) low = middle;
      else high = middle - 1;
    }
    return `${text.slice(0, low)}\u2026`;
  }
  const views = {};
  function redraw() {
    if (drawing) return;
    drawing = requestAnimationFrame(() => {
      drawing = 0;
      for (const side of SIDES) if (views[side] && views[side].ready) views[side].draw();
    });
  }
  function tip(text, e) {
    const box = $("tip");
    box.hidden = !text;
    if (!text) return;
    box.textContent = text;
    const wide = box.offsetWidth;
    box.style.left = `${Math.min(e.clientX + 14, innerWidth - wide - 8)}px`;
    box.style.top = `${e.clientY + 16}px`;
  }

  // -- what is selected ------------------------------------------------------------------------------------------

  function select(node, side, force) {
    selected = node;
    if (node) {
      views[node.side].show(node, force);
      const twin = node.c === undefined ? null : models[node.side === "before" ? "after" : "before"].nodes[node.c];
      if (twin) views[twin.side].show(twin, force);
      const region = regionOf(node);
      $("said").textContent = `${NAMES[node.side]}: ${node.k}, number ${node.n}${output(node) ? `, ${output(node).t} ${dims(output(node))}` : ""}` +
        `${region ? `, in region ${region.kind}` : ""}, ${STATES[node.st][0]}`;
    }
    details(node);
    redraw();
  }
  const jump = (side, id, text) => el("button", { type: "button", class: "link", onclick: () => {
    const node = models[side].nodes[id];
    if (views[side].figure.hidden) choose("which", side);
    $("graph").scrollIntoView({ block: "start" });
    select(node, side, true);
    views[side].canvas.focus({ preventScroll: true });
  } }, text);
  function list(rows) {
    return el("dl", {}, rows.filter(([, v]) => v !== null && v !== undefined && v !== "").map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
  }
  function quantised(q) {
    if (!q) return "";
    if (q.count) return `quantised, ${q.count} scales along axis ${q.axis} (${figure(q.low)} to ${figure(q.high)})`;
    return `quantised, scale ${figure(q.scale, 5)}, zero point ${q.zero}`;
  }
  function tensors(node, ids) {
    const model = models[node.side];
    return el("ul", {}, ids.map((id) => {
      const t = model.tensors[id];
      const maker = model.makers.get(id);
      const name = el("code", {}, t.n);
      return el("li", {}, maker !== undefined && maker !== node.id ? jump(node.side, maker, name) : name, el("div", { class: "muted small" },
        `${t.t} ${dims(t)}${t.b !== undefined ? `, ${amount(t.b, "B")}` : ""}${t.c ? ", constant" : ""}`, t.q && el("div", {}, quantised(t.q))));
    }));
  }
  function details(node) {
    const box = $("details");
    box.replaceChildren();
    if (!node) {
      box.append(el("h3", {}, "Nothing selected"), el("p", { class: "muted" }, "Click an operator, or press an arrow key in the graph, to see its shapes, types, quantisation, rules and costs here."));
      const region = models.after.regions.length ? "after" : models.before.regions.length ? "before" : null;
      const dear = [...models[region || "after"].drawn].filter((n) => n.us).sort((a, b) => b.us - a.us).slice(0, 8);
      if (dear.length) {
        box.append(el("h4", {}, `Most expensive, ${within(region || "after")}`),
          el("dl", {}, dear.map((n) => [el("dt", {}, jump(n.side, n.id, `${brief(n.k)} #${n.n}`)), el("dd", {}, time(n.us))])),
          el("p", { class: "muted small" }, `By the cost model of ${data.target}, in the stock runtime.`));
      }
      return;
    }
    const model = models[node.side], region = regionOf(node);
    const heading = (text) => el("h4", {}, text);
    const add = (...parts) => box.append(...parts.filter(Boolean));
    add(el("h3", {}, node.k), el("div", { class: "where" }, `${NAMES[node.side]}, number ${node.n}${node.s ? ` of subgraph ${node.s}` : ""} `,
      output(node) && el("code", {}, output(node).n)));
    add(el("div", { class: "badges", style: { margin: "0.6rem 0 0" } },
      el("span", { class: `badge ${node.st === "same" ? "" : node.st === "gone" ? "bad" : node.st === "new" ? "good" : "warn"}` }, STATES[node.st][0]),
      node.f && el("span", { class: "badge" }, "runs once, at the start")));
    if (node.c !== undefined) {
      const other = node.side === "before" ? "after" : "before", twin = models[other].nodes[node.c];
      add(el("p", { class: "small", style: { "margin-top": "0.6rem" } }, `${node.st === "gone" || node.st === "new" ? "Next to it, " : ""}${node.st === "gone" || node.st === "new" ? within(other) : NAMES[other]}: `,
        jump(other, node.c, `${brief(twin.k)} #${twin.n}`)));
    }
    if (node.op) add(heading("Options"), el("code", {}, node.op));
    if (node.i.length) add(heading("Reads"), tensors(node, node.i));
    if (node.o.length) add(heading("Writes"), tensors(node, node.o));
    const fed = model.fed.get(node.id);
    if (fed) add(heading("Fed by, on constants alone"), el("ul", {}, fed.map((n) => el("li", {}, jump(node.side, n, `${brief(model.nodes[n].k)} #${model.nodes[n].n}`)))));
    add(heading("Cost"), list([
      ["multiply-accumulates", node.m === null ? "unknown" : node.m ? amount(node.m) : "none"],
      ["bytes written", amount(node.w, "B")],
      [`stock runtime, ${data.target}`, node.us === undefined ? "" : node.us ? `${time(node.us)} (model)` : "nothing (model)"],
      ["measured, in its region", node.ms === undefined ? "" : node.ms ? time(node.ms * 1000) : "with its neighbour"],
    ]));
    if (doc.bench && node.side === "after" && node.ms === undefined) add(el("p", { class: "muted small", style: { "margin-top": "0.35rem" } },
      doc.bench.profile ? "Not measured: it is in no region that the delegate ran, and only these are timed by operator." : "Not measured: the delegate ran nothing, and only its regions are timed by operator."));
    if (region) {
      const home = data[node.side].regions.length ? node.side : "after";
      const cost = region.cost || {};
      add(heading(`Region ${region.kind}`), home !== node.side && el("p", { class: "muted small" }, data.command === "diff" ? `Its place in ${NAMES[home]}.` : "Its place in the result."),
        el("div", { class: "keys", style: { "margin-bottom": "0.4rem" } }, el("span", { class: "key" }, el("i", { style: { background: regionColour(region.kind) } }), `${models[home].members[node.r].length} operators`)),
        list([
          ["stock runtime", cost.stock_us === undefined ? "" : `${time(cost.stock_us)} (model)`],
          ["as one kernel", cost.fused_us === undefined ? "" : `${time(cost.fused_us)} (model)`],
          ["saves", cost.stock_us === undefined ? "" : `${time(cost.stock_us - cost.fused_us)} (model)`],
          ["measured", region.ms === null ? "" : time(region.ms * 1000)],
          ["multiply-accumulates", cost.macs ? amount(cost.macs) : ""],
          ["read", cost.bytes_in === undefined ? "" : amount(cost.bytes_in, "B")],
          ["written", cost.bytes_out === undefined ? "" : amount(cost.bytes_out, "B")],
          ["constants", cost.bytes_constants === undefined ? "" : amount(cost.bytes_constants, "B")],
          ["stays inside", cost.bytes_internal === undefined ? "" : amount(cost.bytes_internal, "B")],
        ]),
        el("ul", { style: { "margin-top": "0.5rem" } }, models[home].members[node.r].filter((n) => models[home].nodes[n].p).slice(0, 40).map((n) => el("li", {},
          jump(home, n, `${brief(models[home].nodes[n].k)} #${models[home].nodes[n].n}`)))));
    }
    if (node.ru) add(heading("Rules"), el("ul", {}, node.ru.map((n) => el("li", {}, el("strong", {}, doc.applied[n].rule), ` (${doc.applied[n].numerics}) `, doc.applied[n].detail))));
    if (node.re) add(heading("Declined here"), el("ul", {}, node.re.slice(0, 30).map((n) => el("li", {}, el("strong", {}, data.refused[n].rule), ": ", data.refused[n].reason))));
    box.scrollTop = 0;
  }

  // -- search ----------------------------------------------------------------------------------------------------

  const haystack = {};
  for (const side of SIDES) haystack[side] = models[side].nodes.map((n) => [n.k, `#${n.n}`, n.op || "", ...[...n.o, ...n.i].map((t) => models[side].tensors[t].n),
    regionOf(n) ? regionOf(n).kind : "", ...(n.ru || []).map((r) => doc.applied[r].rule), ...(n.re || []).map((r) => data.refused[r].rule)].join("\n").toLowerCase());
  function search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const list = $("results");
    list.replaceChildren();
    list.hidden = !words.length;
    hits = words.length ? new Set() : null;
    $("found").textContent = "";
    if (hits) {
      const found = [];
      for (const side of SIDES) {
        if (views[side].figure.hidden) continue;
        models[side].nodes.forEach((node, n) => {
          if (!words.every((w) => haystack[side][n].includes(w))) return;
          found.push(node);
          hits.add(`${side}:${node.p ? n : node.h}`);
        });
      }
      // What is called so comes before what only reads it, or belongs to what is called so.
      const own = (node) => words.every((w) => `${node.k} #${node.n} ${output(node) ? output(node).n : ""}`.toLowerCase().includes(w));
      found.sort((x, y) => own(y) - own(x));
      $("found").textContent = found.length ? `${count(found.length)} found` : "nothing found";
      const shown = found.slice(0, 100);
      list.append(...shown.map((node) => el("li", {}, el("button", { type: "button", onclick: () => {
        select(node, node.side, true);
        views[node.side].canvas.focus({ preventScroll: true });
      } }, el("span", { class: "side" }, NAMES[node.side]), el("span", { class: "what" }, `${brief(node.k)} #${node.n}`), el("span", { class: "mono" }, output(node) ? output(node).n : "")))));
      if (found.length > shown.length) list.append(el("li", { class: "muted small" }, `and ${count(found.length - shown.length)} more`));
      if (!found.length) list.hidden = true;
    }
    redraw();
  }

  // -- controls --------------------------------------------------------------------------------------------------

  const choices = {};
  function radio(id, label, options, initial, act) {
    const box = $(id);
    box.append(el("span", { class: "label", "aria-hidden": "true" }, label));
    const buttons = options.map(([value, text]) => el("button", { type: "button", role: "radio", "data-value": value, onclick: () => choices[id](value) }, text));
    choices[id] = (value) => {
      for (const b of buttons) {
        const on = b.dataset.value === value;
        b.setAttribute("aria-checked", String(on));
        b.tabIndex = on ? 0 : -1;
      }
      act(value);
    };
    box.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[e.key];
      if (!by) return;
      e.preventDefault();
      const next = buttons[(buttons.findIndex((b) => b.getAttribute("aria-checked") === "true") + by + buttons.length) % buttons.length];
      next.focus();
      choices[id](next.dataset.value);
    });
    box.append(...buttons);
    choices[id](initial);
  }
  const choose = (id, value) => choices[id](value);
  function legend() {
    const box = $("legend");
    if (mode === "regions") {
      const counts = new Map();
      for (const r of (data.after.regions.length ? data.after : data.before).regions) counts.set(r.kind, (counts.get(r.kind) || 0) + 1);
      box.replaceChildren(...kindsOfRegions.map((k) => key(regionColour(k), `${k}${counts.has(k) ? ` (${counts.get(k)})` : ""}`)), key(theme["node-line"], "in no region"));
    } else if (mode === "changes") {
      box.replaceChildren(...Object.entries(STATES).map(([, [text, colour, mark]]) => key(colour || theme["node-line"], mark ? `${mark} ${text}` : text)));
    } else {
      box.replaceChildren(key(heat(0), "free"), key(heat(0.1), "10 %"), key(heat(0.5), "half"), key(heat(1), "as the most expensive operator"),
        el("span", { class: "key" }, `colours by the cost model of ${data.target}${doc.bench && doc.bench.profile ? "; figures of operators in the delegate's regions as measured, of others by the model" : ""}`));
    }
  }
  function changesOf(total) {
    const all = models.before.nodes.length;
    const parts = [total.changed && `${count(total.changed)} changed`, total.gone && `${count(total.gone)} went`, total.new && `${count(total.new)} are new`].filter(Boolean);
    if (!parts.length) return all === 1 ? "The only operator stayed as it was." : `All ${plural(all, "operator")} stayed as they were.`;
    const last = parts.pop();
    return `Of ${plural(all, "operator")}, ${[`${count(total.same)} stayed as they were`, ...parts].join(", ")} and ${last}.`;
  }
  function graph() {
    const total = data.changes;
    $("graph-about").textContent = data.command === "diff"
      ? `${plural(total.same, "operator")} the same, ${count(total.changed)} changed, ${count(total.gone)} in A only, ${count(total.new)} in B only.`
      : `${changesOf(total)} What is selected on one side is marked on the other.`;
    if (SIDES.every((s) => !models[s].drawn.length)) {
      $("graph-about").textContent = "";
      $("graph-box").replaceWith(el("p", { class: "note calm" }, data.command === "diff" ? "Neither model has operators to draw." : "There are no operators to draw: all outputs are inputs or constants."));
      return;
    }
    // Small graphs need no large frame.
    $("graph-box").style.setProperty("--need", `${Math.max(...SIDES.map((s) => models[s].height + 130))}px`);
    for (const side of SIDES) views[side] = new View(side);
    radio("which", "Show", [["both", "Both"], ["before", NAMES.before], ["after", NAMES.after]], "both", (value) => {
      for (const side of SIDES) {
        views[side].figure.hidden = value !== "both" && value !== side;
        views[side].ready = views[side].ready && !views[side].figure.hidden;
      }
      if ($("search").value) search($("search").value);
    });
    const modes = [["changes", "Changes"], ["cost", "Cost"]];
    if (kindsOfRegions.length) modes.unshift(["regions", "Regions"]);
    radio("colour", "Colour by", modes, mode, (value) => { mode = value; legend(); redraw(); });
    const each = (act) => () => SIDES.forEach((s) => !views[s].figure.hidden && act(views[s]));
    $("fit").addEventListener("click", each((v) => v.fit()));
    $("closer").addEventListener("click", each((v) => v.zoom(1.3)));
    $("farther").addEventListener("click", each((v) => v.zoom(1 / 1.3)));
    const expand = $("expand"), box = $("graph-box");
    const toggle = (full) => {
      box.classList.toggle("full", full);
      expand.setAttribute("aria-pressed", String(full));
      expand.textContent = full ? "Close" : "Expand";
      document.body.style.overflow = full ? "hidden" : "";
    };
    expand.addEventListener("click", () => toggle(!box.classList.contains("full")));
    $("search").addEventListener("input", (e) => search(e.target.value));
    $("search").addEventListener("keydown", (e) => {
      if (e.key === "Escape") { e.target.value = ""; search(""); }
      const first = $("results").querySelector("button");
      if (first && e.key === "Enter") { first.click(); e.preventDefault(); }
      if (first && e.key === "ArrowDown") { e.preventDefault(); first.focus(); }
    });
    const searching = (e) => { $("results").hidden = !$("results").children.length || !(box.querySelector(".search").contains(e) || $("results").contains(e)); };
    box.addEventListener("focusin", (e) => searching(e.target));
    document.addEventListener("pointerdown", (e) => searching(e.target));
    $("results").addEventListener("keydown", (e) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (e.key === "Escape") $("search").focus();
      if (!by) return;
      e.preventDefault();
      const all = [...$("results").querySelectorAll("button")];
      (all[all.indexOf(document.activeElement) + by] || $("search")).focus();
    });
    document.addEventListener("keydown", (e) => {
      if (e.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) {
        e.preventDefault();
        $("search").focus();
      } else if (e.key === "Escape" && box.classList.contains("full") && document.activeElement === document.body) toggle(false);
    });
    details(null);
  }

  // -- summary ---------------------------------------------------------------------------------------------------

  const chosen = data.estimates.find((e) => e.target === data.target) || data.estimates[0];
  function contenders() {
    const all = doc.bench ? doc.bench.contenders.filter((c) => c.latency) : [];
    return all.length ? [all[0], all[all.length - 1]] : null;
  }
  function summary() {
    const diff = data.command === "diff";
    document.title = $("title").textContent = diff ? `${base(data.files[0])} and ${base(data.files[1])}` : base(data.files[0]);
    $("eyebrow").textContent = diff ? "Two models compared by litefuse" : "What litefuse made of";
    if (diff) document.title += " \u2013 litefuse";
    $("lead").append(...(diff ? ["A is ", el("code", {}, data.files[0]), ", B is ", el("code", {}, data.files[1]), "."] :
      data.files[1] ? ["Written to ", el("code", {}, data.files[1])] : ["Nothing was written."]));
    const badge = (kind, text) => $("badges").append(el("span", { class: `badge ${kind}` }, text));
    for (const [check, what] of [[doc.check, ""], [doc.delegate_check, " with the delegate"]]) {
      if (!check) continue;
      if (check.skipped) badge("warn", `Not compared${what}`);
      else badge(check.ok ? "good" : "bad", `${check.ok ? "\u2713 Same" : "\u2717 Different"} outputs${what}, ${plural(check.runs, "run")}`);
    }
    if (!doc.check) badge("warn", "Outputs not compared");
    if (!diff) {
      badge("", doc.applied.length ? `Rules: ${plural(doc.applied.length, "application")}, ${doc.numerics}` : "No rule applies");
      if (doc.regions) badge("", `${plural(doc.regions.regions.length, "region")} for ${doc.regions.target}, packaged as ${doc.regions.package}`);
    } else if (doc.interface.length) badge("warn", `Interfaces differ in ${plural(doc.interface.length, "point")}`);
    const cards = $("cards");
    const card = (name, before, after, show, about, unsure) => {
      if (before === null || after === null || before === undefined || after === undefined) return;
      cards.append(el("dl", { class: "card", style: { margin: "0" } }, el("dt", {}, name), el("dd", {},
        el("div", { class: "now" }, show(after)),
        el("div", { class: "was" }, before === after ? "unchanged" : [el("span", {}, `from ${show(before)}`), unsure ? el("span", {}, change(before, after)) : changed(before, after)]),
        el("div", { class: "meter", "aria-hidden": "true" }, el("i", { style: { width: `${Math.max(1, Math.min(100, before ? after / before * 100 : 100))}%` } })),
        about && el("div", { class: "muted small", style: { "margin-top": "0.35rem" } }, about))));
    };
    const bytes = (n) => amount(n, "B");
    const [a, b] = [doc.before, doc.after];
    const inside = new Set(data.after.nodes.filter((n) => data.after.regions.length && n.r !== undefined && n.p).map((n) => n.r));
    card("Operators", a.operators, b.operators, count, inside.size ? `${count(data.after.nodes.filter((n) => n.r !== undefined).length)} of them in ${plural(inside.size, "region")}` : null);
    const arenas = SIDES.map((s) => data[s].arena);
    if (arenas[0] && arenas[1]) card("Memory for intermediates", arenas[0].peak_bytes, arenas[1].peak_bytes, bytes, data.after.regions.length ? "outside of regions" : null);
    if (chosen) {
      const sum = (e) => Object.values(e.activation_bytes).reduce((x, y) => x + y, 0) - 0;
      const outside = data.after.regions.length || data.before.regions.length;
      card("Activations moved", sum(chosen.before), sum(chosen.after), bytes, outside ? "read and written, in all" : "read and written");
      card("Energy, estimated", chosen.before.energy_uj, chosen.after.energy_uj, energy, `on ${chosen.target}`);
    } else card("Activations written", a.activation_bytes, b.activation_bytes, bytes);
    const pair = contenders();
    const unclear = pair && pair[1].ratio && pair[1].ratio.verdict === "unclear";
    if (pair) card("Latency, median", pair[0].latency.p50_ms * 1000, pair[1].latency.p50_ms * 1000, time, unclear ? "measured: runs vary too much to tell" : "measured", unclear);
    else if (chosen) card("Time by the cost model", chosen.before.time_us, chosen.after.time_us, time, `on ${chosen.target}`);
    card("File", a.file_bytes, b.file_bytes, bytes);
  }

  // -- operators by kind -----------------------------------------------------------------------------------------

  function operators() {
    const most = Math.max(1, ...data.kinds.flatMap((k) => [k.before.count, k.after.count]));
    const bars = (k) => el("td", { "aria-hidden": "true" }, el("div", { class: "pair" }, ...SIDES.map((s) => el("i", { style: { width: `${k[s].count / most * 100}%` } }))));
    const t = [doc.before, doc.after];
    const note = "As the file has them; a region that is packaged as a composite or custom operator counts as one.";
    const rows = data.kinds.map((k) => [el("code", {}, k.kind), bars(k), count(k.before.count), count(k.after.count), changed(k.before.count, k.after.count),
      amount(k.before.macs), amount(k.after.macs), amount(k.before.written_bytes, "B"), amount(k.after.written_bytes, "B")]);
    const heads = ["kind", "", ">before", ">after", ">change", ">MACs before", ">after", ">written before", ">after"].map((h) => (data.command === "diff" ? h.replace("before", "A").replace("after", "B") : h));
    const made = long("", heads, rows, (r) => r, 30);
    made.querySelectorAll("th")[1].append(el("span", { class: "keys" }, SIDES.map((s) => key(`var(--${s})`, within(s)))));
    made.querySelector("tbody").append(el("tr", { class: "total" }, cell("all operators"), cell(""), cell(count(t[0].operators), 1), cell(count(t[1].operators), 1),
      cell(changed(t[0].operators, t[1].operators), 1), cell(amount(t[0].macs), 1), cell(amount(t[1].macs), 1), cell(amount(t[0].activation_bytes, "B"), 1), cell(amount(t[1].activation_bytes, "B"), 1)));
    const sizes = [["MACs", "macs", ""], ["activations written", "activation_bytes", "B"], ["most live bytes", "peak_bytes", "B"], ["weights", "weight_bytes", "B"],
      ["weights widened at the start", "widened_bytes", "B"], ["state", "variable_bytes", "B"], ["file", "file_bytes", "B"]];
    section("operators", "Operators by kind", note, el("div", { class: "stack" }, el("div", { class: "panel" }, made),
      el("div", { class: "panel" }, table("", ["whole model", `>${within("before")}`, `>${within("after")}`, ">change"],
        sizes.filter(([, key]) => t[0][key] || t[1][key]).map(([name, key, unit]) => [name, amount(t[0][key], unit), amount(t[1][key], unit),
          t[0][key] === null || t[1][key] === null ? "" : changed(t[0][key], t[1][key])])))));
  }

  // -- memory over time ------------------------------------------------------------------------------------------

  function memory() {
    const both = SIDES.map((s) => data[s].arena);
    if (!both.some((a) => a && a.boxes.length)) { $("memory").hidden = true; return; }
    const most = Math.max(1, ...both.filter(Boolean).map((a) => a.peak_bytes));
    const panel = (side) => {
      const arena = data[side].arena;
      if (!arena) return el("div", { class: "panel" }, el("h3", {}, NAMES[side]), el("p", { class: "muted" }, "Not known: sizes depend on the run."));
      const canvas = el("canvas", { role: "img", "aria-label": `Arena ${within(side)}: peak ${amount(arena.peak_bytes, "B")}; the table below lists what is live at the peak` });
      const box = el("div", { class: "arena" }, canvas);
      pictures.push(() => drawArena(canvas, box, arena, most));
      new ResizeObserver(() => drawArena(canvas, box, arena, most)).observe(box);
      const find = (e) => {
        const r = box.getBoundingClientRect();
        const x = (e.clientX - r.left - 52) / (r.width - 60) * (arena.steps + 1), y = (1 - (e.clientY - r.top - 8) / (r.height - 30)) * most * 1.04;
        return arena.boxes.find((b) => b[0] <= x && x < b[1] && b[2] <= y && y < b[2] + b[3]);
      };
      canvas.addEventListener("pointermove", (e) => {
        const b = find(e);
        canvas.style.cursor = b && b[5] >= 0 ? "pointer" : "";
        tip(b && `${b[4]}: ${amount(b[3], "B")} at ${count(b[2])}, ${ROLES[b[6]][0]}`, e);
      });
      canvas.addEventListener("pointerleave", () => tip(null));
      canvas.addEventListener("click", (e) => {
        const b = find(e);
        if (b && b[5] >= 0) jump(side, b[5], "").click();
      });
      return el("div", { class: "panel" }, el("h3", {}, `${NAMES[side]}: ${amount(arena.peak_bytes, "B")}`),
        el("p", { class: "muted small" }, arena.peak_bytes === arena.lower_bound ? "No packing of this order takes less." : `No packing of this order takes less than ${amount(arena.lower_bound, "B")}.`,
          arena.unplanned ? ` ${plural(arena.unplanned, "tensor")} of unknown size left out.` : ""), box, atPeak(side, arena));
    };
    const scratch = doc.regions && doc.regions.scratch_bytes;
    section("memory", "Memory over time", `Each rectangle is a tensor: from left to right the operators that run while it is needed, upwards its place in the arena of ${(both[0] || both[1]).runtime}. Both have one scale.` +
      (scratch ? ` What stays inside of regions is in none of them; the regions share ${amount(scratch, "B")} of scratch at most.` : ""),
    el("div", { class: "two" }, SIDES.map(panel)), el("div", { class: "keys", style: { "margin-top": "0.7rem" } },
      Object.entries(ROLES).filter(([k]) => both.some((a) => a && a.boxes.some((b) => b[6] === k))).map(([, [name, colour]]) => el("span", { class: "key" }, el("i", { style: { background: colour } }), name))));
  }
  function atPeak(side, arena) {
    const change = new Map();
    for (const [first, last, , size] of arena.boxes) {
      change.set(first, (change.get(first) || 0) + size);
      change.set(last, (change.get(last) || 0) - size);
    }
    let live = 0, most = -1, when = 0;
    for (const t of [...change.keys()].sort((a, b) => a - b)) {
      live += change.get(t);
      if (live > most) [most, when] = [live, t];
    }
    const rows = arena.boxes.filter((b) => b[0] <= when && when < b[1]).sort((a, b) => b[3] - a[3]);
    return el("details", {}, el("summary", {}, `Live at the peak: ${plural(rows.length, "tensor")}`), table("", ["tensor", ">bytes"], rows.slice(0, 20).map((b) => [
      b[5] >= 0 ? jump(side, b[5], el("code", {}, b[4])) : el("code", {}, b[4]), count(b[3])])));
  }
  function drawArena(canvas, box, arena, most) {
    const [ratio, w, h] = printing ? [3, 310, 230] : [window.devicePixelRatio || 1, box.clientWidth, box.clientHeight];
    if (!w) return;
    canvas.width = w * ratio;
    canvas.height = h * ratio;
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    const [left, top, wide, high] = [52, 8, w - 60, h - 30];
    const X = (t) => left + t / (arena.steps + 1) * wide, Y = (b) => top + high - b / (most * 1.04) * high;
    c.font = "10.5px system-ui, 'DejaVu Sans', sans-serif";
    c.fillStyle = theme.muted;
    c.strokeStyle = theme.line;
    c.textAlign = "right";
    c.textBaseline = "middle";
    const [unit, size] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]].find(([, u]) => most >= u);
    for (const value of ticks(most / size, 5)) {
      const y = Y(value * size);
      c.beginPath();
      c.moveTo(left, y);
      c.lineTo(left + wide, y);
      c.stroke();
      c.fillText(value ? round(value, unit) : "0", left - 7, y);
    }
    for (const [first, last, offset, size, name, , role] of arena.boxes) {
      const [x, y, bw, bh] = [X(first), Y(offset + size), X(last) - X(first), Y(offset) - Y(offset + size)];
      c.fillStyle = mix(ROLES[role][1], theme.surface, 0.72);
      c.fillRect(x, y, Math.max(bw, 0.7), Math.max(bh, 0.5));
      if (bw > 3 && bh > 2) {
        c.strokeStyle = theme.surface;
        c.lineWidth = 1;
        c.strokeRect(x, y, bw, bh);
      }
      if (bw > 60 && bh > 13) {
        c.fillStyle = theme.text;
        c.textAlign = "left";
        c.fillText(cut(c, name.split("/").pop(), bw - 10), x + 5, y + bh / 2);
      }
    }
    c.strokeStyle = c.fillStyle = theme.text;
    c.setLineDash([4, 3]);
    c.beginPath();
    c.moveTo(left, Y(arena.peak_bytes));
    c.lineTo(left + wide, Y(arena.peak_bytes));
    c.stroke();
    c.setLineDash([]);
    c.fillStyle = theme.muted;
    c.textAlign = "left";
    c.fillText("start", left, h - 9);
    c.textAlign = "right";
    c.fillText(plural(arena.steps, data.after.regions.length && arena === data.after.arena ? "step" : "operator"), left + wide, h - 9);
  }

  // -- traffic and energy ----------------------------------------------------------------------------------------

  function traffic() {
    if (!chosen || !(chosen.before.energy_uj || chosen.after.energy_uj)) { $("energy").hidden = true; return; }
    const bars = el("div", { class: "panel" });
    const show = (e) => {
      const most = Math.max(e.before.energy_uj, e.after.energy_uj, 1e-12);
      const row = (side) => {
        const parts = [["compute", e[side].compute_uj], ...Object.entries(e[side].memory_uj)];
        return [el("strong", {}, NAMES[side]), el("div", { class: "stackbar", role: "img", "aria-label": parts.map(([k, v]) => `${k} ${energy(v)}`).join(", ") },
          parts.filter(([, v]) => v > 0).map(([k, v]) => el("i", { style: { width: `${v / most * 100}%`, background: LEVELS[k] }, title: `${k}: ${energy(v)}` }))), el("span", {}, energy(e[side].energy_uj))];
      };
      const levels = Object.keys(e.before.memory_uj);
      bars.replaceChildren(el("h3", {}, `Energy of a run on ${e.target}, estimated`), el("p", { class: "muted small", style: { "margin-bottom": "0.8rem" } }, e.description),
        el("div", { class: "bars" }, SIDES.map(row)),
        el("div", { class: "keys", style: { margin: "0.8rem 0 1rem" } }, Object.entries(LEVELS).filter(([k]) => k === "compute" || SIDES.some((s) => e[s].memory_uj[k] > 0)).map(([k, colour]) => key(colour, k === "compute" ? "arithmetic" : k))),
        table("", ["bytes moved", ...levels.map((l) => `>${l}`), ">in all"], SIDES.flatMap((side) => [["activations", "activation_bytes"], ["constants", "constant_bytes"]].map(([name, key]) => [
          `${NAMES[side]}: ${name}`, ...levels.map((l) => amount(e[side][key][l], "B")), amount(levels.reduce((n, l) => n + e[side][key][l], 0), "B")]))));
    };
    const rows = el("div", { class: "panel" });
    const pick = (e) => {
      show(e);
      for (const r of rows.querySelectorAll("tbody tr")) r.classList.toggle("chosen", r.dataset.target === e.target);
    };
    const heads = ["target", ">DRAM before", ">after", ">energy before", ">after", ">change", ">time before", ">after"].map((h) => (data.command === "diff" ? h.replace("before", "A").replace("after", "B") : h));
    rows.append(table("", heads, data.estimates.map((e) => el("tr", { "data-target": e.target }, [el("button", { type: "button", class: "link", onclick: () => pick(e) }, e.target),
      amount(e.before.dram_bytes, "B"), amount(e.after.dram_bytes, "B"), energy(e.before.energy_uj), energy(e.after.energy_uj), changed(e.before.energy_uj, e.after.energy_uj),
      time(e.before.time_us), time(e.after.time_us)].map((c, i) => cell(c, i > 0))))));
    const k = data.constants;
    section("energy", "Traffic and energy", "An estimate from sizes, not a measurement: good for comparing the two, not for a battery. Choose a target to see its parts.",
      el("div", { class: "stack" }, bars, rows),
      el("details", { class: "small", style: { "margin-top": "0.8rem" } }, el("summary", {}, "How this is estimated, and with which constants"), el("div", { class: "panel stack" },
        el("p", {}, "An operator or region reads its inputs and constants and writes its outputs, in the memory that holds them all together; what stays inside a region counts in L1 or L2. " +
          "Constants come from DRAM in each run where those of the whole model do not fit into the last cache. What only constants feed counts for nothing. Times are the cost model's. Regions were formed for one target; the others show what the same regions do there."),
        table(`Energies: ${k.source}. For a smaller process all of them are lower. Instructions, leakage and the rest of the board are not in it.`, ["what", ">pJ"], [
          ...Object.entries(k.pj_per_byte).map(([n, v]) => [`a byte of ${n}`, figure(v, 4)]), ...Object.entries(k.pj_per_mac).map(([n, v]) => [`a multiply-accumulate, ${n}`, figure(v)]),
          ...Object.entries(k.pj_per_operation).map(([n, v]) => [`an addition, ${n}; other arithmetic is counted in these`, figure(v)])]))));
    pick(chosen);
  }

  // -- numerics --------------------------------------------------------------------------------------------------

  function numerics() {
    const checks = [[doc.check, "Stock runtime"], [doc.delegate_check, "With litefuse's delegate"]].filter(([c]) => c);
    if (!checks.length) {
      section("numerics", "Numerics", "", el("p", { class: "note" }, "The outputs were not compared."));
      return;
    }
    section("numerics", "Numerics", "Both models were run on the same inputs. Differences are the largest of all runs; the bars say how many elements differ by how much, of runs with ordinary inputs.", el("div", { class: "stack" }, checks.map(([check, name]) => {
      if (check.skipped) return el("p", { class: "note" }, `${name}: not compared, ${check.skipped}`);
      const rows = [...check.outputs].sort((a, b) => a.ok - b.ok);
      return el("div", { class: "panel" }, el("h3", { style: { "margin-bottom": "0.6rem" } }, `${name}: ${check.ok ? "same" : "different"} on ${plural(check.runs, "run")}${check.regions !== null ? `, ${plural(check.regions, "region")} by the delegate` : ""}`),
        long("", ["output", "type", ">largest difference", ">relative", ">ulp or steps", "allowed", "verdict", "how the elements differ"], rows, (o) => [
          el("code", {}, o.signature ? `${o.signature}: ${o.output}` : o.output), o.type, figure(o.max_abs), figure(o.max_rel), figure(o.max_lsb !== null ? o.max_lsb : o.max_ulp), el("td", { class: "small bound" }, o.bound),
          el("span", { class: `verdict ${o.ok ? "down" : "up"}` }, o.ok ? "\u2713 within" : "\u2717 beyond"), histogram(o.distribution)], 12),
        check.notes.map((n) => el("p", { class: "note small", style: { "margin-top": "0.6rem" } }, n)));
    })));
  }
  function histogram(d) {
    if (!d) return "";
    const total = d.equal + d.bins.reduce((n, b) => n + b.count, 0);
    if (!total) return "";
    const percent = (n) => (n === total ? "100 %" : n / total > 0.9994 ? "> 99.9 %" : n / total < 0.0005 ? "< 0.1 %" : `${(n / total * 100).toFixed(n / total < 0.1 ? 1 : 0)} %`);
    if (!d.bins.length) return el("span", { class: "small muted" }, `all ${count(total)} equal`);
    const bars = [["equal", d.equal]];
    if (d.measure === "relative") {
      const exponent = (b) => Math.round(Math.log10(b.to));
      const by = new Map(d.bins.map((b) => [exponent(b), b.count]));
      for (let e = Math.min(...by.keys()); e <= Math.max(...by.keys()); e++) bars.push([`\u22641e${e}`, by.get(e) || 0]);
    } else for (const b of d.bins) bars.push([d.measure === "elements" ? "differ" : b.to - b.above === 1 ? String(b.to) : `${b.above + 1}\u2013${b.to}`, b.count]);
    const [step, high] = [Math.max(40, Math.min(54, 500 / bars.length)), 46];
    const label = bars.map(([n, v]) => `${n} ${percent(v)}`).join(", ");
    return svg("svg", { class: "small-chart", width: bars.length * step, height: high + 34, viewBox: `0 0 ${bars.length * step} ${high + 34}`, role: "img", "aria-label": `${d.measure}: ${label}` },
      svg("line", { x1: 0, x2: bars.length * step, y1: high + 16, y2: high + 16, stroke: "currentColor", "stroke-opacity": 0.25 }),
      bars.map(([n, v], i) => {
        const size = v ? Math.max(1.5, v / total * high) : 0;
        return [svg("rect", { x: i * step + 8, y: high + 16 - size, width: step - 16, height: size, rx: 2, fill: i ? "#e08a1e" : "#2f9e6e" }),
          svg("text", { x: i * step + step / 2, y: high + 12 - size, "text-anchor": "middle", "font-size": 10 }, v ? percent(v) : ""),
          svg("text", { x: i * step + step / 2, y: high + 30, "text-anchor": "middle", "font-size": 10 }, n)];
      }));
  }

  // -- latency ---------------------------------------------------------------------------------------------------

  const runner = (c) => (data.command === "diff" ? c.name : c.name.replace(/^A /, "original, ").replace(/^B /, "result, "));
  // What "measured" stands for, wherever it does.
  const MEASURED = "Measured times are averages of runs with the delegate and cover operators in its regions only. What the stock runtime runs itself, and what the " +
    "runtime takes around the regions, is not timed by operator: together it is the time outside of regions. An operator without a time of its own is computed with a neighbour, whose time has its share.";
  const REGION = "litefuse.";
  function profiled(r) {
    const at = data.after.regions.findIndex((one) => one.subgraph === 0 && one.position === r.position);
    const first = at < 0 ? undefined : models.after.members[at].find((n) => models.after.nodes[n].p);
    const name = r.name.startsWith(REGION) ? r.name.slice(REGION.length) : r.name;
    return first === undefined ? name : el("span", { class: "named" }, key(regionColour(data.after.regions[at].kind), ""), jump("after", first, `${name} #${r.position}`));
  }
  function latency() {
    const bench = doc.bench;
    if (!bench) { $("latency").hidden = true; return; }
    const all = bench.contenders.filter((c) => c.latency);
    const ms = (v) => (v === null ? "" : time(v * 1000));
    const most = Math.max(...all.map((c) => Math.max(c.latency.p99_ms, Math.min(c.latency.max_ms, 1.6 * c.latency.p99_ms)))) * 1.05;
    const colour = (c) => (c.delegate ? "var(--after)" : "var(--before)");
    const row = 44, chart = el("div", {});
    const [unit, size] = [["s", 1e3], ["ms", 1], ["\u00b5s", 1e-3]].find(([, u]) => most >= u) || ["ns", 1e-6];
    const draw = () => {
      const full = printing ? 660 : Math.max(300, chart.clientWidth || 900), left = full < 560 ? 0 : 130, wide = full - left - 30, lift = left ? 0 : 14;
      const X = (v) => left + 1 + Math.min(v, most) / most * wide, deep = all.length * (row + lift);
      chart.replaceChildren(svg("svg", { class: "latencies", viewBox: `0 0 ${full} ${deep + 34}`, width: full, role: "img",
        "aria-label": all.map((c) => `${runner(c)}: median ${ms(c.latency.p50_ms)}, p90 ${ms(c.latency.p90_ms)}, p99 ${ms(c.latency.p99_ms)}`).join("; ") },
      ticks(most / size, wide < 500 ? 4 : 8).map((v) => [svg("line", { x1: X(v * size), x2: X(v * size), y1: 4, y2: deep + 8, stroke: "var(--line)" }),
        svg("text", { x: X(v * size), y: deep + 24, "text-anchor": v ? "middle" : "start" }, v ? round(v, unit) : "0")]),
      all.map((c, i) => {
        const l = c.latency, y = i * (row + lift) + 26 + lift;
        return [svg("text", { x: left ? 0 : 4, y: left ? y + 4 : y - 17, class: "strong" }, runner(c)),
          svg("line", { x1: X(l.min_ms), x2: X(l.max_ms), y1: y, y2: y, stroke: colour(c), "stroke-width": 1.5, "stroke-opacity": 0.55 }),
          svg("rect", { x: X(l.p50_ms), y: y - 8, width: Math.max(2, X(l.p90_ms) - X(l.p50_ms)), height: 16, rx: 3, fill: colour(c), "fill-opacity": 0.45 }),
          svg("line", { x1: X(l.p50_ms), x2: X(l.p50_ms), y1: y - 11, y2: y + 11, stroke: colour(c), "stroke-width": 3 }),
          svg("line", { x1: X(l.p99_ms), x2: X(l.p99_ms), y1: y - 7, y2: y + 7, stroke: colour(c), "stroke-width": 2 })];
      })));
    };
    pictures.push(draw);
    new ResizeObserver(draw).observe(chart);
    const where = `${bench.runtime.name} ${bench.runtime.version}, ${bench.machine.architecture}, ${plural(bench.threads, "thread")}, ${plural(bench.rounds, "round")} in turn`;
    section("latency", "Latency", where + (bench.delegate ? `; delegate ${bench.delegate}` : ""), el("div", { class: "stack" },
      el("div", { class: "panel" }, chart, el("p", { class: "muted small", style: { "margin-top": "0.5rem" } }, "Thick stroke: the median; box: from there to the slowest tenth (p90); thin stroke: the slowest hundredth (p99); line: fastest to slowest, cut at the border.")),
      el("div", { class: "panel" }, table("", ["run by", ">p50", ">p90", ">p99", ">fastest", ">slowest", ">ratio (quartiles)", "verdict", ">start", ">memory", ">arena", ">regions"], bench.contenders.map((c) => [
        runner(c), ...(c.latency ? [ms(c.latency.p50_ms), ms(c.latency.p90_ms), ms(c.latency.p99_ms), ms(c.latency.min_ms), ms(c.latency.max_ms)] : [el("td", { colspan: 5 }, `not run: ${c.failure}`), "", "", "", ""].slice(0, 1)),
        c.ratio ? `${c.ratio.median.toFixed(3)} (${c.ratio.low.toFixed(2)}\u2013${c.ratio.high.toFixed(2)})` : "", c.ratio ? c.ratio.verdict : "", ms(c.start_ms), amount(c.own_bytes, "B"), amount(c.arena_bytes, "B"), c.regions === null ? "" : count(c.regions)]))),
      bench.profile && el("div", { class: "panel" }, el("h3", { style: { "margin-bottom": "0.5rem" } }, `Where the time of a profiled run goes: ${ms(bench.profile.run_ms)}, of which ${ms(bench.profile.outside_ms)} outside of regions`),
        el("p", { class: "muted small", style: { "margin-bottom": "0.6rem" } }, MEASURED),
        long("", ["region", ">time", ">share", "operators"], bench.profile.regions, (r) => [profiled(r), ms(r.ms), `${(r.share * 100).toFixed(1)} %`,
          el("div", { class: "small muted times" }, r.operators.filter((o) => o.ms > 0).slice(0, 4).map((o) => `${o.operator.split(" ").slice(0, 2).join(" ")} ${ms(o.ms)}`).join(" \u00b7 "))], 10)),
      bench.notes.map((n) => el("p", { class: "note small" }, n))));
  }

  // -- rules, regions, refusals ----------------------------------------------------------------------------------

  const find = (text) => el("button", { type: "button", class: "link", onclick: () => {
    $("search").value = text;
    $("graph").scrollIntoView({ block: "start" });
    search(text);
    $("search").focus({ preventScroll: true });
  } }, text);
  function place(c) {
    if (c.operator < 0) return "the model";
    const node = models.before.nodes.findIndex((n) => n.s === c.subgraph && n.n === c.operator);
    const name = `${c.kind} #${c.operator}`;
    return [node >= 0 ? jump("before", node, name) : name, " ", el("code", { class: "muted" }, c.tensor)];
  }
  function rules() {
    if (data.command === "diff") { $("rules").hidden = true; return; }
    if (!doc.applied.length) {
      section("rules", "Rules that were applied", "", el("p", { class: "note calm" }, "No rule applies to this model."));
      return;
    }
    const numericsOf = Object.fromEntries(doc.applied.map((c) => [c.rule, c.numerics]));
    const rows = Object.entries(doc.applied_counts).sort((a, b) => b[1] - a[1]);
    section("rules", "Rules that were applied", "Each rule with how often it was used and how exact it is; its name finds the operators in the graph.", el("div", { class: "stack" },
      el("div", { class: "panel" }, table("", ["rule", ">times", "numerics"], rows.map(([name, n]) => [find(name), count(n), numericsOf[name]]))),
      el("details", {}, el("summary", {}, `All ${plural(doc.applied.length, "application")}`), el("div", { class: "panel" }, long("", ["rule", "where", "what was done"], doc.applied, (c) => [c.rule, place(c), el("td", { class: "reason" }, c.detail)], 50)))));
  }
  function regions() {
    const side = data.after.regions.length ? "after" : data.before.regions.length ? "before" : null;
    if (!side) { $("regions").hidden = true; return; }
    const list = data[side].regions.map((r, n) => ({ ...r, number: n })).sort((a, b) => (b.cost ? b.cost.stock_us - b.cost.fused_us : 0) - (a.cost ? a.cost.stock_us - a.cost.fused_us : 0));
    const measured = list.some((r) => r.ms !== null);
    const cost = (r, key, show) => (r.cost ? show(r.cost[key]) : "");
    const bytes = (n) => amount(n, "B");
    section("regions", "Regions", `Operators that the delegate runs as one kernel, those that save most first. Times are by the cost model of ${data.target}${measured ? "; the last column is measured, of one run of the region by the delegate, on average" : ""}.`, el("div", { class: "panel" },
      long("", ["kind", "begins at", ">operators", ">MACs", ">stays inside", ">stock", ">as one", ">saves", ...(measured ? [">measured"] : [])], list, (r) => {
        const first = models[side].members[r.number].find((n) => models[side].nodes[n].p);
        const at = first === undefined ? "" : jump(side, first, `${brief(models[side].nodes[first].k)} #${models[side].nodes[first].n}`);
        return [el("span", { class: "key", style: { color: "var(--text)" } }, el("i", { style: { background: regionColour(r.kind) } }), r.kind), at, count(models[side].members[r.number].length), cost(r, "macs", amount), cost(r, "bytes_internal", bytes),
          cost(r, "stock_us", time), cost(r, "fused_us", time), r.cost ? time(r.cost.stock_us - r.cost.fused_us) : "", ...(measured ? [r.ms === null ? "" : time(r.ms * 1000)] : [])];
      }, 20)));
  }
  function refusals() {
    if (data.command === "diff") { $("refusals").hidden = true; return; }
    const groups = [...doc.refused_counts.map((g) => [g, "rule"]), ...(doc.regions ? doc.regions.refused_counts : []).map((g) => [g, "region"])];
    if (!groups.length) {
      section("refusals", "Refusals", "", el("p", { class: "note calm" }, "Nothing was declined: every candidate was used."));
      return;
    }
    section("refusals", "Refusals", "Where a rule could have applied, or a region could have been formed, and why it was not.", el("div", { class: "stack" },
      el("div", { class: "panel" }, long("", ["declined", "of", ">places", "why", "first at"], groups, ([g, what]) => [find(g.rule), what, count(g.count), el("td", { class: "reason" }, g.reason), el("code", { class: "muted" }, g.example.replace(/ `(.*)`$/s, " $1"))], 15)),
      el("details", {}, el("summary", {}, `All ${plural(data.refused.length, "place")}`), el("div", { class: "panel" }, long("", ["declined", "where", "why"], data.refused, (c) => [c.rule, place(c), el("td", { class: "reason" }, c.reason)], 50)))));
  }
  function notes() {
    const lines = [...doc.notes, ...(doc.interface || []).filter((i) => !doc.notes.some((n) => n.includes(i))).map((i) => `The interfaces differ: ${i}`), ...(doc.problems || []).map((p) => `${p.severity}: ${p.place ? `${p.place}: ` : ""}${p.message}`),
      ...(doc.frozen ? doc.frozen.notes : [])];
    if (doc.not_run) lines.unshift(`The original cannot be run here, so only exact rules were used: ${doc.not_run}`);
    if (!lines.length) { $("notes").hidden = true; return; }
    section("notes", "Notes", "", el("div", {}, lines.slice(0, 200).map((n) => el("p", { class: "note small" }, n))));
  }

  // -- the page --------------------------------------------------------------------------------------------------

  const THEMES = ["auto", "light", "dark"];
  let wanted = "auto";
  const system = matchMedia("(prefers-color-scheme: dark)");
  function setTheme(name, keep = true) {
    if (keep) wanted = name;
    document.documentElement.dataset.theme = name === "auto" ? (system.matches ? "dark" : "light") : name;
    readTheme();
    const label = wanted[0].toUpperCase() + wanted.slice(1);
    $("theme").textContent = label;
    $("theme").setAttribute("aria-label", `Theme: ${wanted === "auto" ? "as the system" : wanted}`);
    if (choices.colour) legend();
    for (const draw of pictures) draw();
    for (const side of SIDES) if (views[side] && views[side].ready) views[side].draw();
  }
  setTheme("auto");
  summary();
  graph();
  operators();
  memory();
  traffic();
  numerics();
  latency();
  rules();
  regions();
  refusals();
  notes();
  const links = [["top", "Summary"], ...["graph", "operators", "memory", "energy", "numerics", "latency", "rules", "regions", "refusals", "notes"].filter((id) => !$(id).hidden)
    .map((id) => [id, { graph: "Graph", operators: "Operators", memory: "Memory", energy: "Energy", numerics: "Numerics", latency: "Latency", rules: "Rules", regions: "Regions", refusals: "Refusals", notes: "Notes" }[id]])];
  $("nav").append(...links.map(([id, text]) => el("li", {}, el("a", { href: `#${id}` }, text))));
  const seen = new IntersectionObserver((entries) => {
    for (const e of entries) if (e.isIntersecting) for (const a of $("nav").querySelectorAll("a")) {
      if (a.getAttribute("href") === `#${e.target.id}`) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  for (const [id] of links) seen.observe($(id));
  $("footer").textContent = `Made by litefuse ${data.litefuse}. Nothing on this page is loaded from elsewhere.`;
  $("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(wanted) + 1) % THEMES.length]));
  $("print").addEventListener("click", () => window.print());
  system.addEventListener("change", () => wanted === "auto" && setTheme("auto"));
  // Paper is white, and shows the whole graph.
  const before = {};
  addEventListener("beforeprint", () => {
    printing = true;
    for (const side of Object.keys(views)) {
      before[side] = [views[side].x, views[side].y, views[side].scale];
      views[side].paper();
    }
    setTheme("light", false);
  });
  addEventListener("afterprint", () => {
    printing = false;
    for (const side of Object.keys(views)) {
      [views[side].x, views[side].y, views[side].scale] = before[side];
      views[side].resize();
    }
    setTheme(wanted);
  });
})();
