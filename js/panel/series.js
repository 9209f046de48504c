// @ts-check
/**
 * The curve's numbers: bounded memory for a run of any length, and smoothing.
 *
 * A long run is kept as buckets of `stride` neighbouring steps. A bucket keeps the mean, so that
 * smoothing stays unbiased, and the lowest and highest loss, so that no spike disappears.
 *
 * @typedef {object} Bucket
 * @property {number} step latest step in the bucket
 * @property {number} loss mean loss
 * @property {number} low lowest loss
 * @property {number} high highest loss
 * @property {number | null} rate learning rate at the latest step
 * @property {number} count how many points it holds
 *
 * @typedef {object} Series
 * @property {number} stride steps for each bucket, a power of two
 * @property {Bucket[]} buckets by rising step
 */

/** A series has at most twice this many buckets. */
export const BUCKETS = 2000;

/**
 * The bucket width for a run of so many steps: 1 up to BUCKETS steps, then 2, 4, ...
 * Chosen at the start from the planned steps, so that the curve does not change its look midway.
 *
 * @param {number} steps
 * @returns {number}
 */
export function strideFor(steps) {
  let stride = 1;
  while (steps / stride > BUCKETS) stride *= 2;
  return stride;
}

/**
 * @param {number} steps planned steps, 0 when unknown
 * @returns {Series}
 */
export function emptySeries(steps) {
  return { stride: strideFor(steps), buckets: [] };
}

/**
 * A new series with points added. Points that are not later than the last one are known already
 * (a snapshot and a progress event may overlap) and points without a finite loss are left out.
 *
 * @param {Series} series
 * @param {unknown} points [step, loss, learning rate] triples, by rising step
 * @returns {Series}
 */
export function append(series, points) {
  if (!Array.isArray(points)) return series;
  const added = [];
  let last = lastStep(series);
  for (const point of points) {
    const bucket = toBucket(point);
    if (!bucket || bucket.step <= last) continue;
    last = bucket.step;
    added.push(bucket);
  }
  return added.length ? join(series, added) : series;
}

/**
 * A series followed by what another one of the same run knows beyond its end.
 *
 * @param {Series} series
 * @param {Series} newer
 * @returns {Series}
 */
export function extend(series, newer) {
  const last = lastStep(series);
  const beyond = newer.buckets.filter((bucket) => bucket.step > last);
  return beyond.length ? join(series, beyond) : series;
}

/**
 * @param {Series} series
 * @returns {number} the last step, or -1
 */
export function lastStep(series) {
  return series.buckets.at(-1)?.step ?? -1;
}

/**
 * Exponential moving average with the start's bias taken out, as TensorBoard draws it:
 * m_i = w m_{i-1} + (1 - w) x_i from m_0 = 0, shown as m_i / (1 - w^i).
 *
 * @param {readonly number[]} values
 * @param {number} weight 0 (no smoothing) up to, but not including, 1
 * @returns {number[]}
 */
export function smooth(values, weight) {
  let mean = 0;
  let missing = 1;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    missing *= weight;
    return mean / (1 - missing);
  });
}

/**
 * The index of the bucket whose step is nearest.
 *
 * @param {readonly Bucket[]} buckets by rising step
 * @param {number} step
 * @returns {number} -1 when there is none
 */
export function nearest(buckets, step) {
  let low = 0;
  let high = buckets.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (buckets[middle].step < step) low = middle + 1;
    else high = middle;
  }
  const before = low - 1;
  if (before >= 0 && step - buckets[before].step <= buckets[low].step - step) return before;
  return high < 0 ? -1 : low;
}

/**
 * @param {Series} series
 * @param {readonly Bucket[]} added
 * @returns {Series}
 */
function join(series, added) {
  let stride = series.stride;
  let buckets = merge(series.buckets, added, stride);
  while (buckets.length > 2 * BUCKETS) {
    stride *= 2;
    buckets = merge([], buckets, stride);
  }
  return { stride, buckets };
}

/**
 * @param {readonly Bucket[]} known
 * @param {readonly Bucket[]} added
 * @param {number} stride
 * @returns {Bucket[]}
 */
function merge(known, added, stride) {
  const merged = known.slice();
  for (const bucket of added) {
    const last = merged.at(-1);
    if (last && Math.floor(last.step / stride) === Math.floor(bucket.step / stride)) {
      merged[merged.length - 1] = union(last, bucket);
    } else {
      merged.push(bucket);
    }
  }
  return merged;
}

/**
 * @param {Bucket} first
 * @param {Bucket} second the later one
 * @returns {Bucket}
 */
function union(first, second) {
  const count = first.count + second.count;
  return {
    step: second.step,
    loss: (first.loss * first.count + second.loss * second.count) / count,
    low: Math.min(first.low, second.low),
    high: Math.max(first.high, second.high),
    rate: second.rate ?? first.rate,
    count,
  };
}

/**
 * @param {unknown} point
 * @returns {Bucket | null}
 */
function toBucket(point) {
  if (!Array.isArray(point)) return null;
  const [step, loss, rate] = point;
  if (!Number.isFinite(step) || !Number.isFinite(loss)) return null;
  return {
    step,
    loss,
    low: loss,
    high: loss,
    rate: Number.isFinite(rate) ? rate : null,
    count: 1,
  };
}
