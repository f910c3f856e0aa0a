// Vectors are arrays of 3 numbers, poses arrays of 16: camera-to-world, row by row, OpenCV axes (x right, y down,
// z forward).

export const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
export const sub = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
export const scale = (a, s) => [a[0] * s, a[1] * s, a[2] * s];
export const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
export const length = (a) => Math.hypot(a[0], a[1], a[2]);
export const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
export const mix = (a, b, t) => [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t];
export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
export const radians = (degrees) => (degrees * Math.PI) / 180;
export const degrees = (angle) => (angle * 180) / Math.PI;

export function unit(a) {
  const n = length(a);
  return n > 1e-12 ? scale(a, 1 / n) : [0, 0, 1];
}

/** The pose with these axes (right, down, forward) at a position. */
export const pose = (x, y, z, p) => [x[0], y[0], z[0], p[0], x[1], y[1], z[1], p[1], x[2], y[2], z[2], p[2], 0, 0, 0, 1];

export const axis = (m, i) => [m[i], m[4 + i], m[8 + i]];
export const position = (m) => axis(m, 3);

/** Two directions at right angles to `up` and to each other. */
export function basis(up) {
  const helper = Math.abs(up[2]) < 0.9 ? [0, 0, 1] : [1, 0, 0];
  const first = unit(cross(helper, up));
  return [first, cross(up, first)];
}

/** A pose seen from another frame: `similarity` (16 numbers) moves and turns it, and scales its position. */
export function transform(similarity, m) {
  const size = length(axis(similarity, 0));
  const turn = (v) => [0, 1, 2].map((r) => dot(similarity.slice(4 * r, 4 * r + 3), v));
  const axes = [0, 1, 2].map((i) => scale(turn(axis(m, i)), 1 / size));
  return pose(...axes, add(turn(position(m)), position(similarity)));
}

/** The inverse of a similarity. */
export function inverse(similarity) {
  const size = length(axis(similarity, 0));
  const rows = [0, 1, 2].map((i) => scale(axis(similarity, i), 1 / (size * size)));
  const offset = position(similarity);
  const moved = rows.map((row) => -dot(row, offset));
  return [...rows[0], moved[0], ...rows[1], moved[1], ...rows[2], moved[2], 0, 0, 0, 1];
}

/** Unit quaternion (x, y, z, w) of a pose's rotation. */
export function quaternion(m) {
  const [xx, xy, xz, yx, yy, yz, zx, zy, zz] = [m[0], m[1], m[2], m[4], m[5], m[6], m[8], m[9], m[10]];
  // The largest of the four is found first, so that nothing is divided by a small number.
  const candidates = [1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz, 1 + xx + yy + zz];
  const best = candidates.indexOf(Math.max(...candidates));
  const s = 2 * Math.sqrt(candidates[best]);
  if (best === 0) return [s / 4, (xy + yx) / s, (xz + zx) / s, (zy - yz) / s];
  if (best === 1) return [(xy + yx) / s, s / 4, (yz + zy) / s, (xz - zx) / s];
  if (best === 2) return [(xz + zx) / s, (yz + zy) / s, s / 4, (yx - xy) / s];
  return [(zy - yz) / s, (xz - zx) / s, (yx - xy) / s, s / 4];
}

/** The pose between two, `t` in 0..1: straight for the position, the shorter turn for the rotation. */
export function between(a, b, t) {
  const p = quaternion(a);
  let q = quaternion(b);
  let cosine = p.reduce((sum, x, i) => sum + x * q[i], 0);
  if (cosine < 0) {
    q = q.map((x) => -x);
    cosine = -cosine;
  }
  const angle = Math.acos(Math.min(1, cosine));
  const [from, to] =
    angle < 1e-5 ? [1 - t, t] : [Math.sin((1 - t) * angle) / Math.sin(angle), Math.sin(t * angle) / Math.sin(angle)];
  const r = p.map((x, i) => x * from + q[i] * to);
  const n = Math.hypot(...r);
  const [x, y, z, w] = r.map((value) => value / n);
  const rows = [
    [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
    [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
    [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
  ];
  const [right, down, forward] = [0, 1, 2].map((i) => rows.map((row) => row[i]));
  return pose(right, down, forward, mix(position(a), position(b), t));
}

/** Where a point appears in a picture of this width and height, as [x, y, depth]; `lens` as in the protocol. */
export function project(m, lens, width, height, point) {
  const offset = sub(point, position(m));
  const depth = dot(offset, axis(m, 2));
  const near = Math.max(depth, 1e-6);
  return [
    width * (lens[2] + (lens[0] * dot(offset, axis(m, 0))) / near),
    height * (lens[3] + (lens[1] * dot(offset, axis(m, 1))) / near),
    depth,
  ];
}
