// The camera that a person moves: it turns about a target, with an up direction of its own.

import {
  add, axis, basis, between, clamp, cross, degrees, dot, pose, position, radians, scale, sub, unit,
} from "./math.mjs";

const MAX_PITCH = radians(89);
const FOV_RANGE = [5, 120];

export class Camera {
  constructor() {
    this.up = [0, 0, 1];
    this.reach = 1;
    /** Across the width, in degrees. */
    this.fov = 40;
    this.target = [0, 0, 0];
    this.distance = 2.7;
    this.yaw = 0;
    this.pitch = 0;
    this.roll = 0;
    /** The photo whose own camera is shown, until the person moves. */
    this.photo = null;
    this._exact = null;
    this._lens = null;
    this._flight = null;
  }

  /** 16 numbers, camera-to-world. */
  get c2w() {
    if (this._exact) return this._exact;
    const forward = this._forward();
    const level = unit(cross(forward, this.up));
    const down = cross(forward, level);
    const [c, s] = [Math.cos(this.roll), Math.sin(this.roll)];
    const right = add(scale(level, c), scale(down, s));
    return pose(right, cross(forward, right), forward, sub(this.target, scale(forward, this.distance)));
  }

  /** What the picture of this aspect (width / height) is seen through: fx / w, fy / h, cx / w, cy / h. */
  lens(aspect) {
    return this._lens ?? lensOf(this.fov, aspect);
  }

  /** Take over a pose as it is, with the roll; the target is the point of its axis nearest to `centre`. */
  set(c2w, { fov = this.fov, lens = null, photo = null, centre = [0, 0, 0] } = {}) {
    this._flight = null;
    const [place, forward] = [position(c2w), unit(axis(c2w, 2))];
    const along = dot(sub(centre, place), forward);
    this.distance = along > 0.049 * this.reach ? along : this.reach;
    this.target = add(place, scale(forward, this.distance));
    const [first, second] = basis(this.up);
    this.pitch = clamp(Math.asin(clamp(dot(forward, this.up), -1, 1)), -MAX_PITCH, MAX_PITCH);
    this.yaw = Math.atan2(dot(forward, second), dot(forward, first));
    const level = unit(cross(this._forward(), this.up));
    const down = cross(this._forward(), level);
    this.roll = Math.atan2(dot(axis(c2w, 0), down), dot(axis(c2w, 0), level));
    this.fov = lens ? fovOf(lens) : clamp(fov, ...FOV_RANGE);
    this.photo = photo;
    this._lens = lens;
    this._exact = [...c2w];
  }

  /** Begin to fly to a pose; `advance` takes the steps. A duration of 0 seconds goes there at once. */
  flyTo(c2w, options, seconds) {
    if (seconds <= 0) return this.set(c2w, options);
    this._flight = { from: this.c2w, fov: this.fov, to: c2w, options, seconds, done: 0 };
    this.photo = null;
  }

  get flying() {
    return this._flight !== null;
  }

  /** The photo that is flown to. */
  get goal() {
    return this._flight?.options.photo ?? null;
  }

  /** Go on with a flight; true while there is one. */
  advance(seconds) {
    const flight = this._flight;
    if (!flight) return false;
    flight.done += seconds;
    const t = flight.done / flight.seconds;
    if (t >= 1) {
      this.set(flight.to, flight.options);
      return false;
    }
    const eased = t * t * (3 - 2 * t);
    const { fov = flight.fov, lens = null, centre } = flight.options;
    const goal = lens ? fovOf(lens) : fov;
    this.set(between(flight.from, flight.to, eased), { fov: flight.fov + (goal - flight.fov) * eased, centre });
    this._flight = flight;
    return true;
  }

  /** Turn about the target, in radians. */
  orbit(right, down) {
    this._release();
    this.yaw -= right;
    this.pitch = clamp(this.pitch - down, -MAX_PITCH, MAX_PITCH);
  }

  /** Turn on the spot, in radians. */
  look(right, down) {
    const place = position(this.c2w);
    this._release();
    this.yaw -= right;
    this.pitch = clamp(this.pitch - down, -MAX_PITCH, MAX_PITCH);
    this.target = add(place, scale(this._forward(), this.distance));
  }

  /** Shift sideways and down, in fractions of the picture's width at the target. */
  pan(right, down) {
    const m = this.c2w;
    this._release();
    const width = 2 * this.distance * Math.tan(radians(this.fov) / 2);
    this.target = sub(this.target, add(scale(axis(m, 0), right * width), scale(axis(m, 1), down * width)));
  }

  /** Come nearer (factor below 1) or go away from the target. */
  zoom(factor) {
    this._release();
    this.distance = clamp(this.distance * factor, 0.05 * this.reach, 20 * this.reach);
  }

  /** Fly by [right, down, forward] in units of the scene's size; the target comes along. */
  fly(step) {
    const m = this.c2w;
    this._release();
    const moved = [0, 1, 2].reduce((sum, i) => add(sum, scale(axis(m, i), step[i] * this.reach)), [0, 0, 0]);
    this.target = add(this.target, moved);
  }

  setFov(fov) {
    this._release();
    this.fov = clamp(fov, ...FOV_RANGE);
  }

  /** Make what is seen at (x, y), each -1..1 from the middle to the edge, the new middle and pivot. */
  recentre(x, y, aspect, seconds) {
    const m = this.c2w;
    const half = this.distance * Math.tan(radians(this.fov) / 2);
    const shift = add(scale(axis(m, 0), x * half), scale(axis(m, 1), (y * half) / aspect));
    const goal = [...m];
    [3, 7, 11].forEach((at, i) => (goal[at] += shift[i]));
    this.flyTo(goal, { fov: this.fov, centre: add(this.target, shift) }, seconds);
  }

  /** What is up in the picture now becomes up for all movements; or a given direction. */
  setUp(up = scale(axis(this.c2w, 1), -1)) {
    const [kept, options] = [this.c2w, { fov: this.fov, lens: this._lens, photo: this.photo, centre: this.target }];
    this.up = unit(up);
    this.set(kept, options);
  }

  /** Smoothly level the horizon; called with every movement of the person. */
  level(amount) {
    this.roll = Math.abs(this.roll) < 0.002 ? 0 : this.roll * (1 - amount);
  }

  _release() {
    this._flight = null;
    this._exact = null;
    this._lens = null;
    this.photo = null;
  }

  _forward() {
    const [first, second] = basis(this.up);
    const flat = add(scale(first, Math.cos(this.yaw)), scale(second, Math.sin(this.yaw)));
    return add(scale(flat, Math.cos(this.pitch)), scale(this.up, Math.sin(this.pitch)));
  }
}

/** Horizontal field of view (degrees) as a centred lens with square pixels, in fractions of the picture. */
export function lensOf(fov, aspect) {
  const focal = 0.5 / Math.tan(radians(fov) / 2);
  return [focal, focal * aspect, 0.5, 0.5];
}

export const fovOf = (lens) => degrees(2 * Math.atan(0.5 / lens[0]));
