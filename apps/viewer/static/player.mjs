// Moves the camera along the path in real time.

import { app } from "./app.mjs";

export class Player {
  constructor(onTime) {
    Object.assign(this, { onTime, active: false, t: 0, pose: null });
  }

  start(t) {
    Object.assign(this, { active: true, t, pose: null });
  }

  stop() {
    this.active = false;
  }

  seek(t) {
    this.t = t;
    const one = app.route[Math.min(app.route.length - 1, Math.floor(t * app.route.length))];
    app.camera.set(one.c2w, { fov: one.fov, centre: app.scene.centre });
    this.pose = app.camera.c2w;
    this.onTime(t);
  }

  advance(seconds) {
    if (!this.active) return false;
    // Any movement of the person takes over.
    const taken = this.pose !== null && (app.camera.flying || app.camera.c2w !== this.pose);
    if (taken || app.route.length < 2) {
      this.stop();
    } else {
      const t = this.t + seconds / app.path.seconds;
      this.active = app.path.loop || t < 1;
      this.seek(app.path.loop ? t % 1 : Math.min(1, t));
    }
    if (!this.active) this.onTime(this.t);
    return this.active;
  }
}
