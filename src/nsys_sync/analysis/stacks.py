"""Stacks of the sites that matter, each frame stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nsys_sync import model
from nsys_sync.analysis.attributed import Attributed
from nsys_sync.analysis.sites import RankedSites, TraceOperations
from nsys_sync.analysis.user_code import is_user_code


def with_stacks(
    ranked: RankedSites,
    operations: Sequence[TraceOperations],
    attributed: Sequence[Attributed],
) -> tuple[tuple[model.Site, ...], tuple[model.Frame, ...], tuple[model.NativeFrame, ...]]:
    """The first STACKS_KEPT sites with the Python and native stack of their worst operation."""
    frames: dict[model.Frame, int] = {}
    native_frames: dict[model.NativeFrame, int] = {}
    shown = ranked.representative[: model.STACKS_KEPT]
    chains: dict[int, list[int]] = {}
    for trace, row in shown:
        if (chain := int(operations[trace].chain_id[row])) >= 0:
            chains.setdefault(trace, []).append(chain)
    native = {trace: attributed[trace].native_stacks(wanted) for trace, wanted in chains.items()}
    sites = []
    for rank, (site, (trace, row)) in enumerate(zip(ranked.sites, ranked.representative, strict=True)):
        event, chain = int(operations[trace].event[row]), int(operations[trace].chain_id[row])
        if rank >= model.STACKS_KEPT:
            sites.append(replace(site, stack_omitted=event >= 0 or chain >= 0))
            continue
        python_stack = [frames.setdefault(frame, len(frames)) for frame in _python_stack(attributed[trace], event)]
        native_stack = [
            native_frames.setdefault(model.NativeFrame(symbol, attributed[trace].shown(module)), len(native_frames))
            for symbol, module in native.get(trace, {}).get(chain, ())
        ]
        sites.append(replace(site, python_stack=tuple(python_stack), native_stack=tuple(native_stack)))
    return tuple(sites), tuple(frames), tuple(native_frames)


def _python_stack(one: Attributed, event: int) -> list[model.Frame]:
    if event < 0:
        return []
    python = one.trace.python
    first = int(python.first[event])
    return [
        model.Frame(
            function=one.shown_functions[python.frame_function[i]],
            file=one.shown_files[python.frame_file[i]],
            line=int(python.frame_line[i]),
            is_user_code=is_user_code(
                python.files[python.frame_file[i]], one.options.user_code, one.options.library_code
            ),
        )
        for i in range(first, first + int(python.count[event]))
    ]
