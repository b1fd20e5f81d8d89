"use strict";
// Draws the charts, makes the kernel table sort and filter, and offers the embedded JSON. Nothing here builds HTML from a
// string: text goes in as text, so that no name of a trace can become markup.
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  // --- the contract -------------------------------------------------------------------------------------------------
  const store = byId("diagnosis");
  let jsonText = null;
  async function contractText() {
    if (jsonText !== null) return jsonText;
    const text = store.textContent.trim();
    if (store.dataset.encoding === "gzip+base64") {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      jsonText = await new Response(stream).text();
    } else {
      jsonText = text + "\n";
    }
    return jsonText;
  }
  const download = byId("download");
  if (download) download.addEventListener("click", async () => {
    const link = make("a", "", { download: download.dataset.name });
    link.href = URL.createObjectURL(new Blob([await contractText()], { type: "application/json" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  // --- charts -------------------------------------------------------------------------------------------------------
  const narrow = window.matchMedia("(max-width: 560px)").matches;
  const axis = {
    labelColor: "var(--fg)", titleColor: "var(--muted)", gridColor: "var(--grid)", domainColor: "var(--line)",
    tickColor: "var(--line)", titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 11, labelOverlap: "greedy",
  };
  const config = {
    background: null, font: "system-ui, sans-serif", aria: false, axis, axisY: { labelLimit: narrow ? 84 : 150 },
    axisX: { tickCount: narrow ? 4 : 10 }, view: { stroke: null }, autosize: { type: "fit", contains: "padding" },
  };
  async function drawChart(script) {
    const box = byId(script.dataset.for);
    try {
      const spec = JSON.parse(script.textContent);
      await window.vegaEmbed(box, spec, { actions: false, renderer: "svg", ast: true, config });
      box.dataset.drawn = "yes";
    } catch (error) {
      box.replaceChildren(make("p", `This chart could not be drawn (${error.message}); its numbers are in the table below.`,
        { class: "failed" }));
      box.dataset.drawn = "failed";
    }
  }
  async function drawCharts() {
    for (const script of all("script.spec")) {
      await drawChart(script);
      // The page stays responsive between charts; all are drawn soon after opening, so that printing has them.
      await new Promise((resume) => setTimeout(resume, 0));
    }
    document.documentElement.dataset.charts = "drawn";
    document.documentElement.dataset.drawnMs = Math.round(performance.now());
  }

  // --- printing and permalinks --------------------------------------------------------------------------------------
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = all("details:not([open]):not(.long)"); // full names would fill pages; the JSON has them
    for (const details of opened) details.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
  function openTarget() {
    const target = location.hash.length > 1 && byId(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView();
  }
  window.addEventListener("hashchange", openTarget);
  openTarget();

  for (const button of all("button.copy")) button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // --- kernel table -------------------------------------------------------------------------------------------------
  const PAGE = 200;
  const FEW = 8; // rows on a phone until more are asked for; page.css hides the others
  const invisible = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
  const clean = (text) => String(text ?? "").replace(invisible, (c) => {
    const code = c.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
  const shorten = (text, width) => {
    const chars = Array.from(text);
    if (chars.length <= width) return text;
    const head = Math.floor((width - 1) * 3 / 5);
    return `${chars.slice(0, head).join("")}…${chars.slice(chars.length - (width - 1 - head)).join("")}`;
  };
  function sig3(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
    if (value === 0) return "0";
    const rounded = Number(value.toPrecision(3));
    const exponent = Math.floor(Math.log10(Math.abs(rounded)));
    if (Math.abs(rounded) < 1e-4 || Math.abs(rounded) >= 1e15) return rounded.toExponential(2);
    const digits = Math.max(0, 2 - exponent);
    return rounded.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }
  const share = (v) => v >= 99.95 && v < 100 ? "> 99.9" : v > 0 && v < 0.1 ? "< 0.1" : v === 0 || v === 100 ? String(v) : sig3(v);
  const words = (code) => /^[a-z0-9]+(_[a-z0-9]+)*$/.test(code ?? "") ? code.replaceAll("_", " ") : code ?? "";

  async function kernelTable() {
    const table = byId("kernel-table");
    if (!table) return;
    const contract = JSON.parse(await contractText());
    const labels = JSON.parse(byId("kernel-words").textContent);
    const total = contract.kernels.reduce((sum, k) => sum + k.time_ns, 0) || 1;
    const rows = contract.kernels.map((k) => ({
      ...k,
      share: 100 * k.time_ns / total,
      per_call: k.count ? k.time_ns / k.count : null,
      haystack: clean([k.name, k.family, k.op, k.role, k.shape, k.reason, k.dtype].filter(Boolean).join("\n")).toLowerCase(),
    }));
    const state = { key: "time_ns", down: true, text: "", phase: "", bound: "", source: "", shown: PAGE };
    const headers = all("thead th", table);
    const body = table.tBodies[0];
    const picks = { phase: "phase", bound: "bound", source: "cost_source" };

    const text = {
      device: (k) => k.device === null || k.device === undefined ? "unknown" : String(k.device),
      phase: (k) => clean(k.phase || "outside steps"),
      count: (k) => k.count.toLocaleString("en-US"),
      time_ns: (k) => sig3(k.time_ns / 1e6),
      share: (k) => share(k.share),
      per_call: (k) => k.per_call === null ? "unknown" : sig3(k.per_call / 1e3),
      bound: (k) => labels.buckets[k.bound] ?? words(clean(k.bound)),
      cost_source: (k) => clean(words(k.cost_source)) || "none",
    };
    const nameCell = (k) => {
      const cell = make("th", undefined, { scope: "row" });
      const full = clean(k.name);
      const short = shorten(full, 64);
      if (short === full) cell.append(make("code", full));
      else {
        const details = make("details", undefined, { class: "long" });
        const summary = make("summary");
        summary.append(make("code", short));
        details.append(summary, make("code", full, { class: "full" }));
        cell.append(details);
      }
      const sub = [k.op || k.role || words(k.family), k.shape, k.dtype].filter(Boolean).map((v) => shorten(clean(v), 90)).join(" · ");
      if (sub) cell.append(make("div", sub, { class: "sub" }));
      return cell;
    };
    const rowOf = (k) => {
      const row = make("tr");
      for (const header of headers) {
        const key = header.dataset.key;
        if (key === "name") { row.append(nameCell(k)); continue; }
        const cell = make("td", text[key] ? text[key](k) : sig3(k[key]), { "data-label": header.dataset.label });
        if (header.classList.contains("n")) cell.className = "n";
        if (key === "bound") {
          cell.className = "why";
          const reason = [k.reason, ...(k.flags ?? []).map(words)].filter(Boolean).map(clean).join("; ");
          if (reason) cell.append(make("div", reason, { class: "sub" }));
        }
        if (cell.textContent === "unknown") cell.classList.add("unknown");
        row.append(cell);
      }
      return row;
    };
    const compare = (a, b) => {
      const x = a[state.key] ?? null, y = b[state.key] ?? null;
      if (x === null || y === null) return (x === null) - (y === null) || b.time_ns - a.time_ns; // unknown always last
      const order = typeof x === "string" ? x.localeCompare(y) : x - y;
      return (state.down ? -order : order) || b.time_ns - a.time_ns;
    };
    let drawnOnce = false;
    function render() {
      drawnOnce = true;
      body.classList.remove("few");
      const needles = state.text.toLowerCase().split(/\s+/).filter(Boolean);
      const kept = rows.filter((k) => needles.every((n) => k.haystack.includes(n))
        && Object.entries(picks).every(([id, key]) => !state[id] || String(k[key] ?? "") === state[id].slice(1)));
      kept.sort(compare);
      body.replaceChildren(...kept.slice(0, state.shown).map(rowOf));
      for (const header of headers) {
        if (header.dataset.key === state.key) header.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        else header.removeAttribute("aria-sort");
      }
      const time = kept.reduce((sum, k) => sum + k.time_ns, 0);
      byId("kernel-count").textContent = `${Math.min(state.shown, kept.length).toLocaleString("en-US")} of `
        + `${kept.length.toLocaleString("en-US")} rows shown, ${sig3(time / 1e6)} ms in them, ${share(100 * time / total)} % of kernel time.`;
      byId("kernel-more").hidden = kept.length <= state.shown;
      byId("kernel-sort").value = `${state.key} ${state.down ? "down" : "up"}`;
    }
    for (const header of headers) {
      const key = header.dataset.key;
      const button = header.querySelector("button");
      button.disabled = false;
      button.addEventListener("click", () => {
        const numeric = header.classList.contains("n");
        state.down = state.key === key ? !state.down : numeric;
        state.key = key;
        state.shown = PAGE;
        render();
      });
      for (const way of header.classList.contains("n") ? ["down", "up"] : ["up"]) {
        const arrow = header.classList.contains("n") ? (way === "down" ? ", largest first" : ", smallest first") : ", A to Z";
        byId("kernel-sort").append(make("option", button.textContent + arrow, { value: `${key} ${way}` }));
      }
    }
    byId("kernel-sort").addEventListener("change", (event) => {
      const [key, way] = event.target.value.split(" ");
      Object.assign(state, { key, down: way === "down", shown: PAGE });
      render();
    });
    for (const [id, key] of Object.entries(picks)) {
      const select = byId(`kernel-${id}`);
      const values = [...new Set(rows.map((k) => k[key] ?? ""))].sort();
      for (const value of values) {
        select.append(make("option", text[key]({ [key]: value || null, flags: [] }), { value: `=${value}` }));
      }
      select.addEventListener("change", () => { state[id] = select.value; state.shown = PAGE; render(); });
    }
    byId("kernel-text").addEventListener("input", (event) => { state.text = event.target.value; state.shown = PAGE; render(); });
    byId("kernel-more").addEventListener("click", () => {
      if (drawnOnce) state.shown += PAGE;
      render();
    });
    byId("kernel-more").hidden = rows.length <= body.rows.length && body.rows.length <= FEW;
    body.classList.add("few");
    byId("kernel-sort").value = "time_ns down";
    byId("kernel-filter").hidden = false;
    byId("kernel-filter").addEventListener("submit", (event) => event.preventDefault());
    document.documentElement.dataset.kernels = "ready";
  }

  kernelTable().catch((error) => {
    const note = byId("kernel-count");
    if (note) note.append(` Sorting and filtering are off (${error.message}).`);
  });
  drawCharts();
})();
