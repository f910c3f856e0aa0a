// Lines, photos and paths in space, drawn as a camera sees them.

import { add, axis, dot, mix, position, project, scale, sub } from "./math.mjs";

const NEAR = 0.02;

/** Draws with the pose and lens of one camera into a canvas of this size. */
export class Space {
  constructor(context, width, height, c2w, lens) {
    Object.assign(this, { context, width, height, c2w, lens });
  }

  point(place) {
    return project(this.c2w, this.lens, this.width, this.height, place);
  }

  line(a, b) {
    const clipped = this._clip(a, b);
    if (!clipped) return;
    const [[x1, y1], [x2, y2]] = clipped.map((place) => this.point(place));
    this.context.beginPath();
    this.context.moveTo(x1, y1);
    this.context.lineTo(x2, y2);
    this.context.stroke();
  }

  chain(points) {
    for (let i = 1; i < points.length; i++) this.line(points[i - 1], points[i]);
  }

  box([low, high]) {
    const corner = (i) => [i & 1 ? high[0] : low[0], i & 2 ? high[1] : low[1], i & 4 ? high[2] : low[2]];
    for (let i = 0; i < 8; i++) for (const bit of [1, 2, 4]) if (!(i & bit)) this.line(corner(i), corner(i | bit));
  }

  /** A camera as a pyramid of this depth, with a picture on its base if there is one; returns its base on screen. */
  frustum(c2w, lens, depth, picture = null) {
    const tip = position(c2w);
    const base = corners(c2w, lens, depth);
    if (picture) this._picture(picture, base);
    base.forEach((corner, i) => {
      this.line(tip, corner);
      this.line(corner, base[(i + 1) % 4]);
    });
    return base.map((corner) => this.point(corner));
  }

  dot(place, radius) {
    const [x, y, depth] = this.point(place);
    if (depth < NEAR) return;
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fill();
  }

  _picture(picture, base) {
    const points = base.map((corner) => this.point(corner));
    if (points.some((point) => point[2] < NEAR)) return;
    const [w, h] = [picture.width, picture.height];
    // Two triangles: right at the corners, and near enough within for pictures of this size.
    triangle(this.context, picture, [[0, 0], [w, 0], [w, h]], [points[0], points[1], points[2]]);
    triangle(this.context, picture, [[0, 0], [w, h], [0, h]], [points[0], points[2], points[3]]);
  }

  _clip(a, b) {
    const depth = (place) => dot(sub(place, position(this.c2w)), axis(this.c2w, 2));
    const [da, db] = [depth(a), depth(b)];
    if (da < NEAR && db < NEAR) return null;
    const cut = (inside, outside, di, dout) => mix(inside, outside, (di - NEAR) / (di - dout));
    if (da < NEAR) return [cut(b, a, db, da), b];
    if (db < NEAR) return [a, cut(a, b, da, db)];
    return [a, b];
  }
}

/** Corners of what a camera sees at a depth: top left, top right, bottom right, bottom left. */
export function corners(c2w, [fx, fy, cx, cy], depth) {
  const at = (u, v) => {
    const across = add(scale(axis(c2w, 0), (u - cx) / fx), scale(axis(c2w, 1), (v - cy) / fy));
    return add(position(c2w), scale(add(axis(c2w, 2), across), depth));
  };
  return [at(0, 0), at(1, 0), at(1, 1), at(0, 1)];
}

/** The room about the point that the photos look at. */
export function boundsOf({ centre, radius }) {
  const half = 0.37 * radius;
  return [centre.map((x) => x - half), centre.map((x) => x + half)];
}

function triangle(context, picture, [s0, s1, s2], [d0, d1, d2]) {
  const [a, b] = [[s1[0] - s0[0], s1[1] - s0[1]], [s2[0] - s0[0], s2[1] - s0[1]]];
  const area = a[0] * b[1] - a[1] * b[0];
  const solve = (k) => {
    const [p, q] = [d1[k] - d0[k], d2[k] - d0[k]];
    return [(p * b[1] - q * a[1]) / area, (q * a[0] - p * b[0]) / area];
  };
  const [[xx, xy], [yx, yy]] = [solve(0), solve(1)];
  context.save();
  context.beginPath();
  for (const [x, y] of [d0, d1, d2]) context.lineTo(x, y);
  context.closePath();
  context.clip();
  context.transform(xx, yx, xy, yy, d0[0] - xx * s0[0] - xy * s0[1], d0[1] - yx * s0[0] - yy * s0[1]);
  context.drawImage(picture, 0, 0);
  context.restore();
}
