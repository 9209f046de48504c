"""How the page of a report looks: one style sheet, light and dark, wide and narrow."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1e2328; --soft: #5e6770; --line: #e3e0da;
  --error: #b3261e; --warning: #8a5a00; --note: #3a5f8a; --good: #2c6e49; --accent: #2f6f8f;
  --tint-error: #fbeceb; --tint-warning: #fbf3e2; --tint-note: #edf2f8; --tint-good: #eaf4ee;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181b; --card: #1e2125; --ink: #e6e4df; --soft: #9aa3ab; --line: #30353a;
    --error: #ff9a92; --warning: #f0c063; --note: #9dc0ea; --good: #8fd3ab; --accent: #7fc4e4;
    --tint-error: #35201f; --tint-warning: #33291a; --tint-note: #1f2a36; --tint-good: #1c2f25;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body {
  margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 28px 72px; }
h1 { font-size: 28px; line-height: 1.2; font-weight: 650; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 17px; font-weight: 650; margin: 44px 0 14px; }
h3 { font-size: 14px; font-weight: 600; margin: 26px 0 10px; }
h3 small, .soft { color: var(--soft); font-weight: 400; }
p { margin: 0; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
.over { color: var(--soft); font-size: 13px; margin-bottom: 6px; }
.verdict {
  display: inline-block; margin-top: 14px; padding: 7px 14px; border-radius: 8px; font-weight: 550;
}
.verdict.error { background: var(--tint-error); color: var(--error); }
.verdict.warning { background: var(--tint-warning); color: var(--warning); }
.verdict.good { background: var(--tint-good); color: var(--good); }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(138px, 1fr)); gap: 10px;
  margin: 26px 0 0; padding: 0;
}
.tiles div, .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
.tiles div {
  padding: 12px 14px; display: flex; flex-direction: column-reverse; justify-content: flex-end;
}
.tiles dt { color: var(--soft); font-size: 12.5px; line-height: 1.35; }
.tiles dd {
  margin: 0; font-size: 22px; line-height: 1.25; font-weight: 600;
  font-variant-numeric: tabular-nums;
}
.finding { padding: 13px 16px 14px; margin-bottom: 8px; border-left-width: 4px; }
.finding.error { border-left-color: var(--error); }
.finding.warning { border-left-color: var(--warning); }
.finding.note { border-left-color: var(--note); }
.finding b { font-weight: 600; }
.finding i {
  font-style: normal; font-size: 11.5px; font-weight: 600; margin-right: 8px; padding: 2px 7px;
  border-radius: 5px; vertical-align: 1px;
}
.error i { background: var(--tint-error); color: var(--error); }
.warning i { background: var(--tint-warning); color: var(--warning); }
.note i { background: var(--tint-note); color: var(--note); }
.finding p { color: var(--soft); margin-top: 2px; }
.finding ul {
  list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0 0; padding: 0;
  font-size: 13.5px;
}
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; }
th, td { padding: 7px 12px; border-bottom: 1px solid var(--line); }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; white-space: nowrap; }
.card.table { padding: 4px 6px; overflow-x: auto; }
.bar { width: 30%; min-width: 60px; }
.bar span {
  display: block; height: 8px; border-radius: 4px; background: var(--accent); opacity: .75;
}
.words { display: flex; flex-wrap: wrap; gap: 6px; margin: 12px 0 0; padding: 0; list-style: none; }
.words li {
  background: var(--card); border: 1px solid var(--line); border-radius: 999px; padding: 2px 11px;
  font-size: 13.5px;
}
.words small { color: var(--soft); margin-left: 5px; font-variant-numeric: tabular-nums; }
.sheet {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(178px, 1fr)); gap: 18px 14px;
  align-items: start;
}
figure { margin: 0; scroll-margin: 24px; border-radius: 8px; }
figure:target { outline: 3px solid var(--accent); outline-offset: 5px; }
.frame {
  position: relative; overflow: hidden; border-radius: 6px; background: var(--line);
  max-width: 100%; max-height: 240px; margin: 0 auto;
}
.frame img { display: block; width: 100%; height: 100%; }
.crop {
  position: absolute; box-shadow: 0 0 0 999px rgba(10, 12, 14, .62);
  outline: 2px solid #fff; outline-offset: -2px;
}
.none { display: grid; place-items: center; aspect-ratio: 1; color: var(--soft); font-size: 13px; }
.beside { display: flex; gap: 4px; margin-top: 4px; }
.beside img { height: 54px; max-width: 48%; object-fit: contain; border-radius: 4px; }
figcaption { font-size: 12.5px; line-height: 1.4; margin-top: 7px; }
figcaption b { font-weight: 600; display: block; }
figcaption p {
  color: var(--soft); display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3;
  overflow: hidden; margin-top: 2px;
}
figcaption em { font-style: normal; }
em.error { color: var(--error); }
em.warning { color: var(--warning); }
em.note { color: var(--note); }
footer { margin-top: 48px; color: var(--soft); font-size: 13px; }
@media (max-width: 560px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 23px; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .sheet { grid-template-columns: repeat(2, 1fr); gap: 16px 10px; }
  th, td { padding: 7px 8px; }
  .bar { display: none; }
}
@media print { .sheet { grid-template-columns: repeat(4, 1fr); } }
"""
"""The whole of it."""
