"""The report as one HTML file: no scripts from elsewhere, light and dark, with the counterexamples ready to copy."""

from __future__ import annotations

import html
from pathlib import Path

from .coverage import COMMON, Coverage, Support
from .report import Report, versions
from .rules import Severity
from .runner import Outcome, Result

_STYLE = """
:root{color-scheme:light dark;--bg:#fbfaf8;--fg:#1d1d1f;--dim:#6f6f76;--card:#fff;--line:#e4e2dd;
--pass:#2f8f5b;--fail:#c8372d;--warn:#b97a00;--na:#b9b7b1;--error:#8a3ffc;--dense:#3e7cc4}
@media(prefers-color-scheme:dark){:root{--bg:#161618;--fg:#ececee;--dim:#9b9ba3;--card:#1f1f22;--line:#34343a;
--pass:#4fbf85;--fail:#ff6b5e;--warn:#e5a93b;--na:#55555c;--error:#b28bff;--dense:#6aa6ea}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:68rem;margin:0 auto;padding:2.5rem 1.5rem 5rem}h1{font-size:1.7rem;margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.6rem 0 .8rem}p.sub{color:var(--dim);margin:.3rem 0 1.6rem}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem}.tile{background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:.7rem 1.1rem;min-width:7rem}.tile b{display:block;font-size:1.7rem;line-height:1.2}
.tile span{color:var(--dim);font-size:.85rem}.map{display:flex;flex-wrap:wrap;gap:4px;margin:1.4rem 0 0}
.map a{width:1.5rem;height:1.5rem;border-radius:4px;display:block}.map a:hover{outline:2px solid var(--fg)}
.ops a,.ops i{width:.8rem;height:.8rem;border-radius:2px;display:block}
.pass{background:var(--pass)}.fail{background:var(--fail)}.warn{background:var(--warn)}.na{background:var(--na)}
.error{background:var(--error)}.dense{background:var(--dense)}
details{background:var(--card);border:1px solid var(--line);border-radius:10px;margin:.5rem 0;padding:.55rem .9rem}
summary{cursor:pointer;display:flex;gap:.7rem;align-items:baseline}summary i{width:.7rem;height:.7rem;border-radius:50%;
flex:none;align-self:center}summary code{font-weight:600}summary em{margin-left:auto;color:var(--dim);font-style:normal;
font-size:.85rem;white-space:nowrap}pre{background:var(--bg);border:1px solid var(--line);border-radius:8px;
padding:.8rem 1rem;overflow-x:auto;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace}
.sides{display:grid;grid-template-columns:1fr 1fr;gap:.8rem}.sides h4{margin:.4rem 0 .2rem;color:var(--dim);
font-weight:500;font-size:.85rem}.sides pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);
vertical-align:top}th{color:var(--dim);font-weight:500}.legend{color:var(--dim);font-size:.85rem;display:flex;gap:1rem;
margin:.6rem 0}.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.35rem}
button{font:inherit;font-size:.8rem;border:1px solid var(--line);background:var(--card);color:var(--fg);
border-radius:6px;padding:.15rem .6rem;cursor:pointer}
"""
_COPY = (
    "document.querySelectorAll('button').forEach(b=>b.onclick=()=>{navigator.clipboard.writeText("
    "b.nextElementSibling.textContent);b.textContent='copied'})"
)
_SUPPORT = {Support.SUPPORTED: "pass", Support.DENSE: "dense", Support.REFUSED: "na", Support.WRONG: "fail"}


def page(report: Report) -> str:
    """The HTML text."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{_esc(report.subject.cls.__qualname__)}: conformance</title><style>{_STYLE}</style><main>",
        f"<h1>{_esc(report.subject.name)}</h1>",
        f"<p class=sub>{_esc(_line(report))}</p>",
        _tiles(report),
        _map(report),
    ]
    broken = [*report.failures, *report.errors]
    if broken:
        parts += ["<h2>What does not hold</h2>", *(_details(r, is_open=k == 0) for k, r in enumerate(broken))]
    if report.coverage is not None:
        parts.append(_operations(report.coverage))
    held = [r for r in report.results if r.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)]
    parts += ["<h2>Other rules</h2>", *(_details(r) for r in held)]
    parts.append(f"</main><script>{_COPY}</script></html>")
    return "\n".join(parts)


def write_page(report: Report, path: str | Path) -> Path:
    """Write the HTML file, and its folder if there is none; returns its path."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(report), encoding="utf-8")
    return target


