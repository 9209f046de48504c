"""What came of a command, in sentences for a person: a verdict first, or a last sentence."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..printable import grouped, listed, shortened, single_line

if TYPE_CHECKING:
    from ..adapter_files.convert.convert import Conversion
    from ..adapter_files.verify.load_proof import Proof

_EXACT = 1e-5
_LONGEST = 110  # characters of a line
_LONGEST_NOTE = 500
_NAMED = 5
_MOST_PROOF_LINES = 10
_MOST_NOTES = 3


def percent(share: float) -> str:
    """A share for a person: ``41 %``, ``0.4 %``, ``under 0.1 %``."""
    if share >= 0.1 or share == 0:
        return f"{share:.0%}".replace("%", " %")
    return f"{share:.1%}".replace("%", " %") if share >= 0.001 else "under 0.1 %"


def loss_sentence(errors: Mapping[str, float], layers: int, *, exact: bool = True) -> str:
    """How much of an adapter's change a command lost.

    Args:
        errors: Layer to its relative error; layers that are not named lost nothing.
        exact: Whether nothing else is lost either, as by the number format.
    """
    lost = {name: error for name, error in errors.items() if error > _EXACT}
    if not lost:
        return f"{layers} layers{', exact' if exact else ''}."
    every = [*lost.values(), *([0.0] * (layers - len(lost)))]
    worst = max(lost, key=lost.__getitem__)
    return (
        f"{percent(statistics.median(every))} of the change is lost (the median of {layers} "
        f"layers; at most {percent(lost[worst])}, in {shortened(worst, 80)})."
    )


def conversion_sentence(report: Conversion) -> str:
    """What a conversion did to the adapter."""
    others = [word for word in report.differences() if "approximated" not in word]
    sentence = loss_sentence(report.errors, report.layers, exact=report.exact)
    return f"{sentence[:-1]}; {', '.join(others)}." if others else sentence


def kept_sentence(kept: Mapping[str, float]) -> str:
    """How much of an adapter's change is in a merged base; a layer to its share."""
    least = min(kept, key=kept.__getitem__)
    return (
        f"{percent(statistics.median(kept.values()))} of the change is in the new base (the median "
        f"of {len(kept)} layers; at least {percent(kept[least])}, in {shortened(least, 80)})."
    )


def inspected_text(report: Mapping[str, Any], proof: Proof | None) -> str:
    """What an adapter file is, in at most 30 lines: the verdict first.

    Args:
        report: As ``inspect`` makes it for a person; empty where the kind is not read.
        proof: What ComfyUI makes of the file, where that was asked.
    """
    lines: list[str] = []
    if proof is not None:
        proved = proof.text(_NAMED).split("\n")
        rest = len(proved) - _MOST_PROOF_LINES
        lines = [*proved[:_MOST_PROOF_LINES], *([f"and {rest} more lines"] if rest > 0 else [])]
    if report:
        lines.append(_verdict(report))
    lines = [shortened(single_line(line), 2 * _LONGEST) for line in lines]
    for name, value in _facts(report) if report else ():
        # What a note says last is often what it is for.
        most = _LONGEST_NOTE if name == "note" else _LONGEST
        lines.append(f"{name + ':':<12} {shortened(single_line(value), most)}")
    unproved = proof is not None or "comfyui" in report
    proving = "" if unproved else " --prove asks whether ComfyUI loads all of it."
    return "\n".join([*lines, f"All there is: --verbose.{proving}"])


def _verdict(report: Mapping[str, Any]) -> str:
    ranks = ", ".join(map(str, list(report["ranks"])[:_NAMED]))
    form = "of whole factors" if report["whole"] and not ranks else f"of rank {ranks or 'none'}"
    model = report["family"] or report.get("made_for") or "an unknown model"
    dora = " with DoRA" if report["dora"] else ""
    aside = len(report["unknown"]) + len(report["extras"])
    aside += sum(count for count, _ in report["unread"].values())
    others = f"; keys beside its factors: {aside}, see below" if aside else ""
    return (
        f"A {report['kind']}{dora} {form} for {model}: "
        f"{sum(report['scales'].values())} layers, layout {report['layout']}{others}."
    )


def _facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", f"{report['path']} ({grouped(report['size'])} bytes)"
    yield "layout", f"{report['layout']}, {', '.join(report['dtypes'])}"
    for name, title in (("family", "family"), ("made_for", "made for"), ("also_fits", "also fits")):
        if report.get(name):
            yield title, str(report[name])
    if "comfyui" in report:
        yield "ComfyUI", str(report["comfyui"])
    if report["base"]:
        yield "base", str(report["base"])
    whole = {"none (whole factors)": report["whole"]} if report["whole"] else {}
    yield "ranks", _counted({**report["ranks"], **whole})
    yield "scales", _counted(report["scales"])
    yield "parameters", grouped(report["parameters"])
    yield from _change(report["norms"])
    yield from _history(report["metadata"])
    yield from _aside(report)


def _change(norms: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How large the change is, by the norms of the layers' deltas."""
    if not norms["layers"]:
        return
    yield "change", f"norm {norms['median']} in the median layer"
    for title, name in (("  weakest", "smallest"), ("  strongest", "largest")):
        ((layer, norm),) = norms[name].items()
        yield title, f"{norm} in {layer}"


def _aside(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What lies beside the factors, and what is to be known of them."""
    for name in ("unknown", "extras"):
        if report[name]:
            yield name, f"{len(report[name])}: {listed(report[name], _NAMED)}"
    if report["unread"]:
        parts = (f"{count} of {what}" for what, (count, _) in report["unread"].items())
        yield "not read", listed(parts, _NAMED)
    for note in report["notes"][:_MOST_NOTES]:
        yield "note", note
    if len(report["notes"]) > _MOST_NOTES:
        yield "note", f"and {len(report['notes']) - _MOST_NOTES} more"


def _counted(counts: Mapping[Any, int]) -> str:
    """``16 in 70 layers, 8 in 2``; the most common first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    parts = [f"{value} in {count}" for value, count in ordered]
    return listed(parts, _NAMED)


def _history(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How the adapter was trained, as far as its header says it in the usual keys."""
    names = {
        "steps": ("ss_steps", "ss_max_train_steps"),
        "learning rate": ("ss_learning_rate", "ss_unet_lr"),
        "images": ("ss_num_train_images",),
        "optimizer": ("ss_optimizer",),
        "date": ("modelspec.date",),
        "title": ("modelspec.title",),
    }
    parts = []
    for title, keys in names.items():
        value = next((metadata[key] for key in keys if metadata.get(key)), None)
        if value is not None:
            parts.append(f"{title} {shortened(str(value), 60)}")
    if parts:
        yield "training", "; ".join(parts)
