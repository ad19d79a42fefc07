// The picture or video: zoom, move, step. Works with mouse, wheel, fingers and keys.

const MOST = 40;

export class Viewer {
  constructor(stage, tools) {
    this.stage = stage;
    this.tools = tools;
    this.media = null;
    this.pointers = new Map();
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    for (const type of ["pointerdown", "pointermove", "pointerup", "pointercancel"])
      stage.addEventListener(type, (event) => this.pointer(event));
    stage.addEventListener("dblclick", () => this.fit());
    stage.addEventListener("keydown", (event) => this.arrow(event));
    new ResizeObserver(() => this.fit()).observe(stage);
    tools.seek.addEventListener("input", () => this.seek(Number(tools.seek.value)));
  }

  show(media) {
    this.video = media.kind === "video";
    this.step = media.fps ? 1 / media.fps : 0.04;
    const element = document.createElement(this.video ? "video" : "img");
    if (this.video) {
      Object.assign(element, { muted: true, playsInline: true, loop: true, preload: "auto" });
      element.addEventListener("timeupdate", () => this.tell());
      element.addEventListener("seeked", () => this.tell());
      element.addEventListener("loadedmetadata", () => this.loaded());
      element.setAttribute("aria-label", "Video of this item");
    } else {
      element.alt = "Picture of this item";
      element.draggable = false;
      element.addEventListener("load", () => this.loaded());
    }
    element.addEventListener("error", () => this.lost());
    element.src = media.url;
    this.media = element;
    this.stage.replaceChildren(element);
    this.tools.video.hidden = !this.video;
  }

  lost() {
    const lost = document.createElement("p");
    lost.className = "lost";
    lost.textContent = "This picture or video cannot be shown. Reload the page, or tell the one who runs the study.";
    this.stage.replaceChildren(lost);
  }

  loaded() {
    // Of a video whose pictures a browser cannot read it plays the sound alone, which is no error to it.
    if (this.video && !this.media.videoWidth) return this.lost();
    this.width = this.media.naturalWidth || this.media.videoWidth || 1;
    this.height = this.media.naturalHeight || this.media.videoHeight || 1;
    if (this.video) this.tools.seek.max = this.media.duration || 1;
    this.fit();
    this.tell();
  }

  fit() {
    if (!this.media || !this.width) return;
    const { clientWidth, clientHeight } = this.stage;
    this.scale = this.least = Math.min(clientWidth / this.width, clientHeight / this.height);
    this.x = (clientWidth - this.width * this.scale) / 2;
    this.y = (clientHeight - this.height * this.scale) / 2;
    this.draw();
  }

  draw() {
    // At least a part of it stays in sight.
    const { clientWidth, clientHeight } = this.stage;
    const edge = 40;
    this.x = Math.min(clientWidth - edge, Math.max(edge - this.width * this.scale, this.x));
    this.y = Math.min(clientHeight - edge, Math.max(edge - this.height * this.scale, this.y));
    Object.assign(this.media.style, {
      width: `${this.width}px`,
      height: `${this.height}px`,
      transform: `translate(${this.x}px, ${this.y}px) scale(${this.scale})`,
      // From here on single pixels are looked at.
      imageRendering: this.scale >= 3 ? "pixelated" : "auto",
    });
  }

  zoom(factor, x = this.stage.clientWidth / 2, y = this.stage.clientHeight / 2) {
    if (!this.width) return;
    const scale = Math.min(MOST, Math.max(this.least / 2, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.draw();
  }

  move(x, y) {
    this.x += x;
    this.y += y;
    this.draw();
  }

  wheel(event) {
    event.preventDefault();
    const box = this.stage.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
  }

  pointer(event) {
    const known = this.pointers.get(event.pointerId);
    if (event.type === "pointerdown") {
      this.stage.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, event);
    } else if (event.type !== "pointermove") {
      this.pointers.delete(event.pointerId);
    } else if (known && this.width) {
      this.pointers.set(event.pointerId, event);
      const [first, second] = this.pointers.values();
      if (!second) {
        this.move(event.clientX - known.clientX, event.clientY - known.clientY);
        return;
      }
      // Two fingers: their distance zooms around the point between them.
      const other = event === first ? second : first;
      const box = this.stage.getBoundingClientRect();
      const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
      const x = (event.clientX + other.clientX) / 2 - box.left;
      const y = (event.clientY + other.clientY) / 2 - box.top;
      this.zoom(apart(event) / apart(known), x, y);
    }
  }

  arrow(event) {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey || !this.width) return;
    event.preventDefault();
    this.move(...step);
  }

  act(name) {
    const acts = {
      in: () => this.zoom(1.4),
      out: () => this.zoom(1 / 1.4),
      fit: () => this.fit(),
      play: () => (this.media.paused ? this.media.play() : this.media.pause()),
      "frame-back": () => this.frame(-1),
      "frame-on": () => this.frame(1),
      "jump-back": () => this.seek(this.media.currentTime - 1),
      "jump-on": () => this.seek(this.media.currentTime + 1),
    };
    if (!this.video && !["in", "out", "fit"].includes(name)) return;
    acts[name]?.();
  }

  frame(count) {
    this.media.pause();
    // To the middle of a frame, where rounding cannot miss it.
    const now = Math.floor(this.media.currentTime / this.step + 1e-3);
    this.seek((now + count + 0.5) * this.step);
  }

  seek(time) {
    const last = Math.max(0, (this.media.duration || 0) - this.step / 2);
    this.media.currentTime = Math.min(last, Math.max(0, time));
  }

  tell() {
    if (!this.video) return;
    const { currentTime, duration } = this.media;
    this.tools.seek.value = currentTime;
    this.tools.time.value = `${currentTime.toFixed(2)} of ${(duration || 0).toFixed(2)} s`;
  }
}