def _esc(text: object) -> str:
    return html.escape(str(text))


def _line(report: Report) -> str:
    v = versions()
    run = f"profile {report.profile}, {report.seconds:.1f} s"
    parts = [f"torch {v['torch']}, Python {v['python']}", run, report.made_by]
    return "; ".join([*parts, *report.subject.notes, *report.hints])


def _colour(r: Result) -> str:
    if r.outcome is Outcome.FAIL:
        return "warn" if r.rule.severity is Severity.WARNING else "fail"
    return {Outcome.PASS: "pass", Outcome.ERROR: "error"}.get(r.outcome, "na")


def _tiles(report: Report) -> str:
    fails = report.failures
    errors = sum(r.rule.severity is Severity.ERROR for r in fails)
    checks = sum(r.checks for r in report.results)
    rows = [
        (report.counts[Outcome.PASS], "rules hold"),
        (errors, "broken"),
        (len(fails) - errors, "broken, warnings"),
        (report.counts[Outcome.NOT_APPLICABLE], "not applicable"),
        (checks, "checks made"),
    ]
    if report.errors:
        rows.append((len(report.errors), "faults of the kit"))
    return f"<div class=tiles>{''.join(f'<div class=tile><b>{n}</b><span>{t}</span></div>' for n, t in rows)}</div>"


def _map(report: Report) -> str:
    cells = [
        f"<a href='#{r.rule.id}' class={_colour(r)} title='{_esc(f'{r.rule.id} {r.rule.title}: {r.outcome.value}')}'></a>"
        for r in report.results
        if r.outcome is not Outcome.SKIPPED
    ]
    legend = "".join(
        f"<span><i class={c}></i>{t}</span>"
        for c, t in (("pass", "holds"), ("fail", "broken"), ("warn", "broken, warning"), ("na", "not applicable"))
    )
    return f"<div class=map>{''.join(cells)}</div><div class=legend>{legend}</div>"


def _details(r: Result, is_open: bool = False) -> str:
    body = [f"<p>{_esc(r.rule.text)}</p>"]
    if r.failure is not None:
        f = r.failure
        body = [
            f"<p>{_esc(f.what)}</p><div class=sides><div><h4>got</h4><pre>{_esc(f.got)}</pre></div>"
            f"<div><h4>expected</h4><pre>{_esc(f.expected)}</pre></div></div>",
            f"<p>A program that shows it: <button>copy</button><pre>{_esc(f.script)}</pre></p>",
            *body,
            f"<div class=sides><div><h4>wrong</h4><pre>{_esc(r.rule.wrong)}</pre></div>"
            f"<div><h4>right</h4><pre>{_esc(r.rule.right)}</pre></div></div>",
        ]
    elif r.error is not None:
        body.append(f"<pre>{_esc(r.error)}</pre>")
    elif r.reason:
        body.append(f"<p>Not applicable: {_esc(r.reason)}</p>")
    note = f"{r.checks} checks" if r.checks else r.outcome.value
    head = f"<i class={_colour(r)}></i><code>{r.rule.id}</code> {_esc(r.rule.title)}<em>{note}</em>"
    return f"<details id={r.rule.id}{' open' if is_open else ''}><summary>{head}</summary>{''.join(body)}</details>"


def _operations(coverage: Coverage) -> str:
    cells = "".join(
        f"<i class={_SUPPORT[r.support]} title='{_esc(f'{r.operation}: {r.support.value} {r.reason}')}'></i>"
        for r in coverage.rows
    )
    legend = "".join(f"<span><i class={_SUPPORT[k]}></i>{k.value} {coverage.counts[k]}</span>" for k in Support)
    rows = "".join(
        f"<tr><td><code>{_esc(r.operation)}</code><td>{r.support.value}<td>{'' if r.rank is None else r.rank + 1}"
        f"<td>{_esc(r.reason)}</tr>"
        for r in coverage.missing[:40]
    )
    table = (
        f"<table><tr><th>operation<th>outcome<th>place of {len(COMMON)}<th>reason</tr>{rows}</table>" if rows else ""
    )
    return (
        f"<h2>Operations</h2><p class=sub>Each square is an operation of torch, the most used first.</p>"
        f"<div class='map ops'>{cells}</div><div class=legend>{legend}</div>{table}"
    )
