"use strict";
// The slice viewer: one case at a time, every panel at the same slice.

const ERROR = [230, 0, 122];

async function pixelsOf(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const all = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const values = new Uint8Array(all.length / 4);
  for (let i = 0; i < values.length; i++) values[i] = all[4 * i]; // grey: red, green and blue are the same
  return values;
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

class Viewer {
  constructor(element, data) {
    this.element = element;
    this.data = data;
    this.colours = data.classes.map((each) => (each.colour ? rgb(each.colour) : null));
    this.find = (name) => element.querySelector(`[name="${name}"]`);
    this.slider = this.find("slice");
    this.output = element.querySelector("output");
    this.board = element.querySelector(".panels");
    this.scratch = document.createElement("canvas");
    this.loaded = new Map();
    this.panels = this.makePanels();
    this.showScale();
    this.arrange();
    this.listen();
    this.choose(0);
  }

  makePanels() {
    const panels = [];
    const add = (title, kinds, k) => {
      const box = document.createElement("div");
      box.className = "panel";
      const head = document.createElement("h3");
      head.textContent = title;
      box.append(head);
      for (const kind of kinds) {
        const canvas = document.createElement("canvas");
        canvas.setAttribute("role", "img");
        canvas.dataset.kind = kind;
        panels.push({ canvas, kind, k, title });
        box.append(canvas);
      }
      const facts = document.createElement("p");
      facts.className = "facts";
      const here = document.createElement("p");
      here.className = "here";
      box.append(facts, here);
      Object.assign(panels[panels.length - 1], { facts, here });
      this.board.append(box);
    };
    add("Image, reference", ["image", "reference"], -1);
    this.data.methods.forEach((method, k) => add(method.label, ["prediction", "confidence"], k));
    return panels;
  }

  // The colours of confidence in the legend.
  showScale() {
    const colours = [];
    for (let i = 0; i < 256; i += 15) colours.push(`rgb(${this.data.map.slice(3 * i, 3 * i + 3)})`);
    this.element.querySelector(".scale i").style.background = `linear-gradient(90deg, ${colours})`;
  }

  listen() {
    this.find("case").addEventListener("change", (event) => this.choose(Number(event.target.value)));
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    for (const name of ["overlay", "outline", "channel", "calibrated"]) this.find(name)?.addEventListener("change", () => this.draw());
    this.board.addEventListener("keydown", (event) => this.onKey(event));
    this.board.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.board.addEventListener("pointermove", (event) => this.point(event));
    this.board.addEventListener("pointerleave", () => this.point(null));
    this.find("zoom").addEventListener("input", () => {
      this.board.style.setProperty("--zoom", this.zoom);
      this.board.style.setProperty("--most", this.zoom > 1 ? "100%" : "46%");
      this.arrange();
      this.draw();
    });
    new ResizeObserver(() => { this.arrange(); this.draw(); }).observe(this.board);
  }

  get zoom() {
    return Number(this.find("zoom").value);
  }

  // The confidence that is shown: before or after calibration.
  get sure() {
    return this.find("calibrated")?.value === "after" ? this.now.calibrated : this.now.confidences;
  }

  // As many panels per row as fit, with the same number in each row.
  arrange() {
    const count = this.data.methods.length + 1;
    const least = 9.2 * this.zoom * parseFloat(getComputedStyle(root).fontSize);
    const fit = Math.max(1, Math.floor(this.board.clientWidth / least));
    this.board.style.setProperty("--n", Math.ceil(count / Math.ceil(count / fit)));
  }

  onKey(event) {
    const last = this.shape[0] - 1;
    const to = {
      ArrowUp: this.z + 1, ArrowRight: this.z + 1, ArrowDown: this.z - 1, ArrowLeft: this.z - 1,
      PageUp: this.z + 5, PageDown: this.z - 5, Home: 0, End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.show(to);
  }

  onWheel(event) {
    // Only when the panels have the focus, and not at the ends: otherwise the page scrolls.
    if (!this.board.matches(":focus") || !event.deltaY) return;
    const to = this.z + Math.sign(event.deltaY);
    if (to < 0 || to >= this.shape[0]) return;
    event.preventDefault();
    this.show(to);
  }

  async choose(index) {
    const chosen = this.data.cases[index];
    this.asked = index;
    if (!this.loaded.has(index)) {
      const many = (list) => Promise.all(list.map(pixelsOf));
      const after = chosen.calibrated ?? chosen.confidences;
      const [images, [reference], predictions, confidences, calibrated] = await Promise.all(
        [chosen.images, chosen.reference, chosen.predictions, chosen.confidences, after].map(many));
      this.loaded.set(index, { images, reference, predictions, confidences, calibrated });
    }
    if (this.asked !== index) return; // another case was chosen in the meantime
    this.case = chosen;
    this.pixels = this.loaded.get(index);
    this.shape = chosen.shape;
    this.slider.max = this.shape[0] - 1;
    this.slider.disabled = this.shape[0] < 2;
    const channel = this.find("channel");
    if (channel) {
      channel.closest("label").hidden = chosen.images.length < 2;
      if (Number(channel.value) >= chosen.images.length) channel.value = "0";
    }
    this.describe();
    this.show(this.fullest());
    this.element.dataset.case = chosen.id;
  }

  describe() {
    const [, height, width] = this.shape;
    const [down, across] = this.case.pixel;
    for (const panel of this.panels) {
      panel.canvas.style.aspectRatio = `${width * across} / ${height * down}`;
      if (!panel.facts) continue;
      panel.facts.textContent = this.case.scores[panel.k] ?? this.case.why;
    }
  }

  // The slice with the most reference foreground is shown first.
  fullest() {
    let best = 0, most = -1;
    for (let z = 0; z < this.shape[0]; z++) {
      const count = this.slice(this.pixels.reference, z).reduce((n, v) => n + (v > 0 && v < 255), 0);
      if (count > most) [best, most] = [z, count];
    }
    return best;
  }

  slice(sheet, z) {
    const [, height, width] = this.shape;
    const columns = this.case.columns;
    const [flipRows, flipColumns] = this.data.edges.flip;
    const top = Math.floor(z / columns) * height, left = (z % columns) * width;
    const out = new Uint8Array(height * width);
    for (let r = 0; r < height; r++) {
      const from = (top + (flipRows ? height - 1 - r : r)) * columns * width + left;
      for (let c = 0; c < width; c++) out[r * width + c] = sheet[from + (flipColumns ? width - 1 - c : c)];
    }
    return out;
  }

  show(z) {
    this.z = Math.max(0, Math.min(this.shape[0] - 1, z));
    this.slider.value = this.z;
    const number = this.case.first + this.z * this.case.step + 1;
    this.output.textContent = `slice ${number} of ${this.case.slices}`;
    this.slider.setAttribute("aria-valuetext", this.output.textContent);
    const { images, reference, predictions, confidences, calibrated } = this.pixels;
    const channel = Number(this.find("channel")?.value || 0);
    const at = (sheet) => this.slice(sheet, this.z);
    this.now = { image: images.map(at), reference: at(reference), predictions: predictions.map(at), confidences: confidences.map(at), calibrated: calibrated.map(at) };
    this.now.grey = this.now.image[Math.min(channel, images.length - 1)];
    this.draw();
  }

  draw() {
    if (!this.now) return;
    const channel = Number(this.find("channel")?.value || 0);
    this.now.grey = this.now.image[Math.min(channel, this.now.image.length - 1)];
    for (const panel of this.panels) this.drawPanel(panel);
  }

  drawPanel({ canvas, kind, k, title }) {
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
    const context = canvas.getContext("2d");
    const { grey, reference } = this.now;
    const mode = this.find("overlay").value;
    const outline = this.find("outline").checked;
    if (kind === "confidence") {
      const map = this.data.map;
      const values = this.sure[k];
      this.paint(context, (i) => [map[3 * values[i]], map[3 * values[i] + 1], map[3 * values[i] + 2], 255], false);
    } else {
      this.paint(context, (i) => [grey[i], grey[i], grey[i], 255], true);
    }
    const labels = kind === "prediction" ? this.now.predictions[k] : kind === "reference" ? reference : null;
    if (kind === "prediction" && mode === "errors") {
      this.paint(context, (i) => [...ERROR, reference[i] !== 255 && labels[i] !== reference[i] ? 190 : 0], false);
    } else if (labels && mode !== "none") {
      this.paint(context, (i) => [...(this.colours[labels[i]] || [128, 128, 128]), labels[i] ? 120 : 0], false);
      this.trace(context, labels, (label) => this.data.classes[label]?.colour || "#808080", scale);
    }
    if (outline && (kind === "prediction" || kind === "confidence")) {
      this.trace(context, reference, () => "#00000090", 2 * scale);
      this.trace(context, reference, () => "#ffffff", 0.8 * scale);
    }
    if (this.spot && kind !== "image") this.cross(context, scale);
    if (kind === "image") this.letters(context, scale);
    canvas.dataset.slice = this.z;
    canvas.setAttribute("aria-label", `${title}, ${kind}, ${this.output.textContent}`);
  }

  paint(context, colour, smooth) {
    const [, height, width] = this.shape;
    const picture = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) picture.data.set(colour(i), 4 * i);
    this.scratch.width = width;
    this.scratch.height = height;
    this.scratch.getContext("2d").putImageData(picture, 0, 0);
    context.imageSmoothingEnabled = smooth;
    context.imageSmoothingQuality = "high";
    context.drawImage(this.scratch, 0, 0, context.canvas.width, context.canvas.height);
  }

  // Lines between voxels of different labels, in the colour of the greater one.
  trace(context, labels, colour, thickness) {
    const [, height, width] = this.shape;
    const x = context.canvas.width / width, y = context.canvas.height / height;
    const paths = new Map();
    const line = (a, b, ...ends) => {
      const label = Math.max(a === 255 ? 0 : a, b === 255 ? 0 : b);
      if (a === b || !label) return;
      if (!paths.has(label)) paths.set(label, new Path2D());
      const path = paths.get(label);
      path.moveTo(ends[0] * x, ends[1] * y);
      path.lineTo(ends[2] * x, ends[3] * y);
    };
    for (let r = 0; r < height; r++) {
      for (let c = 0; c < width; c++) {
        const here = labels[r * width + c];
        if (c + 1 < width) line(here, labels[r * width + c + 1], c + 1, r, c + 1, r + 1);
        if (r + 1 < height) line(here, labels[(r + 1) * width + c], c, r + 1, c + 1, r + 1);
      }
    }
    context.lineWidth = thickness;
    context.lineCap = "round";
    for (const [label, path] of paths) {
      context.strokeStyle = colour(label);
      context.stroke(path);
    }
  }

  letters(context, scale) {
    const { top, left, bottom, right } = this.data.edges;
    if (!top) return;
    const { width, height } = context.canvas;
    context.font = `600 ${11 * scale}px sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3 * scale;
    const room = 9 * scale;
    for (const [text, x, y] of [[top, width / 2, room], [bottom, width / 2, height - room], [left, room, height / 2], [right, width - room, height / 2]]) {
      context.strokeStyle = "#000000b0";
      context.strokeText(text, x, y);
      context.fillStyle = "#ffffff";
      context.fillText(text, x, y);
    }
  }

  cross(context, scale) {
    const [, height, width] = this.shape;
    const x = (this.spot.c + 0.5) * context.canvas.width / width, y = (this.spot.r + 0.5) * context.canvas.height / height;
    for (const [colour, thickness] of [["#000000b0", 3], ["#ffffff", 1]]) {
      context.strokeStyle = colour;
      context.lineWidth = thickness * scale;
      context.beginPath();
      context.arc(x, y, 5 * scale, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  // The voxel under the pointer, marked in every panel, with its class and confidence by each method.
  point(event) {
    const canvas = event?.target.closest?.("canvas");
    const [, height, width] = this.shape || [];
    if (!this.now || (!canvas && !this.spot)) return;
    this.spot = null;
    if (canvas) {
      const box = canvas.getBoundingClientRect();
      const c = Math.floor((event.clientX - box.left) / box.width * width);
      const r = Math.floor((event.clientY - box.top) / box.height * height);
      if (c >= 0 && r >= 0 && c < width && r < height) this.spot = { r, c };
    }
    const name = (label) => this.data.classes[label]?.name ?? "ignored";
    const i = this.spot ? this.spot.r * width + this.spot.c : -1;
    for (const { here, k } of this.panels) {
      if (!here) continue;
      if (i < 0) { here.textContent = ""; continue; }
      if (k < 0) { here.textContent = `reference: ${name(this.now.reference[i])}`; continue; }
      const confidence = this.data.lowest + (1 - this.data.lowest) * this.sure[k][i] / 255;
      const after = this.find("calibrated")?.value === "after" && this.data.methods[k].calibrator;
      const kind = after ? `confidence after ${after}` : "confidence";
      here.textContent = `${name(this.now.predictions[k][i])}, ${kind} ${confidence.toFixed(2)}`;
    }
    this.draw();
  }
}

for (const element of document.querySelectorAll(".viewer")) {
  const data = JSON.parse(document.getElementById(element.dataset.from).textContent);
  element.hidden = false;
  element.viewer = new Viewer(element, data);
}
