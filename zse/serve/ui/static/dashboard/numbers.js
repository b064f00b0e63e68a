// Numbers as people read them.
const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const whole = (value) => COUNT.format(value);
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
export const milliseconds = (value) => value === null ? "–" : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let step = 0;
  while (count >= 1000 && step < units.length - 1) { count /= 1000; step += 1; }
  return `${count.toFixed(count < 10 && step ? 1 : 0)} ${units[step]}`;
}

export function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}
