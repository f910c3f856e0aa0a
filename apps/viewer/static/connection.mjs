// Cameras go up, pictures come down: over one WebSocket, or over fetch where a proxy lets no WebSocket through.

const HEADER_BYTES = 16;
const [FIRST_WAIT, LONGEST_WAIT] = [300, 5000];
const POLL_MS = 1500;
const TRIES_BEFORE_FETCH = 2;
const [BAD_TOKEN, WRONG_ORIGIN, TOO_MANY] = [4401, 4403, 4429];
/** Reasons to close that another way to connect would not change. */
const STATES = { [WRONG_ORIGIN]: "refused", [TOO_MANY]: "full" };

export class Connection {
  /**
   * `token()` gets a fresh one-time token, or nothing while the server is away. `events` has
   * state("connecting" | "live" | "lost" | "full" | "refused"), text(message) and frame({seq, full, width, height, ms, blob, done}).
   */
  constructor(base, token, events) {
    Object.assign(this, { base, token, events, key: "", socket: null, pending: null, busy: false });
    this.wait = FIRST_WAIT;
    this.refused = 0;
  }

  async connect() {
    if (this.opening) return;
    this.opening = true;
    const answer = await Promise.resolve(this.token()).catch(() => undefined);
    this.opening = false;
    if (!answer?.token) return this._retry();
    if (this.refused >= TRIES_BEFORE_FETCH) return this._connectByFetch(answer.token);
    const url = new URL(`ws?token=${encodeURIComponent(answer.token)}`, this.base);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    let greeted = false;
    socket.onmessage = ({ data }) => {
      if (!greeted) [greeted, this.refused, this.wait] = [true, 0, FIRST_WAIT];
      if (typeof data === "string") this._text(JSON.parse(data));
      else this._frame(data);
    };
    socket.onclose = ({ code }) => {
      if (this.socket === socket) this.socket = null;
      if (!greeted && code !== BAD_TOKEN && !STATES[code]) this.refused += 1;
      if (STATES[code]) this.wait = LONGEST_WAIT;
      this._retry(STATES[code]);
    };
    this.socket = socket;
  }

  /** Send a camera; over fetch, the newest one that waits takes the place of older ones. */
  send(camera) {
    if (this.byFetch) {
      this.pending = camera;
      this._fetchFrames();
    } else this._up(camera);
  }

  hidden(hidden) {
    if (!this.byFetch) this._up({ t: "hidden", hidden });
  }

  /** A picture outside of the live stream: a lossless one by default. */
  async picture(camera, options = { format: "png" }) {
    const body = JSON.stringify({ t: "cam", seq: 0, moving: false, ...camera, ...options });
    const answer = await fetch(this.url("render"), { method: "POST", body });
    return checked(answer);
  }

  /** A photo as the model would be given it. */
  async photo(index, size) {
    return checked(await fetch(this.url(`photo/${index}`, size)));
  }

  url(path, query = {}) {
    const url = new URL(path, this.base);
    for (const [name, value] of Object.entries({ key: this.key, ...query })) url.searchParams.set(name, value);
    return url.href;
  }

  _up(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  _text(message) {
    if (message.t === "hello") {
      this.key = message.key;
      this.events.state("live");
      if (document.hidden) this.hidden(true);
    }
    this.events.text(message);
  }

  _frame(data) {
    const view = new DataView(data);
    const [flags, seq] = [view.getUint8(1), view.getUint32(4, true)];
    this.events.frame({
      seq,
      full: (flags & 1) === 1,
      ms: view.getFloat32(12, true),
      blob: new Blob([new Uint8Array(data, HEADER_BYTES)], { type: flags & 2 ? "image/png" : "image/jpeg" }),
      done: () => this._up({ t: "ack", seq }),
    });
  }

  _retry(state = "lost") {
    this.events.state(state);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(LONGEST_WAIT, this.wait * 1.7);
  }

  async _connectByFetch(token) {
    try {
      const hello = await this._hello(token);
      this.byFetch = true;
      this.wait = FIRST_WAIT;
      this._text(hello);
      this._poll(hello);
    } catch {
      this.refused = 0;
      this._retry();
    }
  }

  async _hello(token) {
    const answer = await fetch(new URL("hello", this.base), { method: "POST", body: JSON.stringify({ token }) });
    if (!answer.ok) throw new Error(answer.status);
    return answer.json();
  }

  /** Nobody tells a page without a WebSocket of a new scene: ask, which also tells the server that the page is there. */
  _poll(known) {
    setTimeout(async () => {
      if (!this.byFetch) return;
      try {
        const hello = await this._hello((await this.token()).token);
        this.key = hello.key;
        if (hello.server !== known.server) this._text(hello);
        else if (hello.scene?.id !== known.scene?.id) this._news(hello);
        this._poll(hello);
      } catch {
        this._lose();
      }
    }, POLL_MS);
  }

  /** Another scene, one that had to go, or none any more for another reason: then the page opens it again. */
  _news({ scene, lost, ...hello }) {
    if (scene || lost) this._text({ t: "scene", scene, why: scene ? "opened" : "evicted", ...lost });
    else this._text({ ...hello, scene });
  }

  _lose() {
    Object.assign(this, { byFetch: false, refused: 0, pending: null });
    this._retry();
  }

  async _fetchFrames() {
    if (this.busy) return;
    this.busy = true;
    while (this.pending) {
      const camera = this.pending;
      this.pending = null;
      try {
        const answer = await this.picture(camera, {});
        const told = (name) => answer.headers.get(`X-${name}`);
        const [full, remarks] = [told("Full") === "1", JSON.parse(told("Remarks") ?? "null")];
        if (remarks) this.events.text({ t: "info", seq: camera.seq, ...remarks });
        this.events.frame({ seq: camera.seq, full, ms: Number(told("Render-Ms")), blob: await answer.blob(), done() {} });
      } catch (error) {
        if (error instanceof TypeError) this._lose();
        else this.events.text({ t: "error", seq: camera.seq, message: error.message });
      }
    }
    this.busy = false;
  }
}

/** The answer, if it is not a refusal; else an error with what the server says. */
async function checked(answer) {
  if (answer.ok) return answer;
  throw new Error((await answer.json().catch(() => ({}))).message ?? "The server did not answer.");
}
